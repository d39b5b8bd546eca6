"""Handing over leadership: thesis §3.10."""

import pytest

from quivermq.errors import NotLeader
from quivermq.raft import Message, MessageKind, Options, Role
from tests.raft.group import CALM, Group, acked, change, elected, node_with, of_kind, settle, step


def test_an_up_to_date_target_is_told_to_campaign_at_once() -> None:
    group = Group(3, options=Options())
    group.elect(1)
    group.nodes[1].transfer_leader(3)
    group.pump()
    assert group.nodes[3].replica.role is Role.LEADER, "although all others hear a leader"
    assert group.nodes[1].replica.role is Role.FOLLOWER


def test_a_target_that_is_behind_is_brought_up_to_date_first() -> None:
    node = elected(node_with(1), 2)
    acked(node, 2, 2)
    node.transfer_leader(3)
    assert of_kind(settle(node), MessageKind.TIMEOUT_NOW) == []
    told = of_kind(acked(node, 3, 2), MessageKind.TIMEOUT_NOW)
    assert [m.to for m in told] == [3]


def test_while_handing_over_a_leader_takes_no_proposals() -> None:
    """Each would move the end of the log that the target has to reach."""
    node = elected(node_with(), 2)
    node.transfer_leader(3)
    with pytest.raises(NotLeader, match="handed to 3"):
        node.propose(b"x")
    with pytest.raises(NotLeader, match="handed to 3"):
        node.propose_membership(change("v4"))


def test_a_transfer_that_takes_an_election_timeout_is_given_up() -> None:
    node = elected(node_with(), 2)
    acked(node, 2, 1)
    node.transfer_leader(3)
    for _ in range(CALM.election_ticks):
        node.tick()
    settle(node)
    node.propose(b"x")
    assert node.replica.log.last_index == 2


def test_a_second_target_replaces_the_first() -> None:
    node = elected(node_with(), 2)
    node.transfer_leader(2)
    node.transfer_leader(3)
    assert node.replica.transferee == 3
    settle(node)
    assert of_kind(acked(node, 2, 1), MessageKind.TIMEOUT_NOW) == []


def test_naming_the_leader_itself_ends_a_transfer() -> None:
    node = elected(node_with(), 2)
    node.transfer_leader(3)
    node.transfer_leader(1)
    assert node.replica.transferee == 0


def test_strangers_and_learners_are_no_targets() -> None:
    node = elected(node_with(), 2)
    node.apply_membership(change("l4"))
    for target in (4, 9):
        node.transfer_leader(target)
        assert node.replica.transferee == 0


def test_a_target_that_is_removed_ends_the_transfer() -> None:
    node = elected(node_with(), 2)
    node.transfer_leader(3)
    node.apply_membership(change("r3"))
    assert node.replica.transferee == 0


def test_a_follower_passes_the_wish_on() -> None:
    group = Group(3)
    group.elect(1)
    group.nodes[2].transfer_leader(2)
    group.pump()
    assert group.nodes[2].replica.role is Role.LEADER
    with pytest.raises(NotLeader):
        node_with().transfer_leader(2)


def test_only_a_voter_obeys_the_call_to_campaign() -> None:
    node = node_with(voters=(2, 3))
    step(node, Message(MessageKind.TIMEOUT_NOW, 1, 2, 1))
    assert node.replica.role is Role.FOLLOWER
