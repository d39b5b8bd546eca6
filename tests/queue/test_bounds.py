"""Nothing at a lease manager grows for ever, and nothing holds it for long."""

import pytest

from quivermq.intervals import without
from quivermq.queue import group, last_holders, lease_manager, selection
from quivermq.queue.delayed import DelayedBatches
from quivermq.queue.groups import Op
from tests.queue.rig import Rig

HOUR_MS = 3_600_000
MANY = 60_000


class Counted(list[tuple[int, int]]):
    """Intervals that count how many of them are looked at."""

    looks = 0

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        found = super().__getitem__(at)
        Counted.looks += len(found) if isinstance(at, slice) else 1
        return found


def test_cutting_intervals_out_of_others_takes_a_look_at_each_and_not_at_all_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("builtins.list", Counted)
    Counted.looks = 0
    wanted = [(at, at + 3) for at in range(0, 4_000, 4)]
    left = without(wanted, [(at + 1, at + 2) for at, _ in wanted])
    monkeypatch.undo()
    assert left == [part for at, _ in wanted for part in ((at, at + 1), (at + 2, at + 3))]
    assert Counted.looks < 10 * len(wanted)


def test_what_comes_and_goes_leaves_nothing_behind() -> None:
    rig = Rig()
    rig.put(3)
    for _ in range(500):
        leased = rig.take()
        rig.leases.extend("g", leased.lease, HOUR_MS, rig.now_ms)
        rig.leases.fail("g", leased.lease, [(0, 1)], HOUR_MS, rig.now_ms)
        rig.leases.release("g", leased.lease, None)
        rig.commit()
        rig.leases.seek("g", 0)
        rig.commit()
    for _ in range(500):
        rig.leases.release("g", rig.take().lease, None)
        rig.commit()
    for groups in (rig.leases.working_copy.groups, rig.partition.groups):
        waiting = groups.by_name["g"].waiting
        assert sum(map(len, waiting._by_level.values())) < 200
        assert len(waiting._by_due) < 200


def test_long_leases_that_are_settled_soon_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_manager, "_LEFTOVERS", 10)
    rig = Rig()
    rig.put(1)
    held = rig.take()
    for _ in range(200):
        rig.put(1)
        leased = rig.poll(visibility_ms=HOUR_MS)
        assert leased is not None
        rig.leases.acknowledge("g", leased.lease, None)
    assert len(rig.leases._expiring) < 50
    assert len(rig.leases._times) < 50
    assert rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == 30_000
    assert rig.later(30_000) == 1
    assert held.lease


def test_acks_message_by_message_are_remembered_as_few_intervals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group, "SETTLED_INTERVALS_MAX", 8)
    rig = Rig()
    rig.put(40)
    first = rig.take(20)
    for at in range(20):
        assert rig.leases.acknowledge("g", first.lease, [(at, at + 1)]) == []
    known = rig.leases.working_copy.groups.by_name["g"]
    assert list(known.settled_leases[first.lease].done) == [(0, 20)]
    second = rig.take(20)
    rig.leases.acknowledge("g", second.lease, [(at, at + 1) for at in range(20, 34, 2)])
    assert known.settled_leases.keys() == {first.lease, second.lease}
    rig.leases.acknowledge("g", second.lease, [(35, 36), (37, 38)])
    assert known.settled_intervals <= 8
    rig.commit()
    rig.restart()
    assert rig.leases.working_copy.groups.by_name["g"].settled_intervals == known.settled_intervals


def test_messages_delayed_until_tomorrow_do_not_hold_up_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "PIECES_MAX", 5)
    rig = Rig()
    for number in range(8):
        rig.put(1, delay_ms=HOUR_MS + number)
    rig.put(2)
    assert rig.polled() == [8, 9]
    rig.later(HOUR_MS + 10)
    assert 0 in rig.polled(2)


def test_what_is_not_given_out_is_not_called_ready_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "PIECES_MAX", 3)
    rig = Rig()
    rig.put(10)
    held = [rig.take(1) for _ in range(3)]
    assert rig.poll() is None
    assert rig.leases.ready("g", rig.end, rig.now_ms, 10) == 0
    rig.leases.reject("g", held[0].lease, None, "bad", rig.now_ms)
    # Dead letters that nobody takes pile up too.
    assert rig.poll() is None
    rig.leases.acknowledge("g", held[1].lease, None)
    assert rig.leases.ready("g", rig.end, rig.now_ms, 10) == 7
    assert len(rig.polled()) == 7


