"""Turns that are rare, each of which went wrong once: shown by storms, told one by one."""

import pytest

from quivermq.queue import partition, priority_index
from tests.queue.rig import Rig

MINUTES_MS = 500_000


def test_a_group_that_is_made_again_gives_out_no_token_twice() -> None:
    rig = Rig()
    rig.put(2)
    first = rig.take()
    rig.leases.working_copy.drop("g")
    second = rig.take()
    assert first.lease != second.lease
    assert rig.leases.acknowledge("g", first.lease, [(0, 2)]) == [(0, 2)]


def test_a_group_that_is_made_again_is_another_producer_of_dead_letters() -> None:
    rig = Rig()
    rig.put(1)
    epochs = set()
    for _ in range(2):
        rig.poll()
        rig.commit()
        epochs.add(rig.leases.dead_letters.dead_epoch("g"))
        rig.leases.dead_letters.restart_numbers("g")
        epochs.add(rig.leases.dead_letters.dead_epoch("g"))
        rig.leases.working_copy.drop("g")
    assert len(epochs) == 4


def test_dead_letters_are_moved_only_once_it_is_committed_that_they_are() -> None:
    rig = Rig()
    rig.put(2)
    leased = rig.take()
    rig.commit()
    rig.leases.reject("g", leased.lease, [(0, 1)], "bad", rig.now_ms)
    assert rig.leases.dead_letters.dying() == []
    rig.change_leader()
    rig.leases.reject("g", leased.lease, [(1, 2)], "bad", rig.now_ms)
    rig.commit()
    ((_, record),) = rig.leases.dead_letters.dying()
    assert (record.number, record.start) == (0, 1)


def test_a_group_may_be_sought_into_the_middle_of_a_delayed_batch() -> None:
    rig = Rig()
    rig.put(4, delay_ms=1_000)
    rig.leases.working_copy.open_group("g", 0)
    rig.leases.seek("g", 2)
    assert rig.stats().delayed == 2
    rig.later(1_000)
    assert rig.polled() == [2, 3]


def test_what_is_cancelled_before_there_is_any_group_stays_so() -> None:
    rig = Rig()
    rig.put(3, delay_ms=1_000)
    assert rig.leases.cancel([(1, 2)], rig.now_ms) == 1
    rig.commit()
    rig.restart()
    rig.later(1_000)
    assert rig.polled() == [0, 2]


def test_what_was_cancelled_is_done_and_not_lost_when_it_is_deleted() -> None:
    rig = Rig()
    rig.leases.working_copy.open_group("g", 0)
    rig.put(3, delay_ms=1_000)
    rig.put(1)
    rig.leases.cancel([(0, 2)], rig.now_ms)
    assert (rig.stats().done, rig.stats().delayed) == (2, 1)
    rig.leases.working_copy.trim(3)
    assert (rig.stats().done, rig.stats().lost) == (2, 1)


def test_a_delay_counts_by_the_clock_though_the_time_of_the_log_is_ahead() -> None:
    rig = Rig()
    rig.put(1)
    rig.now_ms -= MINUTES_MS
    at = rig.put(1, delay_ms=1_000)
    assert rig.polled() == [0]
    rig.later(1_000)
    assert rig.polled() == [at]


def test_what_was_due_waits_again_when_the_clock_goes_back() -> None:
    rig = Rig()
    rig.put(3, delay_ms=1_000)
    rig.later(1_000)
    assert rig.polled(1) == [0]
    rig.now_ms -= 1
    assert rig.polled() == []
    assert rig.stats().delayed == 2
    assert rig.leases.alarm_ms(rig.now_ms, rig.now_ms) == 1
    rig.now_ms += 1
    assert rig.polled() == [1, 2]


def test_flattening_leaves_no_half_of_a_delayed_batch_behind(monkeypatch) -> None:
    monkeypatch.setattr(priority_index, "STRETCHES_MAX", 2)
    monkeypatch.setattr(partition, "_FLATTEN_EVERY", 1)
    rig = Rig()
    rig.put(1, priority=1)
    rig.put(6, delay_ms=1)
    rig.now_ms += 2 * priority_index.CLOCK_ERROR_MS_MAX
    for priority in (2, 3, 2, 3):
        rig.put(1, priority=priority)
    assert rig.partition.priority_index.flat_end > 0
    assert rig.polled() == list(range(11))


def test_a_flattened_message_is_not_given_out_twice_in_one_poll(monkeypatch) -> None:
    monkeypatch.setattr(priority_index, "STRETCHES_MAX", 2)
    monkeypatch.setattr(partition, "_FLATTEN_EVERY", 1)
    rig = Rig()
    rig.put(4, priority=5)
    leased = rig.take()
    rig.commit()
    for priority in (1, 2, 1):
        rig.put(1, priority=priority)
    assert rig.partition.priority_index.flat_end > 0
    rig.leases.release("g", leased.lease, None)
    assert sorted(rig.polled()) == list(range(7))


def test_delayed_batches_that_everybody_has_passed_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quivermq.queue.priority_index.DELAYED_MANY", 10)
    monkeypatch.setattr("quivermq.queue.partition._FLATTEN_EVERY", 1)
    rig = Rig()
    for _ in range(100):
        rig.put(1, delay_ms=10)
        rig.now_ms += priority_index.CLOCK_ERROR_MS_MAX + 10
        rig.leases.acknowledge("g", rig.take(1).lease, None)
        rig.commit()
    assert len(rig.partition.priority_index.delayed) < 20
    assert rig.stats().done == 100
    assert len(rig.polled(200, group="another")) == 100


def test_delays_that_are_long_over_are_forgotten_when_there_are_many(monkeypatch) -> None:
    monkeypatch.setattr(priority_index, "DELAYED_MAX", 20)
    monkeypatch.setattr(priority_index, "DELAYED_MANY", 10)
    monkeypatch.setattr(partition, "_FLATTEN_EVERY", 1)
    rig = Rig()
    for _ in range(20):
        rig.put(1, delay_ms=1)
    assert not rig.partition.priority_index.takes_delayed
    rig.later(2 * priority_index.CLOCK_ERROR_MS_MAX)
    rig.put(1)
    assert rig.partition.priority_index.takes_delayed
    assert rig.polled() == list(range(21))
