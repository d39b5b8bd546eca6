"""The leader's role: take proposals, keep the leadership or give it up, answer reads.

Sending and accounting is `replication`; serving reads is `read_index`.
"""

from collections.abc import Iterable, Sequence

from quivermq.errors import NotLeader, Overloaded, QuiverError
from quivermq.raft import read_index, replication
from quivermq.raft.membership import MembershipChange, changed
from quivermq.raft.messages import (
    NOBODY,
    Entry,
    EntryKind,
    Message,
    MessageKind,
    entries_bytes,
)
from quivermq.raft.progress import Pace, Progress
from quivermq.raft.quorum import VoteResult, joint_vote
from quivermq.raft.replica import Replica


def take_leadership(replica: Replica) -> None:
    """Lead, beginning with an empty entry: until one of its own term is committed, a leader can
    neither commit what it inherited (§5.4.2) nor know the commit index (§8)."""
    replica.become_leader()
    _append(replica, [Entry(0, 0)])
    replication.broadcast(replica)


def tick(replica: Replica) -> None:
    replica.heartbeat_elapsed += 1
    replica.election_elapsed += 1
    options = replica.options
    if replica.election_elapsed >= options.election_ticks:
        replica.election_elapsed = 0
        if options.check_quorum and not _hears_quorum(replica):
            replica.become_follower(replica.term, NOBODY)
            return
        # The transfer had its election timeout: go on leading, or this member would take no
        # proposals for as long as the target is gone.
        _end_transfer(replica)
    if replica.heartbeat_elapsed >= options.heartbeat_ticks:
        replica.heartbeat_elapsed = 0
        replication.send_heartbeats(replica)


def on_append_reply(replica: Replica, message: Message) -> None:
    """A member stored entries, or found that its log differs."""
    member = message.sender
    progress = replica.progress.get(member)
    if progress is None:
        return
    progress.active = True
    if message.reject:
        replication.take_rejection(replica, message, progress)
        return
    if not replication.take_acknowledgement(replica, message.index, progress):
        return
    if replica.commit_by_counting():
        read_index.start_early(replica)
        replication.broadcast(replica)
    elif member != replica.id and progress.can_learn_commit(replica.log.committed):
        replication.send_append(replica, member, progress)
    if member != replica.id:
        # One answer can free room for several messages.
        while replication.send_append(replica, member, progress, even_empty=False):
            pass
        _finish_transfer(replica, member, progress)


def on_heartbeat_reply(replica: Replica, message: Message) -> None:
    """A member lives: try again what may have been lost, and count its word for reads."""
    progress = replica.progress.get(message.sender)
    if progress is None:
        return
    progress.active = True
    progress.paused = False
    if message.reject:
        replication.take_denial(replica, message, progress)
    # A probed member that is caught up gets an empty append, or it would be probed for ever.
    if progress.match < replica.log.last_index or progress.pace is Pace.PROBE:
        replication.send_append(replica, message.sender, progress)
    if message.round:
        replica.reads.confirm(message.sender, message.round)
        read_index.answer(replica)


def on_propose(replica: Replica, message: Message) -> None:
    propose(replica, message.entries)


def propose(replica: Replica, entries: Sequence[Entry], *, forced: bool = False) -> None:
    """Append proposals and send them out; raises if they cannot be taken. `forced`: no limit of
    bytes refuses them."""
    if (refusal := _closed(replica)) is not None:
        raise refusal
    taken, pending = entries, replica.pending_membership
    if any(entry.kind is EntryKind.MEMBERSHIP for entry in entries):
        taken = _serialised(replica, entries)
    if not _append(replica, taken, forced=forced):
        replica.pending_membership = pending
        raise overloaded(replica)
    replication.broadcast(replica)


def refusal(replica: Replica) -> QuiverError | None:
    """Why nothing can be proposed now, however small; None if something can."""
    if replica.uncommitted_bytes >= replica.options.uncommitted_bytes_max:
        return overloaded(replica)
    return _closed(replica)


def _closed(replica: Replica) -> NotLeader | None:
    if replica.id not in replica.progress:
        return NotLeader(f"member {replica.id} was removed and only finishes its term")
    if replica.transferee != NOBODY:
        return NotLeader(f"leadership is being handed to {replica.transferee}; try again")
    return None


def applied(replica: Replica, size: int) -> None:
    """`size` bytes of entries were applied here."""
    replica.uncommitted_bytes = max(replica.uncommitted_bytes - size, 0)
    leave_joint_if_due(replica)


