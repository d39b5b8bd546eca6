"""Serving consumers: who gets what, and what becomes of it."""

import pytest

from quivermq.errors import Fenced, InvalidRequest, Overloaded
from quivermq.queue import LeaseManager, LeaseRequest, TopicSettings
from tests.queue.rig import VISIBILITY_MS, Rig


def test_a_message_is_leased_to_one_consumer_at_a_time() -> None:
    rig = Rig()
    rig.put(10)
    assert rig.polled(4) == [0, 1, 2, 3]
    assert rig.polled(4) == [4, 5, 6, 7]
    assert rig.polled() == [8, 9]
    assert rig.polled() == []


def test_every_group_gets_every_message() -> None:
    rig = Rig()
    rig.put(3)
    assert rig.polled(group="a") == rig.polled(group="b") == [0, 1, 2]


def test_acknowledged_messages_never_come_again_and_the_rest_stays_leased() -> None:
    rig = Rig()
    rig.put(10)
    leased = rig.take()
    assert rig.leases.acknowledge("g", leased.lease, [(2, 5), (8, 9)]) == []
    stats = rig.stats()
    assert (stats.done, stats.in_flight, stats.floor) == (4, 6, 0)
    rig.commit()
    rig.restart()
    assert rig.polled() == []
    assert rig.later(VISIBILITY_MS) == 6
    assert rig.polled() == [0, 1, 5, 6, 7, 9]


def test_a_lease_ends_when_its_time_is_over_and_not_before() -> None:
    rig = Rig()
    rig.put(2)
    rig.take()
    assert rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == VISIBILITY_MS
    assert rig.later(VISIBILITY_MS - 1) == 0
    assert rig.polled() == []
    assert rig.later(1) == 2
    assert rig.polled() == [0, 1]


def test_an_extended_lease_lasts_longer() -> None:
    rig = Rig()
    rig.put(1)
    leased = rig.take()
    rig.later(VISIBILITY_MS - 1)
    assert rig.leases.extend("g", leased.lease, 60_000, rig.now_ms)
    assert rig.later(59_999) == 0
    assert rig.later(1) == 1
    assert not rig.leases.extend("g", leased.lease, 60_000, rig.now_ms)


def test_what_is_in_flight_is_listed_with_its_age_and_its_deliveries() -> None:
    rig = Rig(TopicSettings(retry_first_ms=0))
    rig.put(6)
    first = rig.take(2)
    rig.leases.fail("g", first.lease, [(1, 2)], 0, rig.now_ms)
    rig.later(5_000)
    rig.leases.extend("g", first.lease, 60_000, rig.now_ms)
    rig.later(1_000)
    again = rig.take(3)
    rig.later(2_000)

    def listed(limit: int = 10) -> list[tuple[int, int, int, int, int]]:
        return [
            (one.piece.start, one.piece.end, one.piece.failures, one.held_ms, one.left_ms)
            for one in rig.leases.in_flight("g", rig.now_ms, limit)
        ]

    assert listed() == [
        (0, 1, 0, 8_000, 57_000),
        (1, 2, 1, 2_000, VISIBILITY_MS - 2_000),
        (2, 4, 0, 2_000, VISIBILITY_MS - 2_000),
    ]
    assert listed(2) == listed()[:2]
    rig.leases.acknowledge("g", again.lease, [(2, 4)])
    assert [place[:2] for place in listed()] == [(0, 1), (1, 2)]
    rig.commit()
    rig.restart()
    # The next leader knows that they are leased, and counts from here on.
    assert [place[3] for place in listed()] == [0, 0]
    assert rig.leases.in_flight("nobody", rig.now_ms, 10) == []


def test_extending_by_the_same_time_writes_nothing() -> None:
    rig = Rig()
    rig.put(1)
    leased = rig.take()
    rig.commit()
    assert rig.leases.extend("g", leased.lease, VISIBILITY_MS, rig.now_ms)
    assert rig.leases.working_copy.take_operations() == []


