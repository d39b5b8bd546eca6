"""Serves linearizable reads as a leader; the bookkeeping is `reads` (thesis §6.4)."""

from quivermq.errors import Overloaded
from quivermq.raft.messages import Message, MessageKind, ReadState
from quivermq.raft.reads import ReadRequest
from quivermq.raft.replica import Replica
from quivermq.raft.replication import send_heartbeats


def take(replica: Replica, message: Message) -> None:
    """Queue a read of this member or of one that follows it.

    Past the limit a follower's read is dropped: it has to be asked again anyway when a message
    is lost.
    """
    if len(replica.reads) >= replica.options.reads_pending_max:
        if message.sender != replica.id:
            return
        raise Overloaded(f"{len(replica.reads)} reads wait for a quorum")
    request = ReadRequest(message.sender, message.context)
    if replica.has_committed_in_term:
        _start(replica, request)
    else:
        # The commit index here may be behind one that the last leader has acknowledged.
        replica.reads.early.append(request)


def start_early(replica: Replica) -> None:
    """The first commit of a term makes the commit index trustworthy."""
    if replica.reads.early:
        early, replica.reads.early = replica.reads.early, []
        for request in early:
            _start(replica, request)


def answer(replica: Replica) -> None:
    """Answer the reads that a quorum has confirmed."""
    for read in replica.reads.release(replica.configuration):
        _answer(replica, read.request, read.index)


def _start(replica: Replica, request: ReadRequest) -> None:
    if replica.options.lease_reads:
        _answer(replica, request, replica.log.committed)
        return
    reads = replica.reads
    if reads.add(request, replica.log.committed):
        reads.confirm(replica.id, reads.round)
        send_heartbeats(replica)
    answer(replica)


def _answer(replica: Replica, request: ReadRequest, index: int) -> None:
    if request.asker == replica.id:
        replica.read_states.append(ReadState(request.context, index))
        return
    reply = Message(
        MessageKind.READ_REPLY,
        request.asker,
        replica.id,
        replica.term,
        index=index,
        context=request.context,
    )
    replica.send(reply)
