"""The state of groups at scale: what is shared, what is copied, what is looked at, how large it is.

Counted, and small: the real sizes are in `python -m tests.queue.large`.
"""

from collections.abc import Callable

import pytest

from quivermq.errors import Overloaded
from quivermq.queue import (
    LeaseManager,
    Partition,
    lease_manager,
    priority_index,
    redelivery_queue,
    working_copy,
)
from quivermq.queue.delayed import FIRST_KEY, DelayedBatches, DueKey, key_of
from quivermq.queue.group import Group
from tests.queue import large
from tests.queue.rig import Rig

HOUR_MS = 3_600_000


def counted(monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> Callable[[], int]:
    """How often a method was called since the last time that this was asked."""
    calls = 0
    method = getattr(of, name)

    def act(self, *args, **rest):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        return method(self, *args, **rest)

    def taken() -> int:
        nonlocal calls
        found, calls = calls, 0
        return found

    monkeypatch.setattr(of, name, act)
    return taken


def with_groups(count: int) -> Rig:
    rig = Rig()
    rig.put(5)
    for number in range(count):
        rig.poll(1, group=f"g{number}")
    rig.commit()
    return rig


def test_messages_for_later_cost_a_group_nothing() -> None:
    rig = Rig()
    rig.poll(group="first")
    rig.commit()
    alone = len(rig.partition.groups.pack())
    for number in range(500):
        rig.put(1, delay_ms=HOUR_MS + number)
    for number in range(10):
        assert rig.poll(group=f"g{number}") is None
    rig.commit()
    assert len(rig.partition.groups.pack()) < 12 * alone
    assert rig.stats("g3").delayed == 500


def test_what_comes_in_with_an_earlier_time_is_taken_over_too() -> None:
    rig = Rig()
    late = rig.put(1, delay_ms=2_000)
    rig.later(2_000)
    assert rig.polled() == [late]
    rig.commit()
    # A clock that went back makes delays that are over already, by what was taken over before.
    rig.now_ms -= 1_500
    early = rig.put(2, delay_ms=1_000)
    assert rig.polled() == []
    assert rig.stats().delayed == 2
    rig.commit()
    rig.restart()
    rig.now_ms += 999
    assert rig.polled() == []
    rig.now_ms += 1
    assert rig.polled() == [early, early + 1]


def test_a_group_takes_over_no_more_than_it_may_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_manager, "DUE_MAX", 3)
    rig = Rig()
    for _ in range(8):
        rig.put(1, delay_ms=10)
    rig.later(10)
    assert rig.leases.working_copy.groups.by_name == {}
    got = rig.polled(2)
    assert len(rig.leases.working_copy.groups.by_name["g"].waiting) == 1
    # It is not behind: whoever comes next takes over what is next.
    assert rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == 30_000
    while more := rig.polled(2):
        got += more
    assert got == list(range(8))


def test_a_new_leader_copies_what_it_touches_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = with_groups(50)
    copies = counted(monkeypatch, Group, "copy")
    rig.change_leader()
    assert copies() == 0
    rig.poll(1, group="g7")
    rig.poll(1, group="g7")
    assert copies() == 1
    rig.leases.begin_again([], rig.now_ms)
    assert copies() == 0
    assert rig.leases.working_copy.groups.by_name["g7"] is rig.partition.groups.by_name["g7"]


def test_a_snapshot_stays_as_it_was_whatever_is_applied_later() -> None:
    rig = with_groups(3)
    rig.put(2, delay_ms=5)
    before, snapshot = rig.partition.checkpoint(), rig.partition.snapshot()
    leased = rig.take(2, group="g1")
    rig.leases.acknowledge("g1", leased.lease, None)
    rig.leases.working_copy.drop("g2")
    rig.put(1, delay_ms=7)
    rig.commit()
    assert rig.partition.checkpoint() != before
    assert snapshot.pack() == before
    assert Partition.restore(before).checkpoint() == before


