"""PreVote (thesis §9.6), CheckQuorum (§6.2), and no disruption by the removed (§4.2.3)."""

from quivermq.raft import Message, MessageKind, Options, RawNode, Role
from tests.raft.group import CALM, Group, acked, change, elected, node_with, of_kind, settle, step

PREVOTE = Options(check_quorum=False)
LEASE = Options(prevote=False)
BOTH = Options()


def prevote(term: int, log_term: int, index: int, *, sender: int = 2) -> Message:
    return Message(MessageKind.PREVOTE, 1, sender, term, log_term, index)


def silent_for(node: RawNode, ticks: int) -> None:
    for _ in range(ticks):
        node.tick()
    settle(node)


def test_prevote_and_check_quorum_are_on_unless_switched_off() -> None:
    assert Options().prevote
    assert Options().check_quorum


def test_a_pre_candidate_changes_neither_its_term_nor_its_vote() -> None:
    node = node_with(1, term=4, vote=3, options=PREVOTE)
    node.campaign()
    assert node.replica.role is Role.PRE_CANDIDATE
    assert (node.replica.term, node.replica.vote) == (4, 3)
    requests = of_kind(settle(node), MessageKind.PREVOTE)
    assert [(r.to, r.term) for r in requests] == [(2, 5), (3, 5)], "it asks about the next term"


def test_with_a_quorum_of_pre_votes_the_election_begins() -> None:
    node = node_with(options=PREVOTE)
    node.campaign()
    settle(node)
    requests = step(node, Message(MessageKind.PREVOTE_REPLY, 1, 2, 1))
    assert (node.replica.role, node.replica.term) == (Role.CANDIDATE, 1)
    assert [r.to for r in of_kind(requests, MessageKind.VOTE)] == [2, 3]


def test_pre_votes_do_not_count_as_votes() -> None:
    node = node_with(options=PREVOTE)
    node.campaign()
    settle(node)
    step(node, Message(MessageKind.PREVOTE_REPLY, 1, 2, 1))
    step(node, Message(MessageKind.PREVOTE_REPLY, 1, 3, 1))
    assert node.replica.role is Role.CANDIDATE


def test_a_pre_candidate_refused_by_a_majority_follows_in_its_old_term() -> None:
    node = node_with(term=4, options=PREVOTE)
    node.campaign()
    settle(node)
    for member in (2, 3):
        step(node, Message(MessageKind.PREVOTE_REPLY, 1, member, 4, reject=True))
    assert (node.replica.role, node.replica.term) == (Role.FOLLOWER, 4)


def test_answering_a_pre_vote_changes_nothing() -> None:
    node = node_with(1, options=PREVOTE)
    elapsed = node.replica.election_elapsed = 3
    (reply,) = step(node, prevote(9, 1, 1))
    assert (reply.reject, reply.term) == (False, 9), "a grant echoes the term asked for"
    assert (node.replica.term, node.replica.vote) == (1, 0)
    assert node.replica.election_elapsed == elapsed


def test_a_pre_vote_may_be_given_to_several() -> None:
    node = node_with(1, options=PREVOTE)
    assert not step(node, prevote(2, 1, 1, sender=2))[0].reject
    assert not step(node, prevote(2, 1, 1, sender=3))[0].reject


def test_a_pre_vote_is_refused_to_a_log_that_is_behind() -> None:
    node = node_with(1, 2, options=PREVOTE)
    (reply,) = step(node, prevote(3, 1, 5))
    assert (reply.reject, reply.term) == (True, 2), "a refusal tells the term here"


def test_a_pre_vote_of_a_lower_term_is_refused_with_the_term() -> None:
    node = node_with(term=7, options=PREVOTE)
    (reply,) = step(node, prevote(3, 0, 0))
    assert (reply.kind, reply.reject, reply.term) == (MessageKind.PREVOTE_REPLY, True, 7)