def test_a_late_ack_is_accepted_while_no_other_consumer_has_the_message() -> None:
    rig = Rig()
    rig.put(2)
    late = rig.take()
    rig.later(VISIBILITY_MS)
    assert rig.leases.acknowledge("g", late.lease, None) == []
    assert rig.leases.acknowledge("g", late.lease, [(0, 2)]) == []
    assert rig.stats().done == 2
    assert rig.polled() == []


def test_a_late_ack_is_refused_once_another_has_the_message_or_had_it() -> None:
    rig = Rig()
    rig.put(2)
    late = rig.take()
    rig.later(VISIBILITY_MS)
    other = rig.take(1)
    assert rig.leases.acknowledge("g", late.lease, [(0, 2)]) == [(0, 1)]
    assert rig.leases.acknowledge("g", other.lease, None) == []
    assert rig.leases.acknowledge("g", late.lease, [(0, 2)]) == [(0, 1)]
    assert rig.stats().done == 2


def test_a_repeated_ack_is_recognised_also_by_another_leader() -> None:
    rig = Rig()
    rig.put(5)
    leased = rig.take()
    assert rig.leases.acknowledge("g", leased.lease, None) == []
    rig.commit()
    rig.restart()
    assert rig.leases.acknowledge("g", leased.lease, [(0, 5)]) == []
    assert rig.stats().done == 5


def test_an_ack_of_a_lease_that_was_lost_with_its_leader_is_refused() -> None:
    rig = Rig()
    rig.put(4)
    rig.leases.working_copy.open_group("g", 0)
    rig.commit()
    lost = rig.take()
    rig.change_leader()
    assert rig.leases.acknowledge("g", lost.lease, [(1, 3)]) == [(1, 3)]
    again = rig.take()
    assert again.lease != lost.lease
    assert rig.offsets(again) == [0, 1, 2, 3]


def test_nonsense_tokens_end_nothing() -> None:
    rig = Rig()
    rig.put(4)
    leased = rig.take(2)
    for token in (0, leased.lease + 1, 1 << 62):
        assert rig.leases.acknowledge("g", token, [(0, 4)]) == [(0, 4)]
        assert rig.leases.fail("g", token, [(0, 1)], None, rig.now_ms) == [(0, 1)]
        assert rig.leases.acknowledge("g", token, None) == []
    assert rig.leases.acknowledge("g", leased.lease, [(0, 9)]) == [(2, 9)]
    with pytest.raises(InvalidRequest, match="no group"):
        rig.leases.acknowledge("other", leased.lease, None)


def test_failures_are_counted_and_wait_longer_each_time() -> None:
    rig = Rig(TopicSettings(max_deliveries=5))
    rig.put(1)
    for failures, wait_ms in enumerate((0, 1000, 2000, 4000)):
        leased = rig.take()
        assert leased.pieces[0].failures == failures
        rig.leases.fail("g", leased.lease, None, None, rig.now_ms)
        if wait_ms:
            assert rig.polled() == []
            assert rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == wait_ms
        rig.later(wait_ms)
        rig.commit()
    assert rig.stats().redelivered == 3
    leased = rig.take()
    rig.leases.fail("g", leased.lease, None, None, rig.now_ms)
    assert rig.leases.dead_letters.dying() == [], "it is not committed"
    rig.commit()
    ((group, record),) = rig.leases.dead_letters.dying()
    assert (group, record.start, record.end, record.failures) == ("g", 0, 1, 5)
    assert record.reason == "failed 5 times"


