"""Elections: figure 2 (RequestVote, candidates), §5.1, §5.2, §5.4.1."""

from random import Random

import pytest

from quivermq.raft import Configuration, HardState, Message, MessageKind, Options, RawNode, Role
from tests.raft.group import CALM, Group, elected, node_with, of_kind, settle, step


def vote_request(term: int, log_term: int = 0, index: int = 0, *, sender: int = 2) -> Message:
    return Message(MessageKind.VOTE, 1, sender, term, log_term, index)


def answer(node: RawNode, message: Message) -> Message:
    replies = step(node, message)
    assert len(replies) == 1
    return replies[0]


def test_a_follower_that_hears_nothing_for_its_timeout_becomes_a_candidate() -> None:
    node = node_with()
    timeout = node.replica.election_timeout
    for _ in range(timeout - 1):
        node.tick()
    assert node.replica.role is Role.FOLLOWER
    node.tick()
    assert node.replica.role is Role.CANDIDATE


def test_hearing_a_leader_starts_the_timeout_again() -> None:
    node = node_with(1)
    for _ in range(node.replica.election_timeout - 1):
        node.tick()
    step(node, Message(MessageKind.HEARTBEAT, 1, 2, 1))
    node.tick()
    assert node.replica.role is Role.FOLLOWER


def test_granting_a_vote_starts_the_timeout_again() -> None:
    node = node_with()
    for _ in range(node.replica.election_timeout - 1):
        node.tick()
    assert not answer(node, vote_request(1)).reject
    node.tick()
    assert node.replica.role is Role.FOLLOWER


def test_refusing_a_vote_lets_the_timeout_run() -> None:
    node = node_with(2)
    for _ in range(node.replica.election_timeout - 1):
        node.tick()
    node.replica.election_timeout = 10
    node.replica.election_elapsed = 8
    answer(node, vote_request(2, log_term=1, index=1))
    assert node.replica.election_elapsed == 8


def test_timeouts_are_drawn_from_one_to_two_election_timeouts() -> None:
    options = Options(election_ticks=5)
    drawn = set()
    for seed in range(200):
        storage = node_with().replica.log.storage
        node = RawNode(1, storage, options, Random(seed))
        drawn.add(node.replica.election_timeout)
    assert drawn == {5, 6, 7, 8, 9}


def test_a_candidate_raises_its_term_votes_for_itself_and_asks_everyone() -> None:
    node = node_with(1, 1, term=3)
    node.campaign()
    assert (node.replica.term, node.replica.vote) == (4, 1)
    requests = of_kind(settle(node), MessageKind.VOTE)
    assert [(r.to, r.term, r.log_term, r.index) for r in requests] == [(2, 4, 1, 2), (3, 4, 1, 2)]


def test_a_candidates_own_vote_counts_only_once_it_is_durable() -> None:
    node = node_with(voters=(1,))
    node.campaign()
    assert node.replica.role is Role.CANDIDATE
    assert node.ready() is not None
    assert node.replica.role is Role.CANDIDATE
    node.advance()
    assert node.replica.role is Role.LEADER


@pytest.mark.parametrize(("size", "needed"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3)])
def test_a_candidate_with_votes_of_a_majority_becomes_leader(size: int, needed: int) -> None:
    node = node_with(voters=tuple(range(1, size + 1)))
    node.campaign()
    settle(node)
    for voter in range(2, needed + 2):
        assert node.replica.role is Role.CANDIDATE
        step(node, Message(MessageKind.VOTE_REPLY, 1, voter, 1))
    assert node.replica.role is Role.LEADER


def test_a_vote_that_arrives_twice_counts_once() -> None:
    node = node_with(voters=(1, 2, 3, 4, 5))
    node.campaign()
    settle(node)
    for _ in range(3):
        step(node, Message(MessageKind.VOTE_REPLY, 1, 2, 1))
    assert node.replica.role is Role.CANDIDATE


def test_a_vote_of_an_earlier_term_does_not_count() -> None:
    node = node_with()
    node.campaign()
    settle(node)
    node.campaign()
    settle(node)
    step(node, Message(MessageKind.VOTE_REPLY, 1, 2, 1))
    assert node.replica.role is Role.CANDIDATE


def test_a_learners_vote_does_not_count() -> None:
    group = Group(3, configuration=Configuration((1, 2, 3), (), (4, 5)), spare=2)
    node = group.nodes[1]
    node.campaign()
    settle(node)
    for learner in (4, 5):
        step(node, Message(MessageKind.VOTE_REPLY, 1, learner, 1))
    assert node.replica.role is Role.CANDIDATE


def test_a_candidate_refused_by_a_majority_follows_again() -> None:
    node = node_with()
    node.campaign()
    settle(node)
    for voter in (2, 3):
        step(node, Message(MessageKind.VOTE_REPLY, 1, voter, 1, reject=True))
    assert node.replica.role is Role.FOLLOWER
    assert node.replica.vote == 1, "the vote outlives the candidacy"