def test_a_member_that_was_cut_off_does_not_depose_the_leader_when_it_returns() -> None:
    group = Group(3, options=BOTH)
    group.elect(1)
    group.cut_off = {3}
    for _ in range(50):
        group.nodes[3].tick()
        group.nodes[1].tick()
        group.pump()
    assert group.nodes[3].replica.term == 1, "its term stayed, for nobody answered"
    group.cut_off = set()
    group.tick(1, 3)
    assert group.nodes[1].replica.role is Role.LEADER
    assert group.nodes[1].replica.term == 1
    assert group.nodes[3].replica.leader == 1


def test_a_leader_that_hears_no_quorum_steps_down_within_two_election_timeouts() -> None:
    node = elected(node_with(options=LEASE), 2)
    acked(node, 2, 1)
    silent_for(node, 2 * LEASE.election_ticks - 1)
    assert node.replica.role is Role.LEADER
    silent_for(node, 1)
    assert (node.replica.role, node.replica.term) == (Role.FOLLOWER, 1)


def test_a_leader_that_hears_a_quorum_stays() -> None:
    node = elected(node_with(options=LEASE), 2)
    for _ in range(5 * LEASE.election_ticks):
        node.tick()
        step(node, Message(MessageKind.HEARTBEAT_REPLY, 1, 3, 1))
    assert node.replica.role is Role.LEADER


def test_signs_of_life_of_learners_do_not_keep_a_leader() -> None:
    group = Group(3, options=LEASE, spare=1)
    node = group.elect(1)
    node.apply_membership(change("l4"))
    group.pump()
    for _ in range(2 * LEASE.election_ticks):
        node.tick()
        step(node, Message(MessageKind.HEARTBEAT_REPLY, 1, 4, 1))
    assert node.replica.role is Role.FOLLOWER


def test_without_check_quorum_a_leader_stays_alone_for_ever() -> None:
    node = elected(node_with(options=CALM), 2)
    silent_for(node, 100)
    assert node.replica.role is Role.LEADER


def test_a_member_that_hears_a_leader_ignores_vote_requests_of_higher_terms() -> None:
    node = node_with(1, options=LEASE)
    step(node, Message(MessageKind.HEARTBEAT, 1, 3, 1))
    assert step(node, Message(MessageKind.VOTE, 1, 2, 5, 9, 9)) == []
    assert node.replica.term == 1
    assert step(node, prevote(5, 9, 9)) == []


def test_the_shield_falls_an_election_timeout_after_the_last_word_of_the_leader() -> None:
    node = node_with(1, options=LEASE)
    step(node, Message(MessageKind.HEARTBEAT, 1, 3, 1))
    node.replica.election_timeout = 2 * LEASE.election_ticks - 1
    silent_for(node, LEASE.election_ticks)
    (reply,) = step(node, Message(MessageKind.VOTE, 1, 2, 5, 9, 9))
    assert not reply.reject


def test_forgetting_the_leader_lowers_the_shield_but_keeps_the_term() -> None:
    node = node_with(1, options=LEASE)
    step(node, Message(MessageKind.HEARTBEAT, 1, 3, 1))
    node.forget_leader()
    assert (node.replica.leader, node.replica.term) == (0, 1)
    (reply,) = step(node, Message(MessageKind.VOTE, 1, 2, 5, 9, 9))
    assert not reply.reject


def test_a_vote_request_on_behalf_of_the_leader_passes_the_shield() -> None:
    node = node_with(1, options=BOTH)
    step(node, Message(MessageKind.HEARTBEAT, 1, 3, 1))
    (reply,) = step(node, Message(MessageKind.VOTE, 1, 2, 2, 9, 9, by_transfer=True))
    assert not reply.reject


def test_a_member_whose_term_ran_ahead_brings_the_group_to_it() -> None:
    """It would otherwise be stuck: it ignores the leader, and the group ignores its requests."""
    group = Group(3, options=LEASE)
    group.elect(1)
    group.cut_off = {3}
    group.nodes[3].campaign()
    group.pump()
    group.cut_off = set()
    group.tick(1)
    assert group.nodes[1].replica.term == 2
    assert group.nodes[1].replica.role is Role.FOLLOWER
