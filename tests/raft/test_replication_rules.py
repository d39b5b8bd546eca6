"""Replication: figure 2 (AppendEntries, leaders), §5.3, and committing, §5.4.2."""

import pytest

from quivermq.errors import BrokenInvariant, NotLeader
from quivermq.raft import Entry, Message, MessageKind, Options, RawNode, Role
from tests.raft.group import Group, acked, change, elected, node_with, of_kind, settle, step


def append(
    term: int, log_term: int, index: int, *entries: Entry, commit: int = 0, sender: int = 2
) -> Message:
    return Message(MessageKind.APPEND, 1, sender, term, log_term, index, entries, commit)


def terms_of(node: RawNode) -> list[int | None]:
    return [node.replica.log.term(i) for i in range(1, node.replica.log.last_index + 1)]


def test_an_append_of_a_lower_term_is_refused_and_answered_with_the_term() -> None:
    node = node_with(term=5, options=Options(prevote=False))
    (reply,) = step(node, append(4, 0, 0, Entry(4, 1)))
    assert (reply.kind, reply.term) == (MessageKind.APPEND_REPLY, 5)
    assert node.replica.log.last_index == 0


def test_an_append_is_rejected_without_the_entry_before_it() -> None:
    node = node_with(1, 1)
    (reply,) = step(node, append(2, 1, 3, Entry(2, 4)))
    assert reply.reject
    assert (reply.index, reply.hint, reply.log_term) == (3, 2, 1)


def test_an_append_is_rejected_if_the_entry_before_it_has_another_term() -> None:
    node = node_with(1, 1)
    (reply,) = step(node, append(3, 2, 2, Entry(3, 3)))
    assert reply.reject
    assert node.replica.log.last_index == 2


def test_a_conflicting_entry_and_all_after_it_are_replaced() -> None:
    node = node_with(1, 1, 1, 1)
    (reply,) = step(node, append(2, 1, 2, Entry(2, 3)))
    assert not reply.reject
    assert reply.index == 3
    assert terms_of(node) == [1, 1, 2]


def test_entries_that_are_there_already_stay_with_what_follows_them() -> None:
    """A delayed append must not cut off entries that later ones brought."""
    node = node_with(1, 1, 1, 1)
    (reply,) = step(node, append(1, 1, 1, Entry(1, 2)))
    assert reply.index == 2, "only what the message covers is acknowledged"
    assert terms_of(node) == [1, 1, 1, 1]


def test_what_is_committed_is_never_replaced() -> None:
    node = node_with(1, 1, commit=2)
    with pytest.raises(BrokenInvariant, match="2 is committed"):
        node.replica.log.append([Entry(2, 2)])


def test_an_append_before_the_commit_index_is_answered_with_the_commit_index() -> None:
    node = node_with(1, 1, 1, commit=3)
    (reply,) = step(node, append(1, 1, 1, Entry(1, 2)))
    assert (reply.reject, reply.index) == (False, 3)


def test_a_follower_commits_no_further_than_the_last_entry_of_the_message() -> None:
    """Entry 3 here is of an old term: it conflicts with what the leader has committed there."""
    node = node_with(1, 1, 1, term=2)
    step(node, append(2, 1, 1, Entry(1, 2), commit=3))
    assert node.replica.log.committed == 2


def test_a_follower_commits_what_the_leader_has_committed() -> None:
    node = node_with(1, 1, 1)
    step(node, append(1, 1, 3, commit=2))
    assert node.replica.log.committed == 2
    step(node, Message(MessageKind.HEARTBEAT, 1, 2, 1, commit=3))
    assert node.replica.log.committed == 3


def test_the_commit_index_never_goes_back() -> None:
    node = node_with(1, 1, 1, commit=3)
    step(node, append(1, 1, 3, commit=1))
    step(node, Message(MessageKind.HEARTBEAT, 1, 2, 1, commit=1))
    assert node.replica.log.committed == 3


def test_a_commit_index_past_the_log_is_a_broken_invariant_with_its_story() -> None:
    node = node_with(1)
    with pytest.raises(BrokenInvariant, match="commit of 7 past the end of the log at 1") as story:
        node.step(Message(MessageKind.HEARTBEAT, 1, 2, 1, commit=7))
    assert "member 1, FOLLOWER in term 1" in str(story.value)


def test_entries_are_acknowledged_only_once_durable() -> None:
    node = node_with(options=Options(async_storage=True))
    node.step(append(1, 0, 0, Entry(1, 1, data=b"x")))
    ready = node.ready()
    assert ready is not None
    (store,) = ready.messages
    assert [entry.index for entry in store.entries] == [1]
    assert [r.kind for r in store.responses] == [MessageKind.APPEND_REPLY, MessageKind.STORED]


def test_committed_entries_are_applied_once_and_in_order() -> None:
    group = Group(3)
    group.elect(1)
    for number in range(20):
        group.propose(1, b"%d" % number)
    assert [entry.index for entry in group.applied[2]] == list(range(2, 23))
    assert group.payloads(3) == [b"%d" % number for number in range(20)]


def test_a_new_leader_begins_with_an_empty_entry_of_its_term() -> None:
    node = elected(node_with(1, term=1), 2)
    log = node.replica.log
    assert (log.last_index, log.last_term) == (2, 2)
    assert log.slice(2, 3)[0].data == b""