def leave_joint_if_due(replica: Replica) -> None:
    """Propose to leave a joint configuration that is to be left by itself (thesis §4.3).

    Applying is what triggers it, so a new leader finishes what the one before had begun.
    """
    is_due = replica.configuration.auto_leave and replica.log.applied >= replica.pending_membership
    if is_due and replica.transferee == NOBODY and replica.id in replica.progress:
        # It is as small as an entry can be, and it is needed: no limit refuses it.
        leave = Entry(0, 0, EntryKind.MEMBERSHIP, MembershipChange().encode())
        replica.pending_membership = replica.log.last_index + 1
        _append(replica, [leave], forced=True)
        replication.broadcast(replica)


def configuration_adopted(replica: Replica) -> None:
    """A membership change took effect while this member leads."""
    if not replica.is_voter:
        # It could go on to commit without counting itself, but silence could not depose it.
        if replica.options.step_down_on_removal:
            replica.become_follower(replica.term, NOBODY)
        return
    if replica.commit_by_counting():
        # A smaller quorum can have agreed on more.
        read_index.start_early(replica)
        replication.broadcast(replica)
    else:
        for member, progress in replica.progress.items():
            if member != replica.id:
                replication.send_append(replica, member, progress, even_empty=False)
    if replica.transferee not in replica.configuration.all_voters:
        _end_transfer(replica)
    read_index.answer(replica)


def on_transfer(replica: Replica, message: Message) -> None:
    """Hand leadership to the sender: bring its log up to date, then have it campaign at once."""
    target = message.sender
    progress = replica.progress.get(target)
    if progress is None or progress.is_learner or target == replica.transferee:
        return
    if target == replica.id:
        _end_transfer(replica)
        return
    replica.transferee = target
    replica.election_elapsed = 0
    if progress.match == replica.log.last_index:
        replica.say(MessageKind.TIMEOUT_NOW, target)
    else:
        replication.send_append(replica, target, progress)


def on_read(replica: Replica, message: Message) -> None:
    read_index.take(replica, message)


def _finish_transfer(replica: Replica, member: int, progress: Progress) -> None:
    """Let the target of a transfer campaign once it has the whole log, or it could not win."""
    if member == replica.transferee and progress.match == replica.log.last_index:
        replica.say(MessageKind.TIMEOUT_NOW, member)


def _append(replica: Replica, entries: Iterable[Entry], *, forced: bool = False) -> bool:
    """Put entries into the own log, stamped, and acknowledge them once they are durable here."""
    log = replica.log
    term, index = replica.term, log.last_index
    stamped = [
        Entry(term, index + position, entry.kind, entry.data)
        for position, entry in enumerate(entries, 1)
    ]
    if not append(replica, stamped, forced=forced):
        return False
    replica.after_write.append(
        Message(MessageKind.APPEND_REPLY, replica.id, replica.id, term, 0, log.last_index)
    )
    return True


def append(replica: Replica, stamped: Sequence[Entry], *, forced: bool = False) -> bool:
    """Put entries behind the own log; False if too much waits to be committed.

    Something too large for the limit alone is taken when nothing else waits: it could
    never be taken otherwise.
    """
    size = entries_bytes(stamped)
    waiting = replica.uncommitted_bytes
    over = waiting + size > replica.options.uncommitted_bytes_max
    if over and waiting and not forced:
        return False
    replica.uncommitted_bytes = waiting + size
    replica.log.append(stamped)
    return True


def overloaded(replica: Replica) -> Overloaded:
    limit = replica.options.uncommitted_bytes_max
    return Overloaded(f"{replica.uncommitted_bytes} of {limit} bytes wait to be committed")


def _serialised(replica: Replica, entries: Sequence[Entry]) -> list[Entry]:
    """Proposals with every membership change that may not be made just now as an empty entry.

    The entry stays, so that the positions of the others in one proposal do not shift.
    """
    taken = []
    for position, entry in enumerate(entries, 1):
        if entry.kind is EntryKind.MEMBERSHIP:
            change = MembershipChange.decode(entry.data)
            if replica.options.validate_membership and not _may_change(replica, change):
                taken.append(Entry(0, 0))
                continue
            replica.pending_membership = replica.log.last_index + position
        taken.append(entry)
    return taken


def _may_change(replica: Replica, change: MembershipChange) -> bool:
    if replica.pending_membership > replica.log.applied:
        return False
    asks_to_leave = not change.changes
    if replica.configuration.is_joint != asks_to_leave:
        return False
    # With no other change under way this is the configuration that it will be applied to, so a
    # change that is refused here, and only such a one, would fail there.
    changed(replica.configuration, change)
    return True


def _hears_quorum(replica: Replica) -> bool:
    """Whether a quorum gave a sign of life since the last check; starts the next interval."""
    votes = {member: progress.active for member, progress in replica.progress.items()}
    for member, progress in replica.progress.items():
        progress.active = member == replica.id
    return joint_vote(replica.configuration, votes) is VoteResult.WON


def _end_transfer(replica: Replica) -> None:
    if replica.transferee != NOBODY:
        replica.transferee = NOBODY
        leave_joint_if_due(replica)
