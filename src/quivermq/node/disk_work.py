"""Carries out the disk work of a replica, in the disk thread."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quivermq.errors import BrokenInvariant, Corrupt, QuiverError, StorageFull, TooLarge
from quivermq.log import Disk, Log, LogSettings, Owner
from quivermq.replica import (
    DiskWork,
    Persist,
    Repair,
    ReplicaState,
    carry_out_group,
    newest_state,
)


@dataclass(frozen=True, slots=True)
class Drop:
    """Retention: `plan(log)` drops what need not be kept."""

    plan: Callable[[Log], object]


Work = DiskWork | Drop


def do_disk_work(log: Log, work: Sequence[Work]) -> int:
    """As much as the disk has room for, in order, with as few fsyncs as are enough.

    Returns how many pieces are done: all of them, unless the disk is full.
    """
    done = 0
    for pieces in _runs(work):
        if isinstance(pieces, Drop):
            _drop(log, pieces)
            done += 1
            continue
        try:
            count = carry_out_group(log, pieces)
        except StorageFull:
            return done
        if any(isinstance(piece, Repair) for piece in pieces):
            # The replica may start now, on the event loop: it finds its checkpoint in memory.
            log.preload_checkpoint()
        done += count
        if count < len(pieces):
            return done
    return done


def waits_for_no_disk(work: Sequence[Work]) -> bool:
    """Whether it is all entries, which wait for no fsync where the disk syncs them later.

    Votes and checkpoints are always synced at once.
    """
    return all(
        isinstance(piece, Persist) and not piece.term and piece.checkpoint is None for piece in work
    )


def _runs(work: Sequence[Work]) -> Iterator[Drop | list[DiskWork]]:
    """The pieces between drops, which may be joined, and the drops."""
    if len(work) == 1:
        only = work[0]
        yield only if isinstance(only, Drop) else [only]
        return
    run: list[DiskWork] = []
    for piece in work:
        if isinstance(piece, Drop):
            if run:
                yield run
            run = []
            yield piece
        else:
            run.append(piece)
    if run:
        yield run


def _drop(log: Log, piece: Drop) -> None:
    try:
        piece.plan(log)
    except (Corrupt, StorageFull, TooLarge):
        # The checkpoint that would replace what is dropped is damaged, or has no place: keep both.
        return


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
