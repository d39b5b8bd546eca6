"""Linearizable reads without the log: thesis §6.4, paper §8."""

import pytest

from quivermq.errors import InvalidRequest, NotLeader, Overloaded
from quivermq.raft import Configuration, Message, MessageKind, Options, RawNode, ReadState, Role
from tests.raft.group import CALM, Group, acked, change, elected, node_with, of_kind, settle, step


def heartbeat_reply(node: RawNode, member: int, round_: int) -> list[ReadState]:
    """Let a member answer a heartbeat; returns the reads that are answered by it."""
    node.step(
        Message(MessageKind.HEARTBEAT_REPLY, node.id, member, node.replica.term, round=round_)
    )
    return answered(node)


def answered(node: RawNode) -> list[ReadState]:
    states = list(node.replica.read_states)
    settle(node)
    return states


def leading(size: int = 3, options: Options = CALM) -> RawNode:
    """A leader that has committed its first entry at index 1."""
    voters = tuple(range(1, size + 1))
    needed = range(2, size // 2 + 2)
    node = elected(node_with(voters=voters, options=options), *needed)
    for member in needed:
        acked(node, member, 1)
    assert node.replica.log.committed == 1
    return node


def test_a_read_waits_until_a_quorum_confirms_the_leader() -> None:
    node = leading(5)
    node.read_index(b"r")
    rounds = {m.round for m in of_kind(settle(node), MessageKind.HEARTBEAT)}
    assert rounds == {1}
    assert heartbeat_reply(node, 2, 1) == []
    assert heartbeat_reply(node, 2, 1) == [], "one member counts once"
    assert heartbeat_reply(node, 3, 1) == [ReadState(b"r", 1)]


def test_an_answer_to_an_earlier_heartbeat_confirms_nothing() -> None:
    node = leading(3)
    node.tick()
    settle(node)
    node.read_index(b"r")
    settle(node)
    assert heartbeat_reply(node, 2, 0) == []


def test_an_answer_to_a_round_confirms_the_rounds_before_it() -> None:
    node = leading(3)
    node.read_index(b"a")
    settle(node)
    node.read_index(b"b")
    settle(node)
    assert heartbeat_reply(node, 2, 2) == [ReadState(b"a", 1), ReadState(b"b", 1)]


def test_an_answer_to_a_round_does_not_confirm_the_rounds_after_it() -> None:
    node = leading(3)
    node.read_index(b"a")
    settle(node)
    node.read_index(b"b")
    settle(node)
    assert heartbeat_reply(node, 2, 1) == [ReadState(b"a", 1)]


def test_reads_that_arrive_before_the_heartbeats_leave_share_a_round() -> None:
    node = leading(3)
    node.read_index(b"a")
    node.read_index(b"b")
    assert len(of_kind(settle(node), MessageKind.HEARTBEAT)) == 2, "one for each of two members"
    assert heartbeat_reply(node, 3, 1) == [ReadState(b"a", 1), ReadState(b"b", 1)]


def test_a_read_sees_what_was_committed_when_it_arrived() -> None:
    node = leading(3)
    node.propose(b"x")
    settle(node)
    node.read_index(b"r")
    settle(node)
    acked(node, 2, 2)
    assert heartbeat_reply(node, 2, 1) == [ReadState(b"r", 1)]


def test_a_leader_answers_no_read_before_it_commits_in_its_own_term() -> None:
    """Its commit index may be behind one that the leader before it has acknowledged."""
    node = elected(node_with(1, 1, term=1, commit=1), 2)
    node.read_index(b"r")
    assert of_kind(settle(node), MessageKind.HEARTBEAT) == []
    node.tick()
    settle(node)
    assert heartbeat_reply(node, 2, 0) == []
    acked(node, 2, 3)
    assert heartbeat_reply(node, 2, 1) == [ReadState(b"r", 3)]


def test_even_a_group_of_one_waits_for_its_first_commit() -> None:
    node = node_with(1, 1, 1, voters=(1,), commit=1)
    node.campaign()
    ready = node.ready()
    assert ready is not None
    node.advance()
    assert node.replica.role is Role.LEADER
    node.read_index(b"r")
    assert node.replica.read_states == []
    states = []
    storage = node.replica.log.storage
    while (ready := node.ready()) is not None:
        states += ready.read_states
        storage.append(ready.entries)
        node.advance()
    assert states == [ReadState(b"r", 4)]


def test_a_deposed_leader_answers_no_read() -> None:
    node = leading(3)
    node.read_index(b"r")
    settle(node)
    step(node, Message(MessageKind.VOTE, 1, 3, 2, 9, 9))
    assert heartbeat_reply(node, 2, 1) == []
    assert len(node.replica.reads) == 0


def test_learners_do_not_confirm_a_leader() -> None:
    node = leading(3)
    node.apply_membership(change("l4"))
    node.apply_membership(change("l5"))
    settle(node)
    node.read_index(b"r")
    settle(node)
    assert heartbeat_reply(node, 4, 1) == []
    assert heartbeat_reply(node, 5, 1) == []


def test_in_a_joint_configuration_both_halves_confirm() -> None:
    group = Group(5, configuration=Configuration((1, 2, 3), (1, 4, 5)))
    node = group.elect(1)
    node.read_index(b"r")
    settle(node)
    assert heartbeat_reply(node, 2, 1) == []
    assert heartbeat_reply(node, 3, 1) == []
    assert heartbeat_reply(node, 4, 1) == [ReadState(b"r", 2)]


def test_a_lost_heartbeat_is_made_good_by_the_next() -> None:
    node = leading(3)
    node.read_index(b"r")
    settle(node)
    node.tick()
    rounds = {m.round for m in of_kind(settle(node), MessageKind.HEARTBEAT)}
    assert rounds == {1}


def test_a_follower_asks_the_leader_and_answers_once_it_has_applied() -> None:
    group = Group(3)
    group.elect(1)
    group.propose(1, b"x")
    group.nodes[2].read_index(b"r")
    group.pump()
    assert group.reads[2] == [ReadState(b"r", 3)]
    assert group.reads[1] == []


def test_a_read_without_a_leader_is_refused() -> None:
    node = node_with()
    with pytest.raises(NotLeader):
        node.read_index(b"r")
    node.campaign()
    with pytest.raises(NotLeader):
        node.read_index(b"r")


def test_a_read_meant_for_a_leader_that_was_is_dropped() -> None:
    node = node_with()
    node.step(Message(MessageKind.READ, 1, 2, context=b"r"))
    assert settle(node) == []


def test_waiting_reads_are_bounded() -> None:
    node = leading(3, Options(prevote=False, check_quorum=False, reads_pending_max=2))
    node.read_index(b"a")
    node.read_index(b"b")
    with pytest.raises(Overloaded, match="2 reads"):
        node.read_index(b"c")
    node.step(Message(MessageKind.READ, 1, 2, context=b"of a follower"))
    assert len(node.replica.reads) == 2


def test_lease_reads_are_answered_at_once_and_need_check_quorum() -> None:
    node = leading(3, Options(prevote=False, lease_reads=True))
    node.read_index(b"r")
    assert answered(node) == [ReadState(b"r", 1)]
    with pytest.raises(InvalidRequest, match="check_quorum"):
        Options(check_quorum=False, lease_reads=True)


def test_with_lease_reads_a_follower_does_not_forget_its_leader() -> None:
    group = Group(3, options=Options(prevote=False, lease_reads=True))
    group.elect(1)
    group.nodes[2].forget_leader()
    assert group.nodes[2].replica.leader == 1
