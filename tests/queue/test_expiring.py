"""Groups that nobody uses: what may be forgotten of them, and what stays."""

import pytest

from quivermq.errors import InvalidRequest
from tests.queue.rig import VISIBILITY_MS, Rig


def test_a_group_that_is_forgotten_leaves_nothing_and_begins_anew() -> None:
    rig = Rig()
    rig.put(4)
    leased = rig.take(3)
    assert rig.leases.acknowledge("g", leased.lease, None) == []
    assert rig.leases.expire_group("g", rig.now_ms)
    rig.commit()
    rig.restart()
    assert not rig.partition.groups.by_name
    with pytest.raises(InvalidRequest):
        rig.leases.acknowledge("g", leased.lease, [(0, 3)])
    assert rig.polled() == [0, 1, 2, 3]


def test_committed_offsets_and_claims_stay() -> None:
    rig = Rig()
    rig.put(4)
    rig.leases.working_copy.commit("g", 2)
    rig.leases.working_copy.claim("g", 7)
    leased = rig.take(1)
    assert [piece.start for piece in leased.pieces] == [2]
    rig.leases.acknowledge("g", leased.lease, None)
    assert rig.leases.expire_group("g", rig.now_ms)
    rig.commit()
    rig.restart()
    (group,) = rig.partition.groups.by_name.values()
    assert (group.is_shared, group.committed, group.claimed) == (False, 2, 7)
    assert (group.floor, len(group.done), group.totals.done, group.cursors[0]) == (0, 0, 0, 0)
    # It goes on from what it committed, and an ack of before ends nothing.
    assert rig.polled(1) == [2]
    assert rig.leases.acknowledge("g", leased.lease, [(3, 4)]) == [(3, 4)]


def test_a_group_that_only_committed_is_not_forgotten() -> None:
    rig = Rig()
    rig.leases.working_copy.commit("reader", 3)
    with pytest.raises(InvalidRequest):
        rig.leases.expire_group("reader", rig.now_ms)


def test_what_is_under_way_is_waited_for() -> None:
    rig = Rig()
    rig.put(3)
    leased = rig.take(3)
    assert not rig.leases.expire_group("g", rig.now_ms), "a lease"
    rig.leases.acknowledge("g", leased.lease, [(0, 1)])
    rig.leases.fail("g", leased.lease, [(1, 2)], 5_000, rig.now_ms)
    rig.leases.reject("g", leased.lease, [(2, 3)], "bad", rig.now_ms)
    assert not rig.leases.expire_group("g", rig.now_ms), "a delay, and a dead letter"
    rig.later(5_000)
    assert not rig.leases.expire_group("g", rig.now_ms), "a dead letter"
    rig.commit()
    ((_, record),) = rig.leases.dead_letters.dying()
    rig.leases.dead_letters.bury("g", record.number)
    # What came back and waits for nobody in particular does not keep a group that nobody uses.
    assert rig.leases.expire_group("g", rig.now_ms)
    rig.commit()


def test_a_message_that_is_delayed_keeps_its_group() -> None:
    rig = Rig()
    rig.put(1, delay_ms=VISIBILITY_MS)
    assert rig.polled() == []
    assert not rig.leases.expire_group("g", rig.now_ms)
    rig.later(VISIBILITY_MS)
    assert rig.leases.expire_group("g", rig.now_ms)


def test_a_group_that_a_lost_leader_forgot_is_still_there() -> None:
    rig = Rig()
    rig.put(2)
    leased = rig.take(1)
    rig.leases.acknowledge("g", leased.lease, None)
    rig.commit()
    assert rig.leases.expire_group("g", rig.now_ms)
    rig.change_leader()
    assert rig.polled() == [1]
