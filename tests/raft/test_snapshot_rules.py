"""Snapshots: §7 of the paper, thesis chapter 5; reports about their transfer."""

import pytest

from quivermq.errors import BrokenInvariant
from quivermq.raft import (
    Configuration,
    Entry,
    Message,
    MessageKind,
    Options,
    Pace,
    RawNode,
    Role,
    Snapshot,
)
from tests.raft.group import Group, acked, change, elected, node_with, of_kind, settle, step

THREE = Configuration((1, 2, 3))


def snapshot_message(snapshot: Snapshot, term: int = 2, sender: int = 2) -> Message:
    return Message(MessageKind.SNAPSHOT, 1, sender, term, snapshot=snapshot)


def stranded() -> Group:
    """Member 1 leads; 3 was away and needs entries that 1 no longer keeps."""
    group = Group(3)
    group.elect(1)
    group.cut_off = {3}
    for number in range(3):
        group.propose(1, b"%d" % number)
    group.compact(1)
    group.cut_off = set()
    return group


def feeding() -> RawNode:
    """A leader whose member 3 has a snapshot on its way."""
    group = stranded()
    group.lose = lambda message: message.kind is MessageKind.SNAPSHOT
    group.tick(1)
    node = group.nodes[1]
    assert node.replica.progress[3].pace is Pace.SNAPSHOT
    return node


def test_a_follower_that_needs_compacted_entries_gets_a_snapshot_and_goes_on_from_there() -> None:
    group = stranded()
    group.tick(1)
    replica = group.nodes[3].replica
    assert (replica.log.first_index, replica.log.committed) == (6, 5)
    group.propose(1, b"after")
    assert group.payloads(3) == [b"after"]
    assert group.nodes[1].replica.progress[3].pace is Pace.REPLICATE


def test_the_term_of_the_last_compacted_entry_is_kept() -> None:
    """So a follower that has exactly that entry needs no snapshot."""
    group = Group(3)
    group.elect(1)
    group.propose(1, b"x")
    group.compact(1)
    sent = []
    group.lose = lambda message: bool(sent.append(message.kind))
    group.propose(1, b"y")
    assert MessageKind.SNAPSHOT not in sent
    assert group.payloads(3) == [b"x", b"y"]


def test_a_snapshot_replaces_a_log_that_does_not_reach_it() -> None:
    node = node_with(1, 1, 1)
    (reply,) = step(node, snapshot_message(Snapshot(7, 2, THREE)))
    assert (reply.kind, reply.index) == (MessageKind.APPEND_REPLY, 7)
    log = node.replica.log
    assert (log.first_index, log.last_index, log.committed, log.applied) == (8, 7, 7, 7)


def test_a_snapshot_replaces_a_log_that_conflicts_with_it() -> None:
    node = node_with(1, 1, 1)
    step(node, snapshot_message(Snapshot(2, 2, THREE)))
    assert node.replica.log.last_index == 2


def test_entries_after_a_snapshot_of_a_prefix_are_kept() -> None:
    node = node_with(1, 1, 1)
    (reply,) = step(node, snapshot_message(Snapshot(2, 1, THREE)))
    assert (node.replica.log.last_index, node.replica.log.committed) == (3, 2)
    assert reply.index == 2


def test_a_snapshot_behind_the_commit_index_is_ignored() -> None:
    node = node_with(1, 1, 1, commit=3)
    (reply,) = step(node, snapshot_message(Snapshot(2, 1, THREE)))
    assert (node.replica.log.first_index, reply.index) == (1, 3)


def test_a_snapshot_behind_one_that_was_taken_over_is_ignored() -> None:
    node = node_with()
    step(node, snapshot_message(Snapshot(7, 2, THREE)))
    (reply,) = step(node, snapshot_message(Snapshot(5, 2, Configuration((1, 2)))))
    assert (node.replica.log.last_index, reply.index) == (7, 7)
    assert node.replica.configuration == THREE


def test_no_snapshot_is_taken_over_while_entries_are_being_applied() -> None:
    """They would be applied on top of it."""
    node = node_with(1, 1, commit=2, options=Options(async_storage=True))
    ready = node.ready()
    assert ready is not None
    node.step(snapshot_message(Snapshot(7, 2, Configuration((1, 2)))))
    assert node.replica.log.incoming is None
    assert node.replica.configuration == THREE
    (apply,) = [m for m in ready.messages if m.kind is MessageKind.APPLY]
    node.step(apply.responses[0])
    node.step(snapshot_message(Snapshot(7, 2, Configuration((1, 2)))))
    assert node.replica.log.incoming is not None
    node.validate()


def test_a_snapshot_is_acknowledged_only_once_durable() -> None:
    node = node_with(options=Options(async_storage=True))
    node.step(snapshot_message(Snapshot(7, 2, THREE)))
    ready = node.ready()
    assert ready is not None
    (store,) = ready.messages
    assert store.snapshot is not None
    assert [r.kind for r in store.responses] == [MessageKind.APPEND_REPLY, MessageKind.STORED]