def test_a_candidate_that_hears_a_leader_of_its_term_follows_it() -> None:
    node = node_with()
    node.campaign()
    settle(node)
    step(node, Message(MessageKind.APPEND, 1, 2, 1))
    assert (node.replica.role, node.replica.leader) == (Role.FOLLOWER, 2)


def test_a_candidate_whose_election_times_out_starts_another() -> None:
    node = node_with()
    node.campaign()
    settle(node)
    for _ in range(node.replica.election_timeout):
        node.tick()
    assert (node.replica.role, node.replica.term) == (Role.CANDIDATE, 2)


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE, Role.LEADER])
def test_a_higher_term_makes_a_follower_of_everyone(role: Role) -> None:
    node = node_with()
    if role is not Role.FOLLOWER:
        node.campaign()
        settle(node)
    if role is Role.LEADER:
        step(node, Message(MessageKind.VOTE_REPLY, 1, 2, 1))
    assert node.replica.role is role
    step(node, Message(MessageKind.APPEND_REPLY, 1, 2, 9))
    assert (node.replica.role, node.replica.term) == (Role.FOLLOWER, 9)
    assert node.replica.vote == 0, "no vote was cast in the new term"


def test_a_vote_request_of_a_lower_term_is_not_granted() -> None:
    node = node_with(term=5)
    assert step(node, vote_request(4)) == []
    assert node.replica.vote == 0


def test_one_vote_a_term_first_come_first_served() -> None:
    node = node_with()
    assert not answer(node, vote_request(1, sender=2)).reject
    assert answer(node, vote_request(1, sender=3)).reject
    assert not answer(node, vote_request(1, sender=2)).reject, "asked again, answered the same"


def test_a_vote_survives_a_restart() -> None:
    node = node_with()
    answer(node, vote_request(1, sender=2))
    again = RawNode(1, node.replica.log.storage, CALM, Random(1))
    assert again.replica.hard_state == HardState(1, 2, 0)
    assert answer(again, vote_request(1, sender=3)).reject


def test_a_vote_survives_stepping_down_within_its_term() -> None:
    node = elected(node_with(options=Options(prevote=False)), 2)
    for _ in range(2 * node.replica.options.election_ticks):
        node.tick()
    assert node.replica.role is Role.FOLLOWER
    assert (node.replica.term, node.replica.vote) == (1, 1)
    settle(node)
    assert answer(node, vote_request(1, 1, 99, sender=3)).reject


def test_a_vote_is_durable_before_it_is_told() -> None:
    node = node_with(options=Options(prevote=False, async_storage=True))
    node.step(vote_request(1))
    ready = node.ready()
    assert ready is not None
    assert ready.must_sync
    (store,) = ready.messages
    assert (store.kind, store.term, store.vote) == (MessageKind.STORE, 1, 2)
    assert [reply.kind for reply in store.responses] == [MessageKind.VOTE_REPLY]


@pytest.mark.parametrize(
    ("log_term", "index", "granted"),
    [
        (3, 1, True),  # a later last term wins, however short the log
        (2, 3, True),  # the same log
        (2, 4, True),  # the same last term, longer
        (2, 2, False),  # the same last term, shorter
        (1, 9, False),  # an earlier last term, however long the log
    ],
)
def test_a_vote_goes_only_to_a_log_at_least_as_up_to_date(
    log_term: int, index: int, granted: bool
) -> None:
    node = node_with(1, 2, 2)
    assert answer(node, vote_request(3, log_term, index)).reject is not granted


def test_a_leader_announces_itself_at_once_and_keeps_reminding() -> None:
    node = node_with()
    node.campaign()
    settle(node)
    announced = step(node, Message(MessageKind.VOTE_REPLY, 1, 2, 1))
    assert [m.to for m in of_kind(announced, MessageKind.APPEND)] == [2, 3]
    node.tick()
    assert [m.to for m in of_kind(settle(node), MessageKind.HEARTBEAT)] == [2, 3]


def test_a_learner_and_a_stranger_never_stand() -> None:
    for configuration in (Configuration((2, 3), (), (1,)), Configuration((2, 3))):
        node = Group(3, configuration=configuration).nodes[1]
        for _ in range(100):
            node.tick()
        node.campaign()
        assert node.replica.role is Role.FOLLOWER


def test_a_learner_votes_because_it_may_not_know_of_its_promotion() -> None:
    node = Group(3, configuration=Configuration((2, 3), (), (1,))).nodes[1]
    assert not answer(node, vote_request(1, log_term=1, index=1)).reject


def test_at_most_one_leader_can_be_elected_in_a_term() -> None:
    group = Group(3)
    group.nodes[1].campaign()
    group.nodes[2].campaign()
    group.pump()
    leaders = [n.id for n in group.nodes.values() if n.replica.role is Role.LEADER]
    assert len(leaders) == 1
    assert {node.replica.term for node in group.nodes.values()} == {1}
