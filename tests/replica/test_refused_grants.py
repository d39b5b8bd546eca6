"""Nothing is leased that cannot be proposed, and whatever was leased is proposed."""

from collections.abc import Callable

import pytest

from quivermq.errors import NotLeader, Overloaded, QuiverError
from quivermq.queue import GrantedLease, LeaseManager, LeaseRequest
from quivermq.replica import Changed, ReplicaSettings
from tests.replica.group import Group, Node, batch

SMALL = ReplicaSettings(uncommitted_bytes_max=3_000)


def stage() -> tuple[Group, Node]:
    group = Group(3, SMALL)
    leader = group.leader()
    for number in range(20):
        group.produce(leader, batch(b"m%d" % number))
    leader.replica.with_leases(
        lambda leases: leases.working_copy.open_group("g", 0), group.token(), group.now_ms, 0
    )
    group.settle()
    return group, leader


def poll(group: Group, node: Node, consumer: int, *, auto_ack: bool = False) -> list[int]:
    leased = lease(group, node, consumer, auto_ack=auto_ack)
    return [at for piece in leased.pieces for at in range(piece.start, piece.end)]


def lease(group: Group, node: Node, consumer: int, *, auto_ack: bool = False) -> GrantedLease:
    end, now_ms = node.replica.edge.next_offset, group.now_ms
    ask = LeaseRequest("g", consumer, 2, 30_000, auto_ack)
    found = node.replica.with_leases(
        lambda leases: leases.lease(ask, end, now_ms, 0), None, now_ms, 0
    )
    assert found is not None
    return found


def hand_over(group: Group, leader: Node) -> None:
    """To somebody who cannot take it."""
    heir = next(member for member in group.nodes if member != leader.member)
    group.isolate(heir)
    leader.replica.transfer_leader(heir)
    group.settle()


def fill(group: Group, leader: Node) -> None:
    """Followers whose disks are slow: nothing is committed."""
    for node in group.nodes.values():
        node.is_held = node is not leader
    for _ in range(8):
        leader.replica.produce(group.token(), batch(b"x" * 700), group.now_ms)
        group.settle()


@pytest.mark.parametrize(
    ("trouble", "error"), [(hand_over, NotLeader), (fill, Overloaded)], ids=["transfer", "full"]
)
def test_no_message_is_given_to_two_consumers_while_proposals_are_refused(
    trouble: Callable[[Group, Node], None], error: type[QuiverError]
) -> None:
    group, leader = stage()
    before = lease(group, leader, 99)
    trouble(group, leader)
    given: list[int] = []
    refusals = 0
    for consumer in range(1, 60):
        try:
            given += poll(group, leader, consumer, auto_ack=consumer % 2 == 0)
        except error:
            refusals += 1
        # 5 ms later: the grant is proposed.
        group.settle()
    assert refusals
    assert len(given) == len(set(given))
    assert not set(given) & {0, 1}
    acted: list[Callable[[LeaseManager], object]] = [
        lambda leases: leases.acknowledge("g", before.lease, [(0, 2)]),
        lambda leases: leases.reject("g", before.lease, [(0, 1)], "bad", 0),
        lambda leases: leases.seek("g", 0),
        lambda leases: leases.expire(group.now_ms + 60_000, 60_000),
    ]
    for act in acted:
        with pytest.raises(error):
            leader.replica.with_leases(act, group.token(), group.now_ms, 0)
    # It passes: what was given is known to all, and its lease ends as ever.
    for node in group.nodes.values():
        node.is_held = False
    group.heal()
    group.tick(30)
    leader = group.leader()
    token = group.token()
    lost = leader.replica.with_leases(
        lambda leases: leases.acknowledge("g", before.lease, [(0, 2)], 99), token, group.now_ms, 0
    )
    group.tick(2)
    assert (lost, leader.answers[token]) == ([], Changed())
    for node in group.nodes.values():
        held = node.replica.groups.by_name["g"]
        pieces = [piece for each in held.leases.values() for piece in each.pieces]
        known = {at for start, end, *_ in pieces for at in range(start, end)}
        known |= {at for start, end in held.done for at in range(start, end)} | set(
            range(held.floor)
        )
        assert set(given) <= known


def test_what_was_leased_while_there_was_room_is_proposed_when_there_is_none() -> None:
    group, leader = stage()
    for node in group.nodes.values():
        node.is_held = node is not leader
    leader.replica.produce(group.token(), batch(b"x" * 2_600), group.now_ms)
    group.settle()
    # One turn: a lease, an ack that joins its entry, and batches before and behind that do not fit.
    refused = [group.token(), group.token()]
    leader.replica.produce(refused[0], batch(b"y" * 700, producer=7), group.now_ms)
    leased = lease(group, leader, 1)
    ack = group.token()
    leader.replica.with_leases(
        lambda leases: leases.acknowledge("g", leased.lease, [(0, 1)], 1), ack, group.now_ms, 0
    )
    leader.replica.produce(refused[1], batch(b"z" * 700, producer=7, sequence=1), group.now_ms)
    group.settle()
    assert [type(leader.answers[token]) for token in refused] == [Overloaded, Overloaded]
    assert ack not in leader.answers
    for node in group.nodes.values():
        node.is_held = False
    group.tick(3)
    assert leader.answers[ack] == Changed()
    for node in group.nodes.values():
        known = node.replica.groups.by_name["g"]
        assert known.floor == 1
        assert list(known.leases) == [leased.lease]
    # Its producer goes on where it was.
    token = group.produce(leader, batch(b"y", producer=7))
    assert leader.answers[token].base_offset == 21


def test_what_was_leased_before_a_transfer_goes_with_it() -> None:
    group, leader = stage()
    leased = lease(group, leader, 1)
    heir = next(member for member in group.nodes if member != leader.member)
    leader.replica.transfer_leader(heir)
    group.settle()
    group.tick(3)
    successor = group.leader()
    assert successor.member == heir
    assert list(successor.replica.groups.by_name["g"].leases) == [leased.lease]
    with pytest.raises(NotLeader):
        lease(group, leader, 2)
