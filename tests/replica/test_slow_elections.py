"""Elections on disks that take long: with a thousand partitions a vote waits for its fsync."""

from quivermq.raft import Role
from quivermq.replica import ReplicaSettings
from tests.replica.group import Group

ELECTION = ReplicaSettings().election_ticks


def test_a_candidate_does_not_stand_again_while_its_vote_is_on_the_way_to_the_disk() -> None:
    group = Group(3)
    candidate = group[1]
    group[3].is_up = False
    candidate.is_held = True
    candidate.replica.campaign()
    group.settle()
    assert candidate.replica.role is Role.CANDIDATE
    term = candidate.replica.term
    for _ in range(5 * ELECTION):
        candidate.replica.tick(group.now_ms)
        candidate.replica.campaign()
        group.settle()
    assert (candidate.replica.role, candidate.replica.term) == (Role.CANDIDATE, term)
    candidate.is_held = False
    group.settle()
    assert candidate.replica.is_leader
    assert candidate.replica.term == term


def test_a_second_call_to_stand_does_not_make_votes_void_that_are_on_their_way() -> None:
    group = Group(3)
    candidate = group[1]
    for voter in (group[2], group[3]):
        voter.is_held = True
    candidate.replica.campaign()
    group.settle()
    term = candidate.replica.term
    candidate.replica.campaign()
    group.settle()
    assert (candidate.replica.role, candidate.replica.term) == (Role.CANDIDATE, term)
    group[2].is_held = False
    group.settle()
    assert candidate.replica.is_leader


def test_a_candidate_whose_votes_are_lost_stands_again_by_itself() -> None:
    group = Group(3)
    candidate = group[1]
    candidate.replica.campaign()
    group.isolate(1)
    group.settle()
    group.heal()
    for _ in range(4 * ELECTION):
        candidate.replica.tick(group.now_ms)
        group.settle()
    assert candidate.replica.is_leader


def test_most_ticks_of_a_follower_have_no_news() -> None:
    group = Group(3)
    leader = group.leader()
    group.tick(3)
    follower = next(node for node in group.nodes.values() if node is not leader)
    assert not follower.replica.has_news
    follower.replica.tick(group.now_ms)
    assert not follower.replica.has_news
    leader.replica.tick(group.now_ms)
    assert leader.replica.has_news, "heartbeats are due"
    for _ in range(2 * ELECTION):
        follower.replica.tick(group.now_ms)
    assert follower.replica.has_news, "it misses its leader"
