"""Brings every member's log in line with the leader's (§5.3, §7).

The leader sends optimistically, learns from each answer, and slows down where answers stay away.
"""

from collections.abc import Sequence

from quivermq.raft.messages import Entry, Message, MessageKind, entries_bytes
from quivermq.raft.progress import Pace, Progress
from quivermq.raft.replica import Replica


def broadcast(replica: Replica) -> None:
    """Send what is new to everyone; where nothing is new, still the commit index."""
    for member, progress in replica.progress.items():
        if member != replica.id:
            send_append(replica, member, progress)


def send_append(
    replica: Replica, member: int, progress: Progress, *, even_empty: bool = True
) -> bool:
    """Send one append, or a snapshot if the entries are gone; False if nothing was sent."""
    if progress.is_paused:
        return False
    log = replica.log
    previous = progress.next - 1
    previous_term = log.term(previous)
    if previous_term is None:
        return _send_snapshot(replica, member, progress)
    entries: Sequence[Entry] = ()
    last_index = log.last_index
    is_behind = previous < log.committed
    progress.inflight.bytes_max = (
        replica.options.behind_bytes_max if is_behind else replica.options.inflight_bytes_max
    )
    # Into a full window goes only an empty append, as a probe: see `Progress.sent`.
    has_room = progress.pace is not Pace.REPLICATE or not progress.inflight.full
    if previous < last_index and has_room:
        entries = log.slice(progress.next, last_index + 1, replica.options.message_bytes_max)
    if not entries and not even_empty:
        return False
    committed = log.committed
    replica.outbox.append(
        Message(
            MessageKind.APPEND,
            member,
            replica.id,
            replica.term,
            previous_term,
            previous,
            entries,
            committed,
        )
    )
    progress.sent(len(entries), entries_bytes(entries) if entries else 0, committed)
    return True


def send_heartbeats(replica: Replica) -> None:
    committed = replica.log.committed
    round_ = replica.reads.wanted_round
    for member, progress in replica.progress.items():
        if member != replica.id:
            # The member's log is known to agree only up to `match`: it must not commit beyond.
            replica.outbox.append(
                Message(
                    MessageKind.HEARTBEAT,
                    member,
                    replica.id,
                    replica.term,
                    commit=min(progress.match, committed),
                    round=round_,
                )
            )


def take_rejection(replica: Replica, message: Message, progress: Progress) -> None:
    """The member's log differs at the append's position: go back and try again."""
    if progress.rejected(message.index, _possible_agreement(replica, message)):
        if progress.pace is Pace.REPLICATE:
            progress.probe()
        send_append(replica, message.sender, progress)


def take_denial(replica: Replica, message: Message, progress: Progress) -> None:
    """The member may have lost what it acknowledged: believe nothing of it, and probe.

    What was committed by counting it stays committed. That is what its disk was configured to risk.
    """
    if message.index <= progress.match and progress.pace is not Pace.SNAPSHOT:
        progress.distrust(message.index, _possible_agreement(replica, message))


def _possible_agreement(replica: Replica, message: Message) -> int:
    """How far the log of who rejects may agree with the own one."""
    if message.log_term > 0:
        # The follower's log has terms up to `log_term` at `hint`; where ours has higher ones, the
        # logs differ. Skip those without asking.
        return replica.log.agreement_by_term(message.hint, message.log_term)[0]
    return message.hint


def take_acknowledgement(replica: Replica, index: int, progress: Progress) -> bool:
    """The member has everything up to `index`, durably; False if that was known."""
    news = progress.acknowledged(index)
    if not news and not (progress.pace is Pace.PROBE and progress.match == index):
        return False
    if progress.pace is Pace.REPLICATE:
        progress.inflight.free_to(index)
    elif progress.pace is Pace.PROBE:
        progress.replicate()
    elif progress.match + 1 >= replica.log.first_index:
        # Whatever snapshot it got, from here on the log is enough.
        progress.probe()
        progress.replicate()
    return True


def unreachable(replica: Replica, member: int) -> None:
    """A message to `member` was lost for certain, so more of the pipeline may be."""
    progress = replica.progress.get(member)
    if progress and progress.pace is Pace.REPLICATE:
        progress.probe()


def snapshot_reported(replica: Replica, member: int, *, arrived: bool) -> None:
    """The transfer of a snapshot ended. Either way the member is probed after its next sign of
    life: at once would be too early if it arrived, and too eager if it failed."""
    progress = replica.progress.get(member)
    if progress is None or progress.pace is not Pace.SNAPSHOT:
        return
    if not arrived:
        progress.pending_snapshot = 0
    progress.probe()
    progress.paused = True


def _send_snapshot(replica: Replica, member: int, progress: Progress) -> bool:
    if not progress.active:
        # It may be gone for good: do not make a snapshot in vain.
        return False
    snapshot = replica.log.incoming or replica.log.storage.snapshot()
    if snapshot is None:
        return False
    if snapshot.index + 1 < replica.log.first_index:
        replica.fail(f"the snapshot at {snapshot.index} ends before the log begins")
    progress.await_snapshot(snapshot.index)
    replica.outbox.append(
        Message(MessageKind.SNAPSHOT, member, replica.id, replica.term, snapshot=snapshot)
    )
    return True