def test_what_was_given_back_unworked_is_not_counted_as_failed() -> None:
    rig = Rig(TopicSettings(max_deliveries=1))
    rig.put(4)
    leased = rig.take(2)
    assert rig.leases.release("g", leased.lease, [(0, 1)]) == []
    assert rig.leases.release_consumer("g", 1) == 1
    again = rig.take()
    assert rig.offsets(again) == [0, 1, 2, 3]
    assert all(piece.failures == 0 for piece in again.pieces)
    assert rig.leases.release_consumer("g", 2) == 0
    assert rig.leases.release_consumer("unknown", 1) == 0


def test_a_nack_with_a_delay_comes_back_then() -> None:
    rig = Rig()
    rig.put(2)
    leased = rig.take()
    assert rig.leases.fail("g", leased.lease, [(1, 2)], 5000, rig.now_ms) == []
    rig.later(4999)
    assert rig.polled() == []
    assert rig.stats().delayed == 1
    rig.later(1)
    assert rig.polled() == [1]


def test_a_rejected_message_is_a_dead_letter_at_once_and_buried_once() -> None:
    rig = Rig()
    rig.put(3)
    leased = rig.take()
    assert rig.leases.reject("g", leased.lease, [(1, 2)], "no such customer", rig.now_ms) == []
    rig.commit()
    rig.restart()
    ((_, record),) = rig.leases.dead_letters.dying()
    assert (record.number, record.start, record.reason) == (0, 1, "no such customer")
    assert rig.stats().dead == 1
    rig.leases.dead_letters.bury("g", record.number)
    rig.leases.dead_letters.bury("g", record.number)
    rig.commit()
    assert rig.leases.dead_letters.dying() == []
    assert (rig.stats().dead, rig.stats().in_flight) == (1, 2)


def test_the_numbers_of_dead_letters_begin_anew_in_the_next_epoch() -> None:
    rig = Rig()
    rig.put(10)
    leased = rig.take()
    rig.leases.reject("g", leased.lease, [(0, 3)], "a", rig.now_ms)
    rig.leases.dead_letters.bury("g", 0)
    rig.leases.reject("g", leased.lease, [(3, 5), (7, 8)], "b", rig.now_ms)
    rig.commit()
    assert [record.number for _, record in rig.leases.dead_letters.dying()] == [3, 5]
    epoch = rig.leases.dead_letters.dead_epoch("g")
    rig.leases.dead_letters.restart_numbers("g")
    assert rig.leases.dead_letters.dying() == [], "their numbers are not committed"
    rig.commit()
    assert [record.number for _, record in rig.leases.dead_letters.dying()] == [0, 2]
    assert rig.leases.dead_letters.dead_epoch("g") > epoch


def test_at_most_once_is_done_before_it_is_delivered() -> None:
    rig = Rig()
    rig.put(3)
    leased = rig.poll(2, auto_ack=True)
    assert leased is not None
    assert (leased.lease, rig.offsets(leased)) == (0, [0, 1])
    rig.commit()
    rig.restart()
    assert rig.polled() == [2]
    assert rig.stats().done == 2


def test_delayed_messages_come_when_they_are_due_and_in_their_level() -> None:
    rig = Rig()
    late = rig.put(2, priority=3, delay_ms=5000)
    early = rig.put(1, delay_ms=1000)
    rig.put(1)
    assert rig.polled() == [3]
    assert rig.stats().delayed == 3
    assert rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == 1000
    rig.commit()
    rig.later(999)
    assert rig.polled() == []
    rig.later(1)
    assert rig.polled() == [early]
    rig.commit()
    rig.restart()
    rig.later(4000)
    assert rig.polled() == [late, late + 1]


def test_delayed_messages_are_listed_and_can_be_cancelled_for_everybody() -> None:
    rig = Rig()
    rig.put(3, delay_ms=2000)
    rig.put(1, delay_ms=1000)
    rig.put(1)
    rig.polled(group="early")
    listed = rig.leases.delayed(rig.now_ms, 0, 10)
    assert [(one.start, one.end, one.due_ms - rig.now_ms) for one in listed] == [
        (3, 4, 1000),
        (0, 3, 2000),
    ]
    assert rig.leases.cancel([(1, 9)], rig.now_ms) == 3
    rig.commit()
    assert rig.leases.delayed_total(rig.now_ms) == 1
    rig.later(2000)
    assert rig.leases.cancel([(0, 1)], rig.now_ms) == 0, "it is due"
    assert rig.polled(group="early") == [0]
    assert rig.polled(group="late") == [0, 4]
    assert rig.stats("late").done == 3
    rig.commit()


