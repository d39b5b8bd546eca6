"""Whoever settles what was not leased to them, by this number and for these messages, settles
nothing: whatever they name, and whoever leads."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from quivermq.queue import GrantedLease, LeaseManager
from quivermq.queue.lease_manager import LeaseRequest
from tests.queue.rig import Rig

Intervals = list[tuple[int, int]]
Settle = Callable[[LeaseManager, int, Intervals, int], Intervals]

OWNER, OTHER = 1, 2
VERBS: dict[str, Settle] = {
    "ack": lambda leases, lease, parts, by: leases.acknowledge("g", lease, parts, by),
    "nack": lambda leases, lease, parts, by: leases.fail("g", lease, parts, 0, 0, by),
    "reject": lambda leases, lease, parts, by: leases.reject("g", lease, parts, "bad", 0, by),
    "release": lambda leases, lease, parts, by: leases.release("g", lease, parts, by),
}
verbs = pytest.mark.parametrize("settle", VERBS.values(), ids=VERBS)


def refused(rig: Rig, settle: Settle, lease: int, parts: Intervals, by: int = OWNER) -> None:
    """All of it is lost, and nothing has changed."""
    before = rig.leases.working_copy.groups.pack()
    expected = sorted({at for low, high in parts for at in range(low, min(high, 100))})
    lost = settle(rig.leases, lease, parts, by)
    assert sorted({at for low, high in lost for at in range(low, min(high, 100))}) == expected
    assert not rig.leases.extend("g", lease, 1_000, rig.now_ms, by)
    assert rig.leases.working_copy.groups.pack() == before
    assert not rig.leases.working_copy.has_operations


@verbs
def test_numbers_that_were_never_given_settle_nothing(settle: Settle) -> None:
    rig = Rig()
    rig.put(20)
    leased = rig.take(5)
    rig.commit()
    guesses = (-1, 0, 1, leased.lease - 1, leased.lease + 1, 1 << 32, (1 << 32) + 1, 1 << 63)
    for leader in range(2):
        for guess in guesses:
            refused(rig, settle, guess, [(0, 15)])
            refused(rig, settle, guess, [(0, 1 << 63)])
        if not leader:
            rig.restart()


@verbs
def test_a_lease_of_another_consumer_settles_nothing_also_when_it_is_over(settle: Settle) -> None:
    rig = Rig()
    rig.put(4)
    leased = rig.take()
    rig.commit()
    refused(rig, settle, leased.lease, [(0, 4)], by=OTHER)
    rig.restart()
    refused(rig, settle, leased.lease, [(0, 4)], by=OTHER)
    rig.later(30_000)
    rig.commit()
    refused(rig, settle, leased.lease, [(0, 4)], by=OTHER)
    # Its own is accepted, by the next leader too, since nobody has them yet.
    rig.restart()
    assert rig.leases.acknowledge("g", leased.lease, [(0, 4)], OWNER) == []
    rig.commit()
    refused(rig, settle, leased.lease, [(0, 4)], by=OTHER)
    rig.restart()
    assert rig.leases.acknowledge("g", leased.lease, [(0, 4)], OWNER) == [], "a repeat is known"


@verbs
def test_a_lease_of_another_group_or_partition_settles_nothing(settle: Settle) -> None:
    rig, elsewhere = Rig(), Rig()
    elsewhere.dice.seed(8)
    for each in (rig, elsewhere):
        each.put(4)
        each.leases.working_copy.open_group("g", 0)
    rig.leases.working_copy.open_group("other", 0)
    of_group = rig.poll(group="other")
    of_partition = elsewhere.poll()
    assert of_group is not None
    assert of_partition is not None
    rig.commit()
    refused(rig, settle, of_group.lease, [(0, 4)])
    refused(rig, settle, of_partition.lease, [(0, 4)])


@verbs
def test_only_what_was_leased_is_settled_however_it_is_named(settle: Settle) -> None:
    rig = Rig()
    rig.put(20)
    first, second = rig.take(5), rig.take(5)
    named = [(12, 40), (3, 7), (0, 2), (0, 2), (4, 6), (3, 3), (9, 11)]
    lost = settle(rig.leases, first.lease, named, OWNER)
    assert lost == [(5, 7), (9, 11), (12, 40)]
    group = rig.leases.working_copy.groups.by_name["g"]
    assert [piece[:2] for piece in group.leases[first.lease].pieces] == [(2, 3)]
    assert [piece[:2] for piece in group.leases[second.lease].pieces] == [(5, 10)]
    rig.commit()


def test_an_earlier_holder_of_a_message_cannot_settle_it() -> None:
    rig = Rig()
    rig.put(2)
    first = rig.take()
    rig.later(30_000)
    second = rig.poll(consumer=OTHER)
    assert second is not None
    rig.later(30_000)
    rig.commit()
    rig.restart()
    assert rig.leases.acknowledge("g", first.lease, [(0, 2)], OWNER) == [(0, 2)]
    assert rig.leases.acknowledge("g", second.lease, [(0, 2)], OTHER) == []
    assert rig.stats().done == 2


def test_an_ack_of_all_that_is_left_is_not_confirmed_for_what_was_lost() -> None:
    rig = Rig()
    rig.put(5)
    leased = rig.take()
    known = rig.leases.working_copy.groups.by_name["g"]
    assert rig.leases.acknowledge("g", leased.lease, [(0, 2)], OWNER) == []
    assert known.is_known(OWNER, leased.lease)
    rig.later(30_000)
    rig.commit()
    rig.restart()
    assert not rig.leases.working_copy.groups.by_name["g"].is_known(OWNER, leased.lease)
    whole = rig.poll(3, consumer=OTHER)
    assert whole is not None
    assert rig.leases.acknowledge("g", whole.lease, None, OTHER) == []
    assert rig.leases.working_copy.groups.by_name["g"].is_known(OTHER, whole.lease), (
        "a repeat is known"
    )
    assert not rig.leases.working_copy.groups.by_name["g"].is_known(OWNER, whole.lease)


def test_numbers_of_leases_do_not_follow_from_each_other() -> None:
    rig = Rig()
    rig.put(64)
    numbers = [leased_one(rig).lease for _ in range(64)]
    assert len(set(numbers)) == 64
    steps = {after - before for before, after in pairwise(numbers)}
    assert len(steps) == 63
    assert all(0 < number < 1 << 63 for number in numbers)
    assert max(numbers) > 1 << 60


def leased_one(rig: Rig) -> GrantedLease:
    rig.leases.working_copy.open_group("g", 0)
    found = rig.leases.lease(LeaseRequest("g", OWNER, 1, 1_000), rig.end, rig.now_ms, rig.now_ms)
    assert found is not None
    return found
