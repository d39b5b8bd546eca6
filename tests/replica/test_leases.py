"""Consumers at a replica: what is said at the lease manager is replicated, gathered, and waited
for."""

from random import Random

import pytest

from quivermq.batches import Index
from quivermq.errors import NotLeader, Overloaded
from quivermq.queue import GrantedLease, LeaseManager, LeaseRequest, Partition
from quivermq.replica import Changed, ReplicaSettings, proposal_queue
from tests.replica.group import Group, Node


def lease(
    group: Group, node: Node, most: int = 10, token: int | None = None
) -> GrantedLease | None:
    now_ms = group.now_ms

    def act(leases: LeaseManager) -> GrantedLease | None:
        leases.working_copy.open_group("g", 0)
        return leases.lease(
            LeaseRequest("g", 1, most, 1000), node.replica.edge.next_offset, now_ms, now_ms
        )

    return node.replica.with_leases(act, token, now_ms, now_ms)


def acknowledge(
    group: Group, node: Node, leased: GrantedLease, token: int
) -> list[tuple[int, int]]:
    def act(leases: LeaseManager) -> list[tuple[int, int]]:
        return leases.acknowledge("g", leased.lease, None)

    return node.replica.with_leases(act, token, group.now_ms, group.now_ms)


def floors(group: Group) -> list[int]:
    return [node.replica.groups.by_name["g"].floor for node in group.nodes.values()]


def test_a_lease_is_given_at_once_and_known_to_all_replicas_afterwards() -> None:
    group = Group(3)
    leader = group.leader()
    group.produce(leader)
    group.settle()
    leased = lease(group, leader)
    assert leased is not None
    assert not leader.replica.groups.by_name, "nothing is committed yet"
    group.tick(2)
    for node in group.nodes.values():
        assert list(node.replica.groups.by_name["g"].leases) == [leased.lease]


def test_an_ack_is_answered_when_it_is_committed() -> None:
    group = Group(3)
    leader = group.leader()
    group.produce(leader)
    leased = lease(group, leader)
    assert leased is not None
    group.settle()
    group.isolate(leader.member)
    token = group.token()
    assert acknowledge(group, leader, leased, token) == []
    group.settle()
    assert token not in leader.answers
    group.heal()
    group.tick(2)
    assert leader.answers[token] == Changed()
    assert floors(group) == [1, 1, 1]


def test_a_repeated_ack_waits_for_the_first_one() -> None:
    group = Group(3)
    leader = group.leader()
    group.produce(leader)
    leased = lease(group, leader)
    assert leased is not None
    group.settle()
    group.isolate(leader.member)
    tokens = [group.token(), group.token()]
    for token in tokens:
        assert acknowledge(group, leader, leased, token) == []
        group.settle()
    assert not set(tokens) & set(leader.answers)
    group.heal()
    group.tick(2)
    assert [leader.answers[token] for token in tokens] == [Changed(), Changed()]


def test_a_request_that_changes_nothing_is_answered_without_an_entry() -> None:
    group = Group(3)
    leader = group.leader()
    token = group.token()
    assert (
        leader.replica.with_leases(lambda leases: leases.working_copy.committed("g"), token, 0, 0)
        is None
    )
    group.settle()
    assert leader.answers[token] == Changed()


def test_what_comes_up_together_is_one_entry() -> None:
    group = Group(1)
    leader = group.leader()
    for _ in range(20):
        group.produce(leader)
    group.settle()
    before = leader.replica.commit_index
    tokens = [group.token() for _ in range(10)]
    for token in tokens:
        leased = lease(group, leader, 2)
        assert leased is not None
        acknowledge(group, leader, leased, token)
    group.settle()
    assert all(leader.answers[token] == Changed() for token in tokens)
    assert leader.replica.commit_index == before + 1


def test_a_new_leader_knows_the_leases_that_were_committed() -> None:
    group = Group(3)
    leader = group.leader()
    for _ in range(4):
        group.produce(leader)
    group.settle()
    kept = lease(group, leader, 2)
    group.tick(2)
    group.isolate(leader.member)
    lost = lease(group, leader, 1)
    assert kept is not None
    assert lost is not None
    group.tick(40)
    successor = next(node for node in group.nodes.values() if node.replica.is_serving)
    assert successor is not leader
    rest = lease(group, successor)
    assert rest is not None
    assert [piece[:2] for piece in rest.pieces] == [(2, 4)]
    group.heal()
    group.tick(3)
    token = group.token()
    with pytest.raises(NotLeader):
        acknowledge(group, leader, kept, token)
    assert acknowledge(group, successor, kept, token) == []
    assert acknowledge(group, successor, lost, group.token()) == [], "nothing of it is held"
    group.tick(2)
    assert floors(group) == [2, 2, 2]


def test_a_request_that_waits_when_leadership_is_lost_is_answered() -> None:
    group = Group(3)
    leader = group.leader()
    group.produce(leader)
    leased = lease(group, leader)
    assert leased is not None
    group.settle()
    group.isolate(leader.member)
    token = group.token()
    acknowledge(group, leader, leased, token)
    group.tick(40)
    assert "outcome is unknown" in str(leader.answers[token])


def test_leases_are_refused_when_too_much_waits_for_a_commit() -> None:
    group = Group(3, ReplicaSettings(proposals_max=5))
    leader = group.leader()
    for _ in range(4):
        group.produce(leader)
    group.isolate(leader.member)
    for _ in range(5):
        leader.replica.with_leases(lambda leases: leases.working_copy.commit("g", 1), None, 0, 0)
        leader.replica.take_effects()
    with pytest.raises(Overloaded, match="5 requests"):
        lease(group, leader)


def test_what_the_core_refuses_was_never_said() -> None:
    group = Group(3, ReplicaSettings(uncommitted_bytes_max=600))
    leader = group.leader()
    group.produce(leader)
    group.settle()
    group.isolate(leader.member)
    taken = []

    def commit_on_and_on() -> None:
        for _ in range(20):
            token = group.token()
            leader.replica.with_leases(
                lambda leases: leases.working_copy.commit("g", 7), token, 0, 0
            )
            group.settle()
            taken.append(token)

    with pytest.raises(Overloaded, match="of 600 bytes"):
        commit_on_and_on()
    group.heal()
    group.tick(3)
    assert all(leader.answers[token] == Changed() for token in taken)
    assert (
        leader.replica.with_leases(lambda leases: leases.working_copy.committed("g"), None, 0, 0)
        == 7
    )


def test_what_one_act_says_is_as_many_entries_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposal_queue, "_GATHERED_BYTES_MAX", 100)
    proposals = proposal_queue.ProposalQueue(Partition(), ReplicaSettings(), Random(7))

    def say_much(leases: LeaseManager) -> None:
        for number in range(50):
            leases.working_copy.commit(f"group-{number}", number)

    _, is_waiting = proposals.serve(say_much, 7, 0, 0)
    frames = proposals.stamp_waiting(1, Index(1))
    assert is_waiting
    assert len(frames) > 10
    assert max(len(frame.body) for frame in frames) < 200
    # Who waits hears of the last of them.
    answered = [proposals.finish(frame.header) for frame in frames]
    assert answered == [[]] * (len(frames) - 1) + [[7]]
