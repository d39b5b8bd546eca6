"""Opens logs in the disk thread, tells which disk work needs it, and writes what needs none."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from quivermq.batches import Frame, Index
from quivermq.errors import BrokenInvariant, Corrupt, QuiverError, StorageFull
from quivermq.log import Disk, Log, LogSettings, NewLog, Owner
from quivermq.replica import DiskWork, Member, Persist, ReplicaState, newest_state

if TYPE_CHECKING:
    from quivermq.tracing import ReplicationSpans


def waits_for_no_disk(work: Sequence[DiskWork]) -> bool:
    """Whether it is all entries, which wait for no fsync where the disk syncs them later.

    Votes and checkpoints are always synced at once.
    """
    return all(
        isinstance(piece, Persist) and not piece.term and piece.checkpoint is None for piece in work
    )


def append_now(log: Log, frames: Sequence[Frame], spans: "ReplicationSpans | None") -> bool:
    """Write entries on the event loop, where no fsync is waited for; False: the disk is full, and
    the log is as it was."""
    try:
        log.append(frames)
    except StorageFull:
        return False
    log.sync(Index(frames[0].header.index - 1))
    if spans is not None:
        spans.write(frames)
    return True


def write_waiting(live: Member, log: Log, spans: "ReplicationSpans | None") -> None:
    """Write now what a replica has taken in, as far as that commits it; the rest goes its way as
    disk work."""
    while frames := live.stamp_waiting_at_once():
        if not append_now(log, frames, spans):
            live.write_later(frames)
            break
        live.wrote_waiting(frames)


class Opened(NamedTuple):
    """A log, and the state at its newest checkpoint: it may be large, and is made in a thread."""

    log: Log
    state: ReplicaState | None
    """None: it is damaged, or there is none."""


def read_state(log: Log) -> Opened:
    """A log with the state at its newest checkpoint."""
    if log.damage:
        # The repair looks at its newest checkpoint, on the event loop.
        log.preload_checkpoint()
        return Opened(log, None)
    try:
        return Opened(log, newest_state(log))
    except (QuiverError, BrokenInvariant):
        # Making a replica of it raises the same, and reports it.
        return Opened(log, None)


def open_new(disk: Disk, settings: LogSettings, new: NewLog) -> Opened:
    """A log that was just made, with the state that it was made with: neither has to be read."""
    log, founding = Log.open_new(disk, settings, new), new.founding
    return Opened(log, ReplicaState.unpack(founding.data) if founding else newest_state(log))


def open_log(disk: Disk, folder: str, settings: LogSettings, owner: Owner) -> Log:
    """The log of a member of a replica; `Corrupt` if it is that of another: it has other votes."""
    log = Log.open(disk, folder, settings, owner.log_id)
    if log.member != owner.member:
        raise Corrupt(f"{folder} holds the log of member {log.member}, not of {owner.member}")
    return log
