"""Elections: asking for votes, giving them, counting them (§5.2, §5.4.1; thesis §9.6, §3.10)."""

from quivermq.raft import leader
from quivermq.raft.messages import NOBODY, Message, MessageKind, Role
from quivermq.raft.quorum import VoteResult, joint_vote
from quivermq.raft.replica import Replica


def tick(replica: Replica) -> None:
    """One tick of a member that does not lead."""
    replica.election_elapsed += 1
    if replica.election_elapsed >= replica.election_timeout and can_lead(replica):
        replica.election_elapsed = 0
        campaign(replica)


def campaign(replica: Replica) -> None:
    """Stand for election, asking first if pre-votes are on."""
    if not may_campaign(replica):
        return
    if replica.options.prevote:
        replica.become_pre_candidate()
        _ask_for_votes(replica, MessageKind.PREVOTE, replica.term + 1)
    else:
        _stand(replica)


def campaign_for_transfer(replica: Replica) -> None:
    """Stand at once: the leader itself asked for it and has stopped taking proposals."""
    if may_campaign(replica):
        _stand(replica, by_transfer=True)


def can_lead(replica: Replica) -> bool:
    """A learner, a stranger, or a member about to install a snapshot does not stand."""
    return replica.is_voter and replica.log.incoming is None


def may_campaign(replica: Replica) -> bool:
    """Whether this member may stand now.

    Membership takes effect when applied, so a member that knows of a committed change and has not
    applied it would count votes in a configuration that is already history. With two such changes
    behind it, its majority need not meet the current one: of voters {1, 2, 3}, growing to four
    and then five, member 2 holds both changes. Were it to stand as one of three, it could win
    with 3 while {1, 4, 5} commits. A member that holds the second change knows that the first is
    committed, at the latest by `Replica.commit_by_membership`, so this check is enough.
    """
    if replica.role is Role.LEADER or not can_lead(replica):
        return False
    log = replica.log
    # Only what is applied is ever compacted away, even if word of it is still on its way here.
    return not any(log.membership_indexes(log.applied + 1, log.committed + 1))


def on_vote_request(replica: Replica, message: Message) -> None:
    """Give or refuse a vote, or say how one would be given.

    Learners answer too: the candidate may know of a promotion that this member has not heard of,
    and without its vote no leader could be elected. A promise for a future term costs nothing, so a
    pre-vote does not look at the vote of this term.
    """
    is_prevote = message.kind is MessageKind.PREVOTE
    free_to_vote = (
        replica.vote == message.sender
        or (replica.vote == NOBODY and replica.leader == NOBODY)
        or (is_prevote and message.term > replica.term)
    )
    granted = free_to_vote and replica.log.is_up_to_date(message.log_term, message.index)
    reply = MessageKind.PREVOTE_REPLY if is_prevote else MessageKind.VOTE_REPLY
    # A grant echoes the term asked for; a refusal tells the candidate of the term here.
    term = message.term if granted else replica.term
    replica.send(
        Message(
            reply,
            message.sender,
            replica.id,
            term,
            reject=not granted,
            known_commit=replica.known_commit,
        )
    )
    if granted and not is_prevote:
        replica.election_elapsed = 0
        replica.vote = message.sender
    _learn_commit(replica, message)


def on_vote_reply(replica: Replica, message: Message) -> None:
    """Count an answer; the first one of each member stands."""
    if _learn_commit(replica, message):
        return
    replica.votes.setdefault(message.sender, not message.reject)
    result = joint_vote(replica.configuration, replica.votes)
    if result is VoteResult.LOST:
        # A pre-vote carries a term that was never entered: fall back to the own one.
        replica.become_follower(replica.term, NOBODY)
    elif result is VoteResult.WON and replica.role is Role.PRE_CANDIDATE:
        _stand(replica)
    elif result is VoteResult.WON:
        leader.take_leadership(replica)


def _learn_commit(replica: Replica, message: Message) -> bool:
    """Take over a commit index from a vote message if it decides about the membership.

    A leader that removed itself is gone once it has applied that, and may not have told everyone.
    A member that has not heard goes on to ask the old voters, which may refuse it for good or be
    gone, and refuses in turn those that have heard and whose log is shorter. Having the very entry
    that another knows to be committed is proof enough. It ends a candidacy, whose votes would be
    counted in a configuration that is history: see `may_campaign`.
    """
    term, index = message.known_commit
    log = replica.log
    if replica.role is Role.LEADER or index <= log.committed or log.term(index) != term:
        return False
    if not any(log.membership_indexes(log.committed + 1, index + 1)):
        return False
    log.commit_to(index)
    if replica.role is not Role.FOLLOWER:
        replica.become_follower(replica.term, NOBODY)
    return True


def _stand(replica: Replica, *, by_transfer: bool = False) -> None:
    replica.become_candidate()
    _ask_for_votes(replica, MessageKind.VOTE, replica.term, by_transfer=by_transfer)


def _ask_for_votes(
    replica: Replica, kind: MessageKind, term: int, *, by_transfer: bool = False
) -> None:
    log = replica.log
    for member in replica.configuration.all_voters:
        if member == replica.id:
            # The own vote counts once it is durable, like any other.
            reply = (
                MessageKind.PREVOTE_REPLY if kind is MessageKind.PREVOTE else MessageKind.VOTE_REPLY
            )
            replica.send(Message(reply, member, replica.id, term))
        else:
            replica.send(
                Message(
                    kind,
                    member,
                    replica.id,
                    term,
                    log_term=log.last_term,
                    index=log.last_index,
                    by_transfer=by_transfer,
                    known_commit=replica.known_commit,
                )
            )
