"""The follower's role: store what the leader sends, and answer (§5.2, §5.3, §7)."""

from quivermq.errors import NotLeader
from quivermq.raft.candidate import campaign_for_transfer
from quivermq.raft.messages import NOBODY, Message, MessageKind, Snapshot
from quivermq.raft.replica import Replica


def on_append(replica: Replica, message: Message) -> None:
    """Store entries after the one that both logs share, or say where the logs may agree."""
    hear_leader(replica, message)
    log = replica.log
    if message.index < log.committed:
        # What is committed cannot conflict: tell the leader how far this log is known to agree.
        _acknowledge(replica, message, log.committed)
        return
    if log.append_after(message.index, message.log_term, message.entries):
        last_matched = message.index + len(message.entries)
        replica.agreed = max(replica.agreed, last_matched)
        # Beyond the last entry of this message the logs may differ, whatever the leader committed.
        log.commit_to(min(message.commit, last_matched))
        _acknowledge(replica, message, last_matched)
        return
    if replica.options.forgetful_disk:
        _deny(replica, message, message.index)
    hint, hint_term = log.agreement_by_term(min(message.index, log.last_index), message.log_term)
    replica.send(
        Message(
            MessageKind.APPEND_REPLY,
            message.sender,
            replica.id,
            replica.term,
            log_term=hint_term,
            index=message.index,
            reject=True,
            hint=hint,
        )
    )


def on_heartbeat(replica: Replica, message: Message) -> None:
    hear_leader(replica, message)
    log = replica.log
    if replica.options.forgetful_disk and message.commit > max(replica.agreed, log.committed):
        # The leader counts on what was acknowledged before a start, and that may be lost: even
        # where the log is long enough, it may end in entries that had been replaced.
        log.commit_to(replica.agreed)
        _deny(replica, message, message.commit)
        return
    log.commit_to(message.commit)
    reply = Message(
        MessageKind.HEARTBEAT_REPLY, message.sender, replica.id, replica.term, round=message.round
    )
    replica.send(reply)


def on_snapshot(replica: Replica, message: Message) -> None:
    hear_leader(replica, message)
    restored = message.snapshot is not None and _restore(replica, message.snapshot)
    log = replica.log
    _acknowledge(replica, message, log.last_index if restored else log.committed)


def on_timeout_now(replica: Replica, _message: Message) -> None:
    campaign_for_transfer(replica)


def on_propose(replica: Replica, message: Message) -> None:
    """Pass a proposal on if that is wanted, else refuse it."""
    if replica.leader == NOBODY:
        raise NotLeader(f"member {replica.id} knows of no leader")
    if not replica.options.forward_proposals:
        raise NotLeader(f"member {replica.id} follows {replica.leader}")
    replica.send(message._replace(to=replica.leader, sender=replica.id))


def on_read(replica: Replica, message: Message) -> None:
    """Ask the leader up to where this member must apply before it may answer a read.

    A read of another member was meant for a leader: that member will learn of the new one.
    """
    if message.sender != replica.id:
        return
    if replica.leader == NOBODY:
        raise NotLeader(f"member {replica.id} knows of no leader")
    replica.send(message._replace(to=replica.leader))


def on_transfer(replica: Replica, message: Message) -> None:
    if replica.leader == NOBODY:
        raise NotLeader(f"member {replica.id} knows of no leader")
    replica.send(message._replace(to=replica.leader, term=replica.term))


def hear_leader(replica: Replica, message: Message) -> None:
    """The message proves that its sender leads this term."""
    replica.election_elapsed = 0
    replica.leader = message.sender


def forget_leader(replica: Replica) -> None:
    """Stop believing in the leader, so that votes can be given before the lease runs out.

    Not with lease reads: the leader answers those because its followers keep believing.
    """
    if not replica.options.lease_reads:
        replica.leader = NOBODY


def _acknowledge(replica: Replica, message: Message, index: int) -> None:
    replica.after_write.append(
        Message(MessageKind.APPEND_REPLY, message.sender, replica.id, replica.term, 0, index)
    )


def _deny(replica: Replica, message: Message, index: int) -> None:
    """Tell the leader that this log is not known to reach `index`, whatever was acknowledged."""
    log = replica.log
    hint = min(index, log.last_index)
    denial = Message(
        MessageKind.HEARTBEAT_REPLY,
        message.sender,
        replica.id,
        replica.term,
        log_term=log.term(hint) or 0,
        index=index,
        reject=True,
        hint=hint,
        round=message.round,
    )
    replica.send(denial)


def _restore(replica: Replica, snapshot: Snapshot) -> bool:
    """Take over a snapshot's log and configuration; False if there is no need.

    The configuration need not hold this member: a newcomer may be given a snapshot from before it
    was added, and meets the entry that adds it on the way up.
    """
    log = replica.log
    if snapshot.index <= log.committed:
        return False
    if log.term(snapshot.index) == snapshot.term:
        # The entries are here: knowing them committed is all that the snapshot adds, and keeping
        # the log keeps what may already have been acknowledged after it (§7).
        log.commit_to(snapshot.index)
        return False
    if log.applying > log.applied:
        # The entries handed out would be applied on top of the snapshot, and a membership change
        # among them on top of its configuration. The leader will offer the snapshot again.
        return False
    log.restore(snapshot)
    replica.adopt(snapshot.configuration)
    return True