def test_seeking_ends_leases_and_delivers_again() -> None:
    rig = Rig()
    rig.put(10)
    leased = rig.take(6)
    rig.leases.acknowledge("g", leased.lease, [(0, 3)])
    rig.leases.seek("g", 1)
    rig.commit()
    assert rig.leases.acknowledge("g", leased.lease, [(3, 4)]) == [(3, 4)]
    assert rig.polled() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert rig.stats().start == 1
    rig.leases.seek("g", 10)
    assert rig.polled() == []


def test_a_group_may_be_sought_before_it_shares_anything() -> None:
    rig = Rig()
    rig.put(10)
    rig.leases.seek("g", 7)
    assert rig.polled() == [7, 8, 9]


def test_acks_of_leases_that_a_seek_ended_are_refused_also_by_the_next_leader() -> None:
    rig = Rig()
    rig.put(4)
    leased = rig.take()
    rig.commit()
    rig.leases.seek("g", 0)
    rig.commit()
    rig.change_leader()
    assert rig.leases.acknowledge("g", leased.lease, [(0, 4)]) == [(0, 4)]
    assert rig.polled() == [0, 1, 2, 3]


def test_dead_letters_that_wait_to_be_redriven_can_be_purged() -> None:
    rig = Rig()
    rig.put(10)
    rig.leases.dead_letters.redrive(0, rig.end, [(0, 4)], rig.now_ms)
    rig.commit()
    assert rig.leases.dead_letters.purge(0, rig.end, [(0, 2)]) == 0, "a record goes as a whole"
    assert rig.leases.dead_letters.purge(0, rig.end, [(0, 5)]) == 5
    rig.commit()
    assert rig.leases.dead_letters.dying() == []
    assert rig.leases.dead_letters.dead(0, rig.end) == [(5, 10)]


def test_a_dead_letter_on_its_way_is_moved_though_its_group_was_sought() -> None:
    rig = Rig()
    rig.put(2)
    leased = rig.take()
    rig.leases.reject("g", leased.lease, [(0, 1)], "bad", rig.now_ms)
    rig.leases.seek("g", 0)
    rig.commit()
    assert len(rig.leases.dead_letters.dying()) == 1
    assert rig.polled() == [0, 1]
    rig.leases.dead_letters.bury("g", 0)
    rig.commit()
    assert rig.stats().in_flight == 2


def test_a_group_that_was_dropped_begins_anew() -> None:
    rig = Rig()
    rig.put(2)
    rig.leases.acknowledge("g", rig.take().lease, None)
    rig.leases.working_copy.drop("g")
    rig.leases.working_copy.drop("g")
    rig.commit()
    assert not rig.leases.working_copy.has_group("g")
    assert rig.polled() == [0, 1]


def test_what_retention_deleted_before_it_was_done_is_lost() -> None:
    rig = Rig()
    rig.put(10)
    leased = rig.take(4)
    rig.leases.acknowledge("g", leased.lease, [(1, 3)])
    rig.leases.fail("g", leased.lease, [(0, 1)], 1000, rig.now_ms)
    rig.leases.working_copy.trim(7)
    rig.commit()
    assert (rig.stats().lost, rig.stats().done) == (5, 2)
    rig.leases.working_copy.trim(7)
    assert rig.leases.working_copy.take_operations() == [], "everybody knows"
    assert rig.polled() == [7, 8, 9]


