"""Membership: §6 of the paper, thesis §4.1 to §4.3."""

from random import Random

import pytest

from quivermq.errors import BrokenInvariant, NotLeader
from quivermq.raft import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    MembershipRefused,
    Message,
    MessageKind,
    Options,
    RawNode,
    Role,
    Snapshot,
    Transition,
    UnknownPeer,
)
from quivermq.testing.memory_storage import MemoryStorage
from tests.raft.group import CALM, Group, acked, change, elected, node_with, of_kind, settle, step

JOINT = Configuration(voters=(1, 2, 3), outgoing=(1, 4, 5))


def joint_leader() -> Group:
    """Member 1 leads {1, 2, 3} and {1, 4, 5}; nobody has acknowledged anything."""
    group = Group(5, configuration=JOINT)
    node = group.nodes[1]
    node.campaign()
    settle(node)
    return group


def test_a_joint_election_needs_a_majority_of_both_halves() -> None:
    node = joint_leader().nodes[1]
    for voter in (2, 3):
        step(node, Message(MessageKind.VOTE_REPLY, 1, voter, 1))
    assert node.replica.role is Role.CANDIDATE, "all of the incoming half is not enough"
    step(node, Message(MessageKind.VOTE_REPLY, 1, 4, 1))
    assert node.replica.role is Role.LEADER


def test_a_joint_commit_needs_a_majority_of_both_halves() -> None:
    for first, second in (((2, 3), 4), ((4, 5), 2)):
        node = elected(joint_leader().nodes[1], 2, 4)
        for member in first:
            acked(node, member, 2)
        assert node.replica.log.committed == 1
        acked(node, second, 2)
        assert node.replica.log.committed == 2


def test_a_change_takes_effect_when_it_is_applied() -> None:
    group = Group(3, spare=1)
    node = group.elect(1)
    node.propose_membership(change("v4"))
    assert node.replica.configuration.voters == (1, 2, 3)
    group.pump()
    assert [group.nodes[m].replica.configuration.voters for m in range(1, 5)] == [(1, 2, 3, 4)] * 4


def test_a_newcomer_catches_up_from_the_log() -> None:
    group = Group(3, spare=1)
    group.elect(1)
    group.propose(1, b"before")
    group.nodes[1].propose_membership(change("l4"))
    group.pump()
    group.propose(1, b"after")
    assert group.payloads(4) == [b"before", b"after"]


def test_while_a_change_is_under_way_another_becomes_an_empty_entry() -> None:
    group = Group(3, spare=2)
    node = group.elect(1)
    node.propose_membership(change("v4"))
    node.propose_membership(change("v5"))
    group.pump()
    assert node.replica.configuration.voters == (1, 2, 3, 4)
    kinds = [entry.kind for entry in group.applied[1][-2:]]
    assert kinds == [EntryKind.MEMBERSHIP, EntryKind.NORMAL]


def test_a_new_leader_makes_no_change_before_it_applied_what_it_inherited() -> None:
    node = elected(node_with(1, 1, term=1), 2)
    node.propose_membership(change("v4"))
    log = node.replica.log
    assert log.slice(log.last_index, log.last_index + 1)[0].kind is EntryKind.NORMAL


def test_several_changes_at_once_go_through_a_joint_configuration_and_out_of_it() -> None:
    group = Group(3, spare=2)
    node = group.elect(1)
    node.propose_membership(change("v4 v5 r2 r3"))
    group.pump()
    for member in (1, 4, 5):
        configuration = group.nodes[member].replica.configuration
        assert configuration == Configuration((1, 4, 5)), member
    changes = [e for e in group.applied[1] if e.kind is EntryKind.MEMBERSHIP]
    assert len(changes) == 2, "one to enter, one to leave"


def test_an_explicit_joint_configuration_is_left_on_request_only() -> None:
    group = Group(3, spare=1)
    node = group.elect(1)
    node.propose_membership(change("v4", Transition.EXPLICIT))
    group.pump()
    assert node.replica.configuration.is_joint
    group.propose(1, b"x")
    assert node.replica.configuration.is_joint
    node.propose_membership(change(""))
    group.pump()
    assert node.replica.configuration == Configuration((1, 2, 3, 4))


def test_in_a_joint_configuration_nothing_but_leaving_it_is_taken() -> None:
    group = Group(3, spare=2)
    node = group.elect(1)
    node.propose_membership(change("v4", Transition.EXPLICIT))
    group.pump()
    node.propose_membership(change("v5"))
    group.pump()
    assert 5 not in node.replica.configuration.members


