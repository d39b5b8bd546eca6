"""Members whose disks acknowledge before they sync: the power may take what a leader counts on."""

from random import Random

import pytest

from quivermq.errors import BrokenInvariant
from quivermq.raft import Entry, HardState, Message, MessageKind, Options, Role
from tests.raft.group import CALM, Group, node_with, of_kind, step

FORGETFUL = Options(prevote=False, check_quorum=False, forgetful_disk=True)


def lose_tail(group: Group, member: int, last: int) -> None:
    """The power takes what the member wrote behind `last`, and what it knew of commits there."""
    storage = group.storages[member]
    del storage.kept[last - storage.base_index :]
    term, vote, commit = storage.hard_state
    storage.hard_state = HardState(term, vote, min(commit, last))
    group.network.clear()
    group.restart(member)


def filled(count: int = 3) -> Group:
    group = Group(count, options=FORGETFUL)
    group.elect(1)
    group.propose(1, b"a", b"b", b"c")
    group.propose(1, b"d")
    group.tick(1)
    return group


@pytest.mark.parametrize("left", range(1, 7))
def test_a_follower_that_lost_its_tail_gets_it_again_from_an_idle_leader(left: int) -> None:
    group = filled()
    term = group.nodes[1].replica.term
    lose_tail(group, 2, left)
    group.tick(1, 2)
    assert group.payloads(2) == [b"a", b"b", b"c", b"d"]
    assert group.nodes[1].replica.progress[2].match == group.nodes[1].replica.log.last_index
    assert (group.nodes[1].replica.role, group.nodes[1].replica.term) == (Role.LEADER, term)


@pytest.mark.parametrize("left", range(1, 7))
def test_a_follower_that_lost_its_tail_gets_it_again_from_a_busy_leader(left: int) -> None:
    group = filled()
    lose_tail(group, 2, left)
    group.propose(1, b"e")
    group.propose(1, b"f")
    group.tick(1, 2)
    assert group.payloads(2) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_a_loss_of_what_was_not_committed_yet_is_found_with_the_next_append() -> None:
    """No heartbeat tells of it: all that the leader knows to be committed is there."""
    group = filled(5)
    group.cut_off = {3, 4, 5}
    group.propose(1, b"e")
    leader = group.nodes[1].replica
    assert leader.log.committed == leader.log.last_index - 1
    assert leader.progress[2].match == leader.log.last_index
    lose_tail(group, 2, leader.log.committed)
    group.cut_off = set()
    group.tick(1, 2)
    group.propose(1, b"f")
    group.tick(1, 2)
    assert group.payloads(2) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_a_follower_behind_the_kept_log_gets_a_snapshot() -> None:
    group = filled()
    lose_tail(group, 2, 2)
    snapshot = group.compact(1)
    group.tick(1, 2)
    group.nodes[1].report_snapshot(2, arrived=True)
    group.tick(1, 2)
    assert group.nodes[2].replica.log.committed == snapshot.index


def test_entries_that_had_been_replaced_and_are_back_are_not_taken_for_committed() -> None:
    """The log is long enough, but it is not the one that was acknowledged."""
    node = node_with(1, 1, 1, term=2, commit=1, options=FORGETFUL)
    (denial,) = step(node, Message(MessageKind.HEARTBEAT, 1, 2, 2, commit=3))
    assert (denial.kind, denial.reject, denial.index) == (MessageKind.HEARTBEAT_REPLY, True, 3)
    assert node.replica.log.committed == 1
    append = Message(MessageKind.APPEND, 1, 2, 2, 1, 1, [Entry(2, 2), Entry(2, 3)], commit=3)
    step(node, append)
    assert node.replica.log.committed == 3
    assert node.replica.log.term(3) == 2


def test_what_the_leader_has_shown_in_this_life_is_committed_by_a_heartbeat() -> None:
    node = node_with(1, 1, term=2, options=FORGETFUL)
    step(node, Message(MessageKind.APPEND, 1, 2, 2, 1, 1, [Entry(1, 2)]))
    (reply,) = step(node, Message(MessageKind.HEARTBEAT, 1, 2, 2, commit=2))
    assert (reply.reject, node.replica.log.committed) == (False, 2)


def test_what_one_leader_has_shown_says_nothing_about_the_next() -> None:
    node = node_with(1, 1, term=2, options=FORGETFUL)
    step(node, Message(MessageKind.APPEND, 1, 2, 2, 1, 1, [Entry(1, 2)]))
    (reply,) = step(node, Message(MessageKind.HEARTBEAT, 1, 3, 3, commit=2))
    assert reply.reject
    assert node.replica.log.committed == 0


def test_a_denial_counts_for_reads() -> None:
    """Whoever denies has still heard the leader."""
    node = node_with(1, 1, term=2, options=FORGETFUL)
    (denial,) = step(node, Message(MessageKind.HEARTBEAT, 1, 2, 2, commit=2, round=7))
    assert denial.round == 7


def test_a_stale_denial_of_what_is_not_acknowledged_changes_nothing() -> None:
    group = filled()
    leader = group.nodes[1]
    match = leader.replica.progress[2].match
    denial = Message(
        MessageKind.HEARTBEAT_REPLY, 1, 2, leader.replica.term, index=match + 1, reject=True, hint=1
    )
    assert not of_kind(step(leader, denial), MessageKind.APPEND)
    assert leader.replica.progress[2].match == match


def test_a_disk_that_syncs_first_makes_no_excuses() -> None:
    node = node_with(1, term=2, options=CALM)
    with pytest.raises(BrokenInvariant, match="was a part of the log lost"):
        node.step(Message(MessageKind.HEARTBEAT, 1, 2, 2, commit=3))
    node = node_with(1, term=2, options=CALM)
    answers = step(node, Message(MessageKind.APPEND, 1, 2, 2, 1, 3, [Entry(2, 4)]))
    assert [answer.kind for answer in answers] == [MessageKind.APPEND_REPLY]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_followers_lose_and_whenever_the_leader_brings_them_back(seed: int) -> None:
    dice = Random(seed)
    group = Group(3, options=FORGETFUL)
    group.elect(1)
    term = group.nodes[1].replica.term
    said = []
    group.lose = lambda _: dice.random() < 0.1
    for number in range(60):
        if dice.random() < 0.5:
            said.append(b"%d" % number)
            group.propose(1, said[-1])
        if dice.random() < 0.2:
            member = dice.choice((2, 3))
            last = group.storages[member].last_index()
            lose_tail(group, member, max(1, last - dice.randrange(6)))
        if dice.random() < 0.5:
            group.tick(1)
    group.lose = lambda _: False
    group.tick(1, 10)
    assert group.nodes[1].replica.term == term
    for member in (1, 2, 3):
        assert group.payloads(member) == said