def test_nothing_is_applied_and_no_election_begun_while_a_snapshot_is_written() -> None:
    node = node_with(options=Options(async_storage=True, prevote=False))
    node.step(snapshot_message(Snapshot(7, 2, THREE)))
    node.step(Message(MessageKind.APPEND, 1, 2, 2, 2, 7, (Entry(2, 8),), 8))
    ready = node.ready()
    assert ready is not None
    assert ready.committed == ()
    node.campaign()
    assert node.replica.role is Role.FOLLOWER


def test_a_snapshot_brings_its_configuration_auto_leave_included() -> None:
    joint = Configuration((1, 2), (1, 2, 3), (4,), (3,), auto_leave=True)
    node = node_with()
    step(node, snapshot_message(Snapshot(7, 2, joint)))
    assert node.replica.configuration == joint
    assert node.replica.progress[4].is_learner


def test_a_leader_that_came_from_a_snapshot_leaves_the_joint_configuration() -> None:
    group = Group(3, spare=1)
    joint = Configuration((1, 2, 3, 4), (1, 2, 3), auto_leave=True)
    for member in range(1, 5):
        group.nodes[member].step(
            Message(MessageKind.SNAPSHOT, member, 9, 1, snapshot=Snapshot(5, 1, joint))
        )
    group.pump()
    group.elect(4)
    assert group.nodes[4].replica.configuration == Configuration((1, 2, 3, 4))


def test_a_newcomer_takes_a_snapshot_from_before_it_was_added() -> None:
    group = Group(3, spare=1)
    group.elect(1)
    group.propose(1, b"x")
    group.compact(1)
    group.nodes[1].propose_membership(change("v4"))
    group.pump()
    assert group.nodes[4].replica.configuration.voters == (1, 2, 3, 4)


def test_no_snapshot_is_made_for_a_member_that_shows_no_life() -> None:
    group = stranded()
    node = group.nodes[1]
    progress = node.replica.progress[3]
    progress.probe()
    progress.active = False
    progress.match, progress.next = 0, 2
    group.cut_off = {3}
    group.propose(1, b"y")
    assert progress.pace is Pace.PROBE


def test_a_snapshot_not_available_yet_is_tried_again_later() -> None:
    group = stranded()
    storage = group.storages[1]
    later, storage.snapshot_taken = storage.snapshot_taken, None
    group.tick(1)
    assert group.nodes[1].replica.progress[3].pace is Pace.PROBE
    storage.snapshot_taken = later
    group.tick(1)
    assert group.nodes[1].replica.progress[3].pace is Pace.REPLICATE


def test_a_snapshot_older_than_the_log_is_a_broken_invariant() -> None:
    group = stranded()
    group.storages[1].snapshot_taken = Snapshot(2, 1, THREE)
    with pytest.raises(BrokenInvariant, match="ends before the log begins"):
        group.tick(1)


def test_without_a_report_nothing_more_is_sent() -> None:
    node = feeding()
    node.tick()
    reply = Message(MessageKind.HEARTBEAT_REPLY, 1, 3, node.replica.term)
    assert of_kind(step(node, reply), MessageKind.APPEND) == []
    assert node.replica.progress[3].pace is Pace.SNAPSHOT


def test_a_snapshot_reported_as_arrived_is_followed_from_its_end() -> None:
    node = feeding()
    node.report_snapshot(3, arrived=True)
    progress = node.replica.progress[3]
    assert (progress.pace, progress.next, progress.is_paused) == (Pace.PROBE, 6, True)
    reply = Message(MessageKind.HEARTBEAT_REPLY, 1, 3, node.replica.term)
    (probe,) = [m for m in step(node, reply) if m.to == 3]
    assert (probe.kind, probe.index) == (MessageKind.APPEND, 5)


def test_a_snapshot_reported_as_failed_is_sent_again() -> None:
    node = feeding()
    node.report_snapshot(3, arrived=False)
    progress = node.replica.progress[3]
    assert (progress.pace, progress.next, progress.is_paused) == (Pace.PROBE, 3, True)
    reply = Message(MessageKind.HEARTBEAT_REPLY, 1, 3, node.replica.term)
    (again,) = [m for m in step(node, reply) if m.to == 3]
    assert again.kind is MessageKind.SNAPSHOT


def test_an_acknowledgement_frees_a_member_without_a_report() -> None:
    node = feeding()
    acked(node, 3, 5)
    progress = node.replica.progress[3]
    assert (progress.pace, progress.match, progress.next) == (Pace.REPLICATE, 5, 6)


def test_an_acknowledgement_short_of_the_log_does_not() -> None:
    node = feeding()
    acked(node, 3, 3)
    assert node.replica.progress[3].pace is Pace.SNAPSHOT


def test_reports_about_members_that_get_no_snapshot_change_nothing() -> None:
    node = elected(node_with(), 2)
    acked(node, 2, 1)
    node.report_snapshot(2, arrived=False)
    node.report_snapshot(9, arrived=True)
    assert node.replica.progress[2].pace is Pace.REPLICATE
    settle(node)