def test_the_alarm_looks_at_one_group_and_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    for count in (2, 60):
        rig = with_groups(count)
        for number in range(count):
            group = rig.leases.working_copy.groups.by_name[f"g{number}"]
            (lease,) = group.leases
            rig.leases.fail(group.name, lease, None, HOUR_MS + number, rig.now_ms)
        rig.leases.alarm_ms(rig.now_ms, rig.now_ms)
        seen = 0
        found = redelivery_queue.RedeliveryQueue.next_due_ms

        def look(self: redelivery_queue.RedeliveryQueue, found: property = found) -> int | None:
            nonlocal seen
            seen += 1
            assert found.fget is not None
            return found.fget(self)

        with monkeypatch.context() as patch:
            patch.setattr(redelivery_queue.RedeliveryQueue, "next_due_ms", property(look))
            assert rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == HOUR_MS
            rig.leases.expire(rig.now_ms, rig.now_ms)
        looks.append(seen)
    assert looks[1] == looks[0] <= 2


def test_leases_of_the_leader_before_are_timed_a_portion_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_manager, "ARMED_AT_ONCE", 4)
    rig = Rig()
    rig.put(20)
    for _ in range(20):
        rig.take(1)
    rig.commit()
    rig.change_leader()
    began_ms = rig.now_ms
    assert len(rig.leases._times) < 5
    while rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == 0:
        assert rig.later(1) == 0
    # From when the leadership was won, however long it took to look at all of them.
    assert {times.deadline for times in rig.leases._times.values()} == {began_ms + 30_000}
    assert rig.later(began_ms + 30_000 - rig.now_ms) == 20


def test_leases_of_many_pieces_end_a_portion_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_manager, "PIECES_ENDED_AT_ONCE", 5)
    rig = Rig()
    for number in range(16):
        rig.put(1, priority=number % 2)
    for _ in range(4):
        assert len(rig.take(4).pieces) == 4
    ended = [rig.later(30_000)]
    while rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == 0:
        ended.append(rig.later(0))
    assert ended == [5, 5, 5, 1], "a lease may end in two goes"


def test_one_lease_of_many_pieces_ends_a_portion_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_manager, "PIECES_ENDED_AT_ONCE", 5)
    rig = Rig()
    rig.put(26)
    lease = rig.take(26).lease
    rig.leases.acknowledge("g", lease, [(at, at + 1) for at in range(0, 26, 2)])
    rig.commit()
    ended = [rig.later(30_000)]
    # What is left of it is still its consumer's.
    assert rig.leases.acknowledge("g", lease, [(25, 26)]) == []
    assert rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == 0
    rig.commit()
    rig.change_leader()
    assert rig.later(0) == 0, "the next leader times what is left anew"
    ended.append(rig.later(30_000))
    while rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == 0:
        ended.append(rig.later(0))
    assert ended == [5, 5, 2]
    rig.commit()
    rig.later(3_600_000)
    assert sorted(rig.polled()) == list(range(1, 25, 2))


def test_a_consumer_that_ends_gives_back_a_portion_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_manager, "PIECES_ENDED_AT_ONCE", 5)
    rig = Rig()
    rig.put(40)
    for _ in range(2):
        leased = rig.take(20)
        low = leased.pieces[0].start
        parts = [(at, at + 1) for at in range(low, low + 20, 2)]
        rig.leases.acknowledge("g", leased.lease, parts)
    given = []
    while messages := rig.leases.release_consumer("g", 1):
        given.append(messages)
        rig.commit()
    assert given == [5, 5, 5, 5]
    assert sorted(rig.polled()) == list(range(1, 40, 2))