def test_a_lease_has_no_more_pieces_than_can_be_handled_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "PIECES_AT_ONCE", 4)
    rig = Rig()
    for number in range(20):
        rig.put(1, priority=number % 2)
    got = [len(rig.take().pieces) for _ in range(5)]
    assert got == [4] * 5
    assert rig.poll() is None


def test_delayed_batches_are_taken_over_a_portion_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_manager, "PARKED_AT_ONCE", 3)
    rig = Rig()
    for _ in range(10):
        rig.put(1, delay_ms=1_000)
    assert rig.poll() is None
    assert rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == 1_000
    rig.now_ms += 1_000
    assert rig.leases.ready("g", rig.end, rig.now_ms, 10) == 3
    # The rest happens by itself.
    while rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == 0:
        rig.later(0)
    assert rig.leases.working_copy.groups.by_name["g"].waiting.messages == 10
    assert rig.polled() == list(range(10))


def test_many_leases_end_a_portion_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_manager, "EXPIRED_AT_ONCE", 4)
    rig = Rig()
    rig.put(10)
    for _ in range(10):
        rig.take(1)
    ended = [rig.later(30_000)]
    while rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == 0:
        ended.append(rig.later(0))
    assert ended == [4, 4, 2]


def test_cancelling_one_of_many_looks_at_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    for _ in range(5):
        rig.put(2, delay_ms=1_000)
    monkeypatch.setattr(DelayedBatches, "__iter__", None)
    monkeypatch.setattr(DelayedBatches, "due_after", None)
    assert rig.leases.cancel([(3, 5), (9, 100)], rig.now_ms) == 3
    assert rig.leases.cancel([(0, 6)], rig.now_ms) == 4
    monkeypatch.undo()
    rig.later(1_000)
    assert rig.polled() == [6, 7, 8]


def test_the_last_holders_of_what_waits_are_a_bounded_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(last_holders, "HOLDERS_MAX", 3)
    rig = Rig()
    rig.put(10)
    held = [rig.take(1) for _ in range(5)]
    assert rig.later(30_000) == 5
    rig.commit()
    rig.restart()
    lost = [rig.leases.acknowledge("g", one.lease, [(at, at + 1)]) for at, one in enumerate(held)]
    assert lost == [[(0, 1)], [(1, 2)], [], [], []]


def test_a_lease_that_expires_piece_by_piece_is_one_holder() -> None:
    rig = Rig()
    rig.put(100)
    leased = rig.take()
    for at in (*range(0, 100, 2), *range(1, 100, 2)):
        rig.leases.release("g", leased.lease, [(at, at + 1)])
    assert [holder[:2] for holder in rig.leases.working_copy.groups.by_name["g"].last_holders] == [
        (0, 100)
    ]
    rig.commit()


def test_a_group_starts_where_the_index_does_if_that_is_later() -> None:
    rig = Rig()
    for _ in range(2):
        rig.put(5)
    rig.leases.working_copy.open_group("other", 0)
    rig.leases.working_copy.trim(5)
    rig.commit()
    # The log of the next leader holds more than that of the one that dropped it.
    rig.change_leader()
    leased = rig.poll(start=0)
    assert leased is not None
    assert rig.offsets(leased) == [5, 6, 7, 8, 9]
    rig.leases.acknowledge("g", leased.lease, None)
    assert rig.leases.working_copy.groups.by_name["g"].floor == 10
    rig.leases.seek("g", 0)
    assert rig.polled() == [5, 6, 7, 8, 9]


def test_a_cursor_moves_over_what_is_purged_and_the_move_is_replicated() -> None:
    rig = Rig()
    rig.put(3)
    rig.leases.working_copy.open_group("g", 0)
    rig.put(1, priority=5)
    rig.leases._propose(Op.PURGE, rig.leases.working_copy.groups.by_name["g"].number, [(1, 3)])
    rig.commit()
    rig.change_leader()
    assert rig.polled(1) == [3]
    assert rig.polled(1) == [0]
    assert rig.poll() is None
    rig.commit()
    assert rig.partition.groups.by_name["g"].cursors[0] == 3


def test_a_restart_of_the_leases_is_announced_with_the_next_alarm() -> None:
    rig = Rig()
    rig.put(1)
    rig.take()
    rig.commit()
    heard = []
    rig.leases.on_restart = lambda: heard.append(rig.leases.alarm_ms(rig.now_ms, rig.now_ms))
    assert rig.later(30_000) == 1
    assert rig.leases.alarm_ms(rig.now_ms, rig.now_ms) is None
    # What was said is not proposed after all.
    rig.leases.begin_again([], rig.now_ms)
    assert heard == [30_000]