def test_a_leader_sends_from_next_on_and_moves_on_with_success() -> None:
    node = elected(node_with(), 2)
    acked(node, 2, 1)
    node.propose(b"a")
    (sent,) = of_kind(settle(node), MessageKind.APPEND)
    assert (sent.to, sent.index, [e.index for e in sent.entries]) == (2, 1, [2])
    acked(node, 2, 2)
    progress = node.replica.progress[2]
    assert (progress.match, progress.next) == (2, 3)


def test_a_leader_goes_back_after_a_rejection_and_tries_again() -> None:
    node = elected(node_with(1, 1, 1), 2)
    rejection = Message(MessageKind.APPEND_REPLY, 1, 2, 2, log_term=1, index=3, reject=True, hint=1)
    (again,) = of_kind(step(node, rejection), MessageKind.APPEND)
    assert (again.index, [entry.index for entry in again.entries]) == (1, [2, 3, 4])


def test_a_leader_skips_whole_terms_that_the_follower_cannot_have() -> None:
    node = elected(node_with(1, 2, 2, 2, 3), 2)
    rejection = Message(MessageKind.APPEND_REPLY, 1, 2, 4, log_term=1, index=5, reject=True, hint=4)
    (again,) = of_kind(step(node, rejection), MessageKind.APPEND)
    assert again.index == 1


def test_a_stale_rejection_does_not_pull_a_follower_back() -> None:
    node = elected(node_with(), 2)
    acked(node, 2, 1)
    stale = Message(MessageKind.APPEND_REPLY, 1, 2, 1, index=0, reject=True, hint=0)
    assert step(node, stale) == []
    assert node.replica.progress[2].next == 2


def test_an_entry_is_committed_once_a_majority_has_it() -> None:
    node = elected(node_with(voters=(1, 2, 3, 4, 5)), 2, 3)
    acked(node, 2, 1)
    assert node.replica.log.committed == 0
    acked(node, 3, 1)
    assert node.replica.log.committed == 1


def test_a_leader_counts_itself_only_once_its_own_write_is_durable() -> None:
    options = Options(prevote=False, check_quorum=False, async_storage=True)
    node = node_with(options=options)
    node.campaign()
    node.ready()
    for voter in (2, 3):
        node.step(Message(MessageKind.VOTE_REPLY, 1, voter, 1))
    ready = node.ready()
    assert ready is not None
    node.step(Message(MessageKind.APPEND_REPLY, 1, 2, 1, index=1))
    assert node.replica.log.committed == 0, "one of three, whatever the leader wrote to itself"
    store = ready.messages[-1]
    for response in store.responses:
        node.step(response)
    assert node.replica.log.committed == 1


def test_an_entry_of_an_earlier_term_is_not_committed_by_counting() -> None:
    """Figure 8: an old entry on a majority can still be overwritten."""
    node = elected(node_with(1, 2, voters=(1, 2, 3, 4, 5)), 2, 3)
    for member in (2, 3, 4):
        acked(node, member, 2)
    assert node.replica.log.committed == 0
    for member in (2, 3):
        acked(node, member, 3)
    assert node.replica.log.committed == 3, "one entry of its own term commits all before it"


def test_acknowledgements_of_learners_do_not_commit() -> None:
    node = elected(node_with(), 2)
    node.apply_membership(change("l4"))
    node.apply_membership(change("l5"))
    acked(node, 4, 1)
    acked(node, 5, 1)
    assert node.replica.log.committed == 0


def test_a_heartbeat_never_carries_a_commit_index_past_what_the_member_has() -> None:
    node = elected(node_with(1, 1, voters=(1, 2, 3)), 2)
    acked(node, 2, 3)
    assert node.replica.log.committed == 3
    node.tick()
    heartbeats = of_kind(settle(node), MessageKind.HEARTBEAT)
    assert [(h.to, h.commit) for h in heartbeats] == [(2, 3), (3, 0)]


def test_a_follower_and_a_candidate_refuse_proposals() -> None:
    group = Group(3)
    group.elect(1)
    with pytest.raises(NotLeader, match="follows 1"):
        group.nodes[2].propose(b"x")
    lonely = node_with()
    with pytest.raises(NotLeader, match="no leader"):
        lonely.propose(b"x")
    lonely.campaign()
    with pytest.raises(NotLeader, match="election"):
        lonely.propose(b"x")


def test_a_follower_forwards_proposals_only_if_told_to() -> None:
    group = Group(3, options=Options(prevote=False, forward_proposals=True))
    group.elect(1)
    group.propose(2, b"x")
    assert group.payloads(3) == [b"x"]


def test_a_follower_that_was_away_catches_up() -> None:
    group = Group(3)
    group.elect(1)
    group.cut_off = {3}
    for number in range(5):
        group.propose(1, b"%d" % number)
    assert group.payloads(3) == []
    group.cut_off = set()
    group.tick(1, 2)
    assert group.payloads(3) == [b"%d" % number for number in range(5)]


def test_divergent_logs_are_brought_in_line_with_the_leader() -> None:
    group = Group(3)
    group.elect(1)
    group.cut_off = {1}
    for number in range(5):
        group.nodes[1].propose(b"lost%d" % number)
        group.pump()
    group.elect(2)
    group.propose(2, b"kept")
    group.cut_off = set()
    group.tick(2, 2)
    assert group.nodes[1].replica.role is Role.FOLLOWER
    assert [group.payloads(member) for member in (1, 2, 3)] == [[b"kept"]] * 3