def test_a_delayed_batch_of_which_much_was_cancelled_counts_as_the_pieces_that_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_manager, "DUE_MAX", 12)
    monkeypatch.setattr(lease_manager, "CANCELLED_OF_BATCH_MAX", 5)
    rig = Rig()
    rig.polled()
    for _ in range(10):
        rig.put(10, delay_ms=1000)
    parts = [(at, at + 1) for at in range(0, 100, 2)]
    assert rig.leases.cancel(parts, rig.now_ms) == 50
    with pytest.raises(Overloaded, match="one by one"):
        rig.leases.cancel([(1, 2)], rig.now_ms)
    assert rig.leases.cancel([(90, 100)], rig.now_ms) == 5, "all of a batch is no piece"
    rig.commit()
    rig.later(1000)
    seen: list[int] = []
    while found := rig.polled(7):
        redelivery_queue = rig.leases.working_copy.groups.by_name["g"].waiting
        assert redelivery_queue.delayed_pieces <= 12 + 5
        seen += found
    assert sorted(seen) == list(range(1, 90, 2))


def test_very_many_that_come_due_are_made_ready_a_portion_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redelivery_queue, "PROMOTED_AT_ONCE", 3)
    rig = Rig()
    for number in range(8):
        rig.put(1, priority=number % 2)
    rig.leases.fail("g", rig.take(8).lease, None, 1_000, rig.now_ms)
    rig.now_ms += 1_000
    assert rig.leases.ready("g", rig.end, rig.now_ms, 100) == 3
    while rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == 0:
        rig.later(0)
    assert rig.leases.ready("g", rig.end, rig.now_ms, 100) == 8


def test_what_a_consumer_leaves_goes_back_a_portion_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_manager, "EXPIRED_AT_ONCE", 3)
    rig = Rig()
    rig.put(7)
    for _ in range(7):
        rig.take(1)
    assert [rig.leases.release_consumer("g", 1) for _ in range(4)] == [3, 3, 1, 0]


def test_a_choice_from_the_flat_part_gathers_what_is_taken_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(priority_index, "STRETCHES_MAX", 2)
    monkeypatch.setattr("quivermq.queue.partition._FLATTEN_EVERY", 1)
    rig = Rig()
    rig.put(40)
    held = rig.take(40)
    for at in range(0, 40, 2):
        rig.leases.acknowledge("g", held.lease, [(at, at + 1)])
    rig.commit()
    for priority in (1, 2, 3, 1):
        rig.put(1, priority=priority)
    assert rig.partition.priority_index.flat_end >= 40
    rig.leases.seek("g", 0)
    gathered = counted(monkeypatch, Group, "taken_intervals")
    assert sorted(rig.polled(44)) == list(range(44))
    assert gathered() == 1


def test_listing_what_comes_next_looks_at_no_more_than_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    for number in range(300):
        rig.put(2, delay_ms=HOUR_MS - number)
    looks = counted(monkeypatch, DelayedBatches, "at")
    listed = rig.leases.delayed(rig.now_ms, 0, 5)
    assert [one.start for one in listed] == [598, 596, 594, 592, 590]
    assert rig.leases.delayed_total(rig.now_ms) == 600
    assert looks() <= 6


def test_both_orders_of_delayed_batches_stay_the_same_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quivermq.queue.delayed.BLOCK", 4)
    found = DelayedBatches()
    for at in range(100):
        found.add(3 * at, 3 * at + 2, 1_000 + at * 37 % 50, at % 8)
    found.validate()
    assert [one.start for one in found.due_after(key_of(1_048))] == [3 * 27, 3 * 77]
    assert found.messages_after(DueKey(1_049, 81)) == 2
    assert found.messages_after(FIRST_KEY) == 200
    assert found.next_due_ms(1_049) is None
    found.forget([found.at(7), found.at(27), found.at(57)])
    found.validate()
    found.trim(100)
    found.validate()
    assert [one.start for one in found][:2] == [102, 105]
    assert found.messages_below(150, FIRST_KEY) == 2 * 16
    assert found.messages_below(151, key_of(1_030)) == sum(
        min(one.end, 151) - one.start for one in found if one.start < 151 and one.due_ms > 1_030
    )
    assert found.messages_below(151, key_of(1_000)) == sum(
        min(one.end, 151) - one.start for one in found if one.start < 151 and one.due_ms > 1_000
    )


# How large it may be.