def test_a_new_leader_finishes_the_joint_configuration_that_it_inherited() -> None:
    group = Group(3, spare=1)
    node = group.elect(1)
    group.lose = lambda message: (
        message.kind is MessageKind.APPEND
        and any(
            entry.kind is EntryKind.MEMBERSHIP and entry.data == change("").encode()
            for entry in message.entries
        )
    )
    node.propose_membership(change("v4 r1", Transition.IMPLICIT))
    group.pump()
    assert group.nodes[2].replica.configuration.is_joint
    group.lose = lambda _: False
    group.cut_off = {1}
    group.elect(2)
    group.tick(2, 2)
    assert group.nodes[2].replica.configuration == Configuration((2, 3, 4))


def test_leaving_a_joint_configuration_waits_for_a_transfer_that_then_fails() -> None:
    group = Group(3, spare=1)
    node = group.elect(1)
    node.propose_membership(change("v4", Transition.IMPLICIT))
    node.transfer_leader(3)
    group.lose = lambda message: message.kind is MessageKind.TIMEOUT_NOW
    group.pump()
    assert node.replica.configuration.is_joint
    group.tick(1, CALM.election_ticks)
    assert node.replica.configuration == Configuration((1, 2, 3, 4))


def test_the_last_voter_cannot_be_removed() -> None:
    node = elected(node_with(voters=(1,)))
    settle(node)
    last = node.replica.log.last_index
    for text in ("r1", "l1"):
        with pytest.raises(MembershipRefused, match="removed all voters"):
            node.propose_membership(change(text))
    assert node.replica.log.last_index == last, "nothing of it reached the log"


def test_a_leader_that_is_removed_steps_down_once_that_is_committed() -> None:
    group = Group(3)
    node = group.elect(1)
    node.propose_membership(change("r1"))
    assert node.replica.role is Role.LEADER, "it leads until the group can do without it"
    group.pump()
    assert node.replica.role is Role.FOLLOWER
    node.campaign()
    assert node.replica.role is Role.FOLLOWER
    group.elect(2)
    group.propose(2, b"x")
    assert group.payloads(3) == [b"x"]


def test_a_leader_that_is_demoted_steps_down() -> None:
    group = Group(3)
    node = group.elect(1)
    node.propose_membership(change("l1"))
    group.pump()
    assert node.replica.role is Role.FOLLOWER
    assert node.replica.configuration == Configuration((2, 3), (), (1,))


def test_a_removed_leader_that_goes_on_does_not_count_itself() -> None:
    options = Options(prevote=False, check_quorum=False, step_down_on_removal=False)
    node = elected(node_with(options=options), 2)
    acked(node, 2, 1)
    node.apply_membership(change("r1"))
    with pytest.raises(NotLeader, match="removed"):
        node.propose(b"x")
    assert node.replica.role is Role.LEADER


def test_a_smaller_quorum_commits_what_it_already_has() -> None:
    node = elected(node_with(voters=(1, 2, 3, 4)), 2, 3)
    acked(node, 2, 1)
    assert node.replica.log.committed == 0
    node.apply_membership(change("r4"))
    assert node.replica.log.committed == 1
    assert {m.commit for m in of_kind(settle(node), MessageKind.APPEND)} == {1}


def test_a_removed_member_cannot_disturb_those_that_hear_a_leader() -> None:
    group = Group(4, options=Options())
    node = group.elect(1)
    node.propose_membership(change("r4"))
    group.lose = lambda message: message.to == 4
    group.pump()
    for _ in range(100):
        group.nodes[4].tick()
        group.nodes[1].tick()
        group.pump()
    assert (node.replica.role, node.replica.term) == (Role.LEADER, 1)


def test_a_member_with_a_committed_change_not_yet_applied_does_not_stand() -> None:
    """Its own configuration is history: see `candidate.may_campaign` for what could happen."""
    group = Group(3, spare=1)
    group.elect(1)
    group.nodes[1].propose_membership(change("v4"))
    storage = group.storages[2]
    group.pump()
    commit = storage.hard_state.commit
    storage.configuration = Configuration((1, 2, 3))
    group.restart(2)
    node = group.nodes[2]
    assert node.replica.log.applied < commit
    for _ in range(100):
        node.tick()
    node.campaign()
    node.step(Message(MessageKind.TIMEOUT_NOW, 2, 1, node.replica.term))
    assert node.replica.role is Role.FOLLOWER
    group.work(2)
    node.campaign()
    assert node.replica.role is Role.CANDIDATE


