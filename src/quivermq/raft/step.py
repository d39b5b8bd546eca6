"""Dispatches a message: the rule of terms, then the handler for its kind and the role.

The tables below are the whole protocol at a glance. A kind that a role has no handler for says
nothing to that role: an old answer, or one to a question that another has already answered.
"""

from collections.abc import Callable, Mapping

from quivermq.errors import NotLeader
from quivermq.raft import candidate, follower, leader
from quivermq.raft.messages import NOBODY, Message, MessageKind, ReadState, Role, entry_bytes
from quivermq.raft.replica import Replica

Handler = Callable[[Replica, Message], None]

FROM_LEADERS = frozenset({MessageKind.APPEND, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT})
VOTE_REQUESTS = frozenset({MessageKind.VOTE, MessageKind.PREVOTE})


def step(replica: Replica, message: Message) -> None:
    """Let `replica` take in one message."""
    if message.term != replica.term and message.term:
        if message.term < replica.term:
            _answer_the_past(replica, message)
            return
        if not _meet_higher_term(replica, message):
            return
    handler = HANDLERS[replica.role].get(message.kind)
    if handler:
        handler(replica, message)


def _meet_higher_term(replica: Replica, message: Message) -> bool:
    """A higher term makes a follower of everyone (§5.1); False if the message is to be ignored."""
    if message.kind in VOTE_REQUESTS and _is_in_lease(replica) and not message.by_transfer:
        # A member cut off from the leader, or removed, must not depose a leader that the rest
        # hears well (§6, thesis §4.2.3).
        return False
    if message.kind is MessageKind.PREVOTE:
        return True
    if message.kind is MessageKind.PREVOTE_REPLY and not message.reject:
        # The term is the one asked for; it is entered when a quorum has agreed.
        return True
    sender = message.sender if message.kind in FROM_LEADERS else NOBODY
    replica.become_follower(message.term, sender)
    return True


def _is_in_lease(replica: Replica) -> bool:
    return (
        replica.options.check_quorum
        and replica.leader != NOBODY
        and replica.election_elapsed < replica.options.election_ticks
    )


def _answer_the_past(replica: Replica, message: Message) -> None:
    """Deal with a message of a term that is over."""
    options = replica.options
    if message.kind is MessageKind.PREVOTE:
        refusal = Message(
            MessageKind.PREVOTE_REPLY, message.sender, replica.id, replica.term, reject=True
        )
        replica.send(refusal)
    elif message.kind is MessageKind.STORED:
        # The log may since have been cut and grown again to the same position: that the entry
        # there was written in an earlier term does not say that the one here is. A snapshot
        # cannot be replaced in that way.
        _snapshot_stored(replica, message)
    elif message.kind in (MessageKind.APPEND, MessageKind.HEARTBEAT) and (
        options.check_quorum or options.prevote
    ):
        # A member whose term ran ahead while it was cut off would otherwise be ignored by the
        # group, whose pre-votes and leases shield it, and would ignore the group's leader for
        # ever: telling the leader of the term makes the group catch up.
        replica.say(MessageKind.APPEND_REPLY, message.sender)


def _on_stored(replica: Replica, message: Message) -> None:
    if message.index:
        replica.log.entries_stored(message.index, message.log_term)
    _snapshot_stored(replica, message)


def _snapshot_stored(replica: Replica, message: Message) -> None:
    if message.snapshot:
        index = message.snapshot.index
        replica.log.snapshot_stored(index)
        if index > replica.log.applied:
            _applied_to(replica, index, 0, 0)


def _on_applied(replica: Replica, message: Message) -> None:
    entries = message.entries
    sizes = [entry_bytes(entry) for entry in entries]
    own = sum(
        size for size, entry in zip(sizes, entries, strict=True) if entry.term == replica.term
    )
    _applied_to(replica, max(entries[-1].index, replica.log.applied), sum(sizes), own)


def _applied_to(replica: Replica, index: int, size: int, own_size: int) -> None:
    replica.log.applied_to(index, size)
    if replica.role is Role.LEADER:
        leader.applied(replica, own_size)


def _on_read_reply(replica: Replica, message: Message) -> None:
    replica.read_states.append(ReadState(message.context, message.index))


def _refuse_in_election(replica: Replica, _message: Message) -> None:
    raise NotLeader(f"member {replica.id} is in an election")


def _following(handler: Handler) -> Handler:
    """A candidate that hears a leader of its own term has lost (§5.2)."""

    def follow(replica: Replica, message: Message) -> None:
        replica.become_follower(message.term, message.sender)
        handler(replica, message)

    return follow


_ANY_ROLE: Mapping[MessageKind, Handler] = {
    MessageKind.VOTE: candidate.on_vote_request,
    MessageKind.PREVOTE: candidate.on_vote_request,
    MessageKind.READ_REPLY: _on_read_reply,
    MessageKind.STORED: _on_stored,
    MessageKind.APPLIED: _on_applied,
}

_IN_ELECTION: Mapping[MessageKind, Handler] = {
    **_ANY_ROLE,
    MessageKind.APPEND: _following(follower.on_append),
    MessageKind.HEARTBEAT: _following(follower.on_heartbeat),
    MessageKind.SNAPSHOT: _following(follower.on_snapshot),
    MessageKind.PROPOSE: _refuse_in_election,
    MessageKind.READ: _refuse_in_election,
}

HANDLERS: Mapping[Role, Mapping[MessageKind, Handler]] = {
    Role.FOLLOWER: {
        **_ANY_ROLE,
        MessageKind.APPEND: follower.on_append,
        MessageKind.HEARTBEAT: follower.on_heartbeat,
        MessageKind.SNAPSHOT: follower.on_snapshot,
        MessageKind.TIMEOUT_NOW: follower.on_timeout_now,
        MessageKind.PROPOSE: follower.on_propose,
        MessageKind.READ: follower.on_read,
        MessageKind.TRANSFER: follower.on_transfer,
    },
    Role.PRE_CANDIDATE: {**_IN_ELECTION, MessageKind.PREVOTE_REPLY: candidate.on_vote_reply},
    Role.CANDIDATE: {**_IN_ELECTION, MessageKind.VOTE_REPLY: candidate.on_vote_reply},
    Role.LEADER: {
        **_ANY_ROLE,
        MessageKind.APPEND_REPLY: leader.on_append_reply,
        MessageKind.HEARTBEAT_REPLY: leader.on_heartbeat_reply,
        MessageKind.PROPOSE: leader.on_propose,
        MessageKind.READ: leader.on_read,
        MessageKind.TRANSFER: leader.on_transfer,
    },
}