def small(rig: Rig, factor: int) -> LeaseManager:
    """A lease manager of which a part of what a checkpoint may hold is taken."""
    limit = rig.partition.size_bytes * factor // 100
    rig.leases = LeaseManager(rig.partition, rig.now_ms, rig.leases._dice, state_bytes_max=limit)
    return rig.leases


def test_a_full_state_takes_nothing_new_but_gives_out_what_came_back() -> None:
    rig = Rig()
    rig.put(10)
    held = rig.take(2)
    rig.put(1, delay_ms=HOUR_MS)
    rig.commit()
    small(rig, 150)
    assert rig.leases.working_copy.is_full
    with pytest.raises(Overloaded, match="settle what is leased"):
        rig.poll(1)
    assert rig.leases.ready("g", rig.end, rig.now_ms, 10) == 0
    with pytest.raises(Overloaded, match="bytes"):
        rig.poll(group="another")
    with pytest.raises(Overloaded, match="bytes"):
        rig.leases.cancel([(10, 11)], rig.now_ms)
    with pytest.raises(Overloaded, match="bytes"):
        rig.leases.dead_letters.redrive(0, rig.end, None, rig.now_ms)
    rig.leases.release("g", held.lease, None)
    assert rig.polled() == [0, 1]


def test_a_full_state_is_no_error_where_there_is_nothing_to_deliver() -> None:
    rig = Rig()
    rig.put(1)
    rig.leases.acknowledge("g", rig.take().lease, None)
    rig.commit()
    small(rig, 100)
    assert rig.poll() is None


def test_a_state_that_is_nearly_too_large_is_not_scattered_further() -> None:
    rig = Rig()
    rig.put(100)
    held = rig.take(100)
    rig.commit()
    small(rig, 120)
    scattered = [(at, at + 1) for at in range(0, 100, 2)]
    with pytest.raises(Overloaded, match="whole leases"):
        rig.leases.acknowledge("g", held.lease, scattered)
    with pytest.raises(Overloaded, match="whole leases"):
        rig.leases.fail("g", held.lease, scattered, None, rig.now_ms)
    assert rig.leases.acknowledge("g", held.lease, [(0, 100)]) == []
    assert rig.stats().done == 100


def test_very_many_groups_hear_of_what_is_deleted_a_portion_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(working_copy, "TRIMMED_AT_ONCE", 2)
    rig = with_groups(5)
    assert [rig.leases.working_copy.trim(3), rig.leases.working_copy.trim(3)] == [False, False]
    rig.commit()
    assert sorted(group.floor for group in rig.partition.groups.by_name.values()) == [0, 3, 3, 3, 3]
    # Who begins now begins behind it, and the next leader goes on.
    assert rig.polled(group="new") == [3, 4]
    rig.change_leader()
    assert rig.leases.working_copy.trim(3)
    rig.commit()
    assert {group.floor for group in rig.partition.groups.by_name.values()} == {3}
    assert rig.partition.priority_index.begin == 3


def test_no_part_of_a_group_is_missing_in_its_size() -> None:
    rig = Rig()
    empty = rig.partition.size_bytes
    for number in range(400):
        rig.put(2, priority=number % 2)
    # Leased, waiting, dying, done and remembered as acknowledged: a hundred pieces of each.
    leased = [rig.take(200) for _ in range(4)]
    for number, lease in enumerate(leased):
        parts = [(piece.start, piece.start + 1) for piece in lease.pieces]
        if number == 1:
            rig.leases.fail("g", lease.lease, parts, HOUR_MS, rig.now_ms)
        elif number == 2:
            rig.leases.reject("g", lease.lease, parts, "for a reason", rig.now_ms)
        elif number == 3:
            rig.leases.acknowledge("g", lease.lease, parts)
    rig.commit()
    taken = rig.partition.groups.pack()
    assert len(taken) <= rig.partition.groups.size_bytes + 100
    assert rig.partition.groups.size_bytes < 2 * len(taken)
    assert empty < 1_000


def test_a_walk_through_large_states_takes_long_nowhere() -> None:
    assert large.main(["--scale", "0.01"]) == 0
