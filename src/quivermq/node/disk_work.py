"""Opens logs with their state in the disk thread, and tells which disk work needs it."""

from collections.abc import Sequence
from typing import NamedTuple

from quivermq.errors import BrokenInvariant, Corrupt, QuiverError
from quivermq.log import Disk, Log, LogSettings, Owner
from quivermq.replica import DiskWork, Persist, ReplicaState, newest_state


def waits_for_no_disk(work: Sequence[DiskWork]) -> bool:
    """Whether it is all entries, which wait for no fsync where the disk syncs them later.

    Votes and checkpoints are always synced at once.
    """
    return all(
        isinstance(piece, Persist) and not piece.term and piece.checkpoint is None for piece in work
    )


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


def open_log(disk: Disk, folder: str, settings: LogSettings, owner: Owner) -> Log:
    """The log of a member of a replica; `Corrupt` if it is that of another: it has other votes."""
    log = Log.open(disk, folder, settings, owner.log_id)
    if log.member != owner.member:
        raise Corrupt(f"{folder} holds the log of member {log.member}, not of {owner.member}")
    return log
