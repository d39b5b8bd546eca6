"""Why messages failed is kept with them, within bounds, and costs nothing without one."""

import pytest

from quivermq.queue import TopicSettings, failure_reasons
from tests.queue.rig import Rig


def fail(rig: Rig, reason: str = "", most: int = 100) -> None:
    """The next messages fail, and come again at once."""
    taken = rig.take(most)
    rig.leases.fail("g", taken.lease, None, 0, rig.now_ms, reason=reason)
    rig.commit()


def letters(rig: Rig) -> dict[tuple[int, int], str]:
    """The reasons that the dead letters tell."""
    dying = rig.partition.groups.by_name["g"].dying.values()
    return {(record.start, record.end): record.reason for record in dying}


def test_the_last_reason_goes_into_the_dead_letter() -> None:
    rig = Rig(TopicSettings(max_deliveries=3))
    rig.put(2)
    for reason in ("first", "second", "ValueError: no stock"):
        fail(rig, reason)
    assert letters(rig) == {(0, 2): "failed 3 times; the last time: ValueError: no stock"}
    assert not len(rig.partition.groups.by_name["g"].reasons)


def test_an_earlier_reason_is_told_where_the_last_failure_had_none() -> None:
    rig = Rig(TopicSettings(max_deliveries=2))
    rig.put(3)
    taken = rig.take()
    rig.leases.fail("g", taken.lease, [(1, 2)], 0, rig.now_ms, reason="no stock")
    rig.leases.fail("g", taken.lease, [(0, 1), (2, 3)], 0, rig.now_ms)
    rig.take()
    rig.later(60_000)
    rig.commit()
    told = "lease expired 2 times; before that: no stock"
    assert letters(rig) == {
        (0, 1): "lease expired 2 times",
        (1, 2): told,
        (2, 3): "lease expired 2 times",
    }


def test_the_next_consumer_is_told_also_after_a_restart() -> None:
    rig = Rig()
    rig.put(3)
    taken = rig.take()
    rig.leases.fail("g", taken.lease, [(1, 2)], 0, rig.now_ms, reason="näh")
    rig.leases.release("g", taken.lease, None)
    rig.commit()
    rig.restart()
    assert [tuple(known) for known in rig.take().reasons] == [(1, 2, "näh")]


def test_reasons_are_forgotten_with_their_messages() -> None:
    rig = Rig()
    rig.put(4)
    fail(rig, "no stock")
    taken = rig.take()
    rig.leases.acknowledge("g", taken.lease, [(0, 1), (2, 3)])
    rig.commit()
    known = rig.partition.groups.by_name["g"].reasons
    assert [(one.start, one.end) for one in known] == [(1, 2), (3, 4)]
    rig.leases.seek("g", 0)
    rig.commit()
    assert not len(rig.partition.groups.by_name["g"].reasons)


def test_a_failure_without_a_reason_is_stored_as_it_always_was() -> None:
    silent, told = Rig(), Rig()
    for rig, reason in ((silent, ""), (told, "why")):
        rig.put(1)
        taken = rig.take()
        rig.commit()
        rig.leases.fail("g", taken.lease, None, 0, rig.now_ms, reason=reason)
    (plain,) = silent.leases.working_copy.take_operations()
    (longer,) = told.leases.working_copy.take_operations()
    assert longer == plain[:-1] + b',"why"]'


def test_below_its_feature_level_a_reason_is_in_the_dead_letter_alone() -> None:
    rig = Rig(TopicSettings(max_deliveries=2))
    rig.put(1)
    for _ in range(2):
        taken = rig.take()
        rig.leases.fail(
            "g", taken.lease, None, 0, rig.now_ms, reason="no stock", keeps_reason=False
        )
        assert b"no stock" not in b"".join(rig.leases.working_copy.operations[:-1])
        assert not len(rig.leases.working_copy.groups.by_name["g"].reasons)
    rig.commit()
    assert letters(rig) == {(0, 1): "failed 2 times; the last time: no stock"}


def test_long_reasons_are_cut_and_of_many_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_reasons, "REASONS_MAX", 3)
    rig = Rig()
    rig.put(10)
    taken = rig.take()
    for at in range(5):
        rig.leases.fail("g", taken.lease, [(at, at + 1)], 0, rig.now_ms, reason=f"{at}" * 300)
    rig.commit()
    known = list(rig.partition.groups.by_name["g"].reasons)
    assert [(one.start, len(one.reason)) for one in known] == [(2, 200), (3, 200), (4, 200)]


def test_a_full_state_takes_failures_and_no_reasons() -> None:
    rig = Rig()
    rig.put(2)
    taken = rig.take()
    rig.leases.working_copy._state_bytes_max = 2
    rig.leases.fail("g", taken.lease, [(0, 1)], 0, rig.now_ms, reason="no stock")
    assert not len(rig.leases.working_copy.groups.by_name["g"].reasons)


def test_neighbours_that_failed_alike_are_one_entry() -> None:
    rig = Rig()
    rig.put(100)
    taken = rig.take()
    for at in (0, 2, 1, 5):
        rig.leases.fail("g", taken.lease, [(at, at + 1)], 0, rig.now_ms, reason="no stock")
    known = rig.leases.working_copy.groups.by_name["g"].reasons
    assert [(one.start, one.end) for one in known] == [(0, 3), (5, 6)]