def test_a_claim_fences_the_earlier_owner_of_the_partition() -> None:
    rig = Rig()
    rig.put(5)
    assert rig.leases.working_copy.claim("g", 3) is None
    rig.leases.working_copy.commit("g", 2, 3)
    rig.commit()
    rig.restart()
    assert rig.leases.working_copy.claim("g", 4) == 2
    with pytest.raises(Fenced, match="another member"):
        rig.leases.working_copy.commit("g", 3, 3)
    with pytest.raises(Fenced):
        rig.leases.working_copy.claim("g", 3)
    with pytest.raises(InvalidRequest, match="never claimed"):
        rig.leases.working_copy.check_claim("g", 5)
    rig.leases.working_copy.check_claim("g", 4)
    rig.leases.working_copy.commit("g", 1)
    assert rig.leases.working_copy.committed("g") == 1
    (stats,) = rig.leases.describe(rig.end, rig.now_ms)
    assert (stats.is_shared, stats.waiting, stats.committed) == (False, 0, 1)


def test_dead_letters_are_redriven_or_purged_once() -> None:
    rig = Rig()
    rig.put(2500)
    assert rig.leases.dead_letters.dead(0, rig.end) == [(0, 2500)]
    assert rig.leases.dead_letters.purge(0, rig.end, [(0, 100)]) == 100
    assert rig.leases.dead_letters.redrive(0, rig.end, None, rig.now_ms) == 2400
    assert rig.leases.dead_letters.dead(0, rig.end) == []
    assert rig.leases.dead_letters.redrive(0, rig.end, None, rig.now_ms) == 0
    rig.commit()
    records = [record for _, record in rig.leases.dead_letters.dying()]
    assert [(one.start, one.end) for one in records] == [(100, 1100), (1100, 2100), (2100, 2500)]
    assert all(record.redrive for record in records)
    rig.commit()
    for record in records:
        rig.leases.dead_letters.bury("_dlq", record.number)
    rig.commit()
    assert rig.stats("_dlq").done == 2500


def test_a_desk_begins_again_from_what_was_proposed() -> None:
    rig = Rig()
    rig.put(6)
    first = rig.take(2)
    (body,) = [b"[" + b",".join(rig.leases.working_copy.take_operations()) + b"]"]
    rig.take(2)
    rig.leases.begin_again([body], rig.now_ms)
    assert rig.leases.working_copy.take_operations() == []
    assert rig.polled() == [2, 3, 4, 5]
    assert rig.leases.acknowledge("g", first.lease, None) == []
    assert rig.later(VISIBILITY_MS) == 4


def test_groups_and_visibility_are_bounded() -> None:
    rig = Rig()
    leases = LeaseManager(rig.partition, 0, rig.dice, groups_max=2)
    leases.working_copy.open_group("a", 0)
    leases.working_copy.commit("b", 1)
    with pytest.raises(Overloaded, match="2 groups"):
        leases.working_copy.open_group("c", 0)
    with pytest.raises(InvalidRequest):
        leases.working_copy.open_group("..", 0)
    for visibility_ms in (0, 13 * 3600 * 1000):
        with pytest.raises(InvalidRequest, match="visibility"):
            leases.lease(LeaseRequest("a", 1, 1, visibility_ms), 0, 0, 0)


def test_idle_consumers_write_nothing() -> None:
    rig = Rig()
    rig.put(1)
    rig.put(1, delay_ms=10)
    rig.take()
    rig.commit()
    for _ in range(5):
        assert rig.polled() == []
    assert rig.leases.working_copy.take_operations() == []


def test_the_state_of_a_group_does_not_grow_with_what_waits() -> None:
    sizes = []
    for batches in (1, 1000):
        rig = Rig()
        for _ in range(batches):
            rig.put(1000)
        rig.take(10)
        rig.commit()
        sizes.append(len(rig.partition.checkpoint()))
    assert sizes[0] == sizes[1]