def lagging_joint() -> RawNode:
    """Member 1 is in {1, 2} and {3}, holds the entry that leaves it, not knowing it committed."""
    storage = MemoryStorage()
    storage.install(Snapshot(1, 1, Configuration((1, 2), (3,), auto_leave=True)))
    storage.append([Entry(1, 2), Entry(1, 3, EntryKind.MEMBERSHIP, change("").encode())])
    storage.hard_state = HardState(1)
    return RawNode(1, storage, CALM, Random(1), applied=1)


@pytest.mark.parametrize(
    "message",
    [
        Message(MessageKind.VOTE, 1, 2, 2, 1, 2, known_commit=(1, 3)),
        Message(MessageKind.PREVOTE, 1, 2, 2, 1, 2, known_commit=(1, 3)),
    ],
)
def test_a_vote_request_tells_of_a_membership_change_that_was_committed(message: Message) -> None:
    """The leader that removed itself is gone, and 3, whom the old configuration needs, too."""
    node = lagging_joint()
    assert step(node, message)[0].reject, "its log is longer than the candidate's"
    assert node.replica.configuration == Configuration((1, 2))


def test_a_refused_vote_tells_of_a_membership_change_that_was_committed() -> None:
    node = lagging_joint()
    node.campaign()
    settle(node)
    refusal = Message(MessageKind.VOTE_REPLY, 1, 3, 2, reject=True, known_commit=(1, 3))
    step(node, refusal)
    assert node.replica.configuration == Configuration((1, 2))


def test_learning_that_the_membership_changed_ends_a_candidacy() -> None:
    """Its votes were asked for, and would be counted, in a configuration that is history."""
    node = lagging_joint()
    node.campaign()
    settle(node)
    step(node, Message(MessageKind.VOTE_REPLY, 1, 2, 2))
    node.step(Message(MessageKind.VOTE_REPLY, 1, 3, 2, known_commit=(1, 3)))
    assert (node.replica.role, node.replica.vote) == (Role.FOLLOWER, 1)
    settle(node)
    node.campaign()
    assert [m.to for m in of_kind(settle(node), MessageKind.VOTE)] == [2]


def test_every_vote_message_tells_what_its_sender_knows_to_be_committed() -> None:
    node = node_with(1, 2, commit=2)
    (reply,) = step(node, Message(MessageKind.VOTE, 1, 2, 3, 9, 9))
    assert reply.known_commit == (2, 2)
    node.campaign()
    assert {m.known_commit for m in of_kind(settle(node), MessageKind.VOTE)} == {(2, 2)}


def test_a_commit_index_in_a_vote_message_counts_only_for_the_very_entry() -> None:
    node = lagging_joint()
    step(node, Message(MessageKind.VOTE, 1, 2, 2, 1, 2, known_commit=(2, 3)))
    assert node.replica.log.committed == 1


def test_a_demoted_voter_keeps_its_vote_until_the_joint_configuration_is_left() -> None:
    group = Group(3)
    node = group.elect(1)
    node.propose_membership(change("l3", Transition.EXPLICIT))
    group.pump()
    assert node.replica.configuration == Configuration((1, 2), (1, 2, 3), (), (3,))
    assert not node.replica.progress[3].is_learner
    node.propose_membership(change(""))
    group.pump()
    assert node.replica.configuration == Configuration((1, 2), (), (3,))
    assert node.replica.progress[3].is_learner


def test_an_answer_of_a_stranger_is_refused() -> None:
    node = elected(node_with(), 2)
    with pytest.raises(UnknownPeer, match="not a member"):
        node.step(Message(MessageKind.APPEND_REPLY, 1, 9, 1, index=1))


def test_validation_can_be_switched_off() -> None:
    options = Options(prevote=False, check_quorum=False, validate_membership=False)
    node = elected(node_with(options=options), 2)
    node.propose_membership(change("v4"))
    node.propose_membership(change("v5"))
    entries = node.replica.log.slice(2, 4)
    assert [entry.kind for entry in entries] == [EntryKind.MEMBERSHIP] * 2


def test_a_change_without_the_founding_configuration_is_a_broken_invariant() -> None:
    """Adding a voter to nothing would make that voter a group of its own."""
    node = node_with(voters=())
    with pytest.raises(BrokenInvariant, match="never learnt"):
        node.apply_membership(change("v1"))
