"""What a group asks of the disk thread, and how it is done there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quivermq.errors import Corrupt, StorageFull
from quivermq.log import Log
from quivermq.replica import Persist, Repair, SaveCheckpoint, carry_out


@dataclass(frozen=True, slots=True)
class Drop:
    """Retention: `plan(log)` drops what need not be kept."""

    plan: Callable[[Log], object]


DiskWork = Persist | SaveCheckpoint | Repair | Drop


def do_disk_work(log: Log, work: Sequence[DiskWork]) -> None:
    """All of it, in order. A `StorageFull` that leaves has `done`, the number of pieces done."""
    for done, piece in enumerate(work):
        try:
            if isinstance(piece, Drop):
                _drop(log, piece)
            else:
                carry_out(log, piece)
        except StorageFull as error:
            error.done = done  # type: ignore[attr-defined]
            raise


def _drop(log: Log, piece: Drop) -> None:
    try:
        piece.plan(log)
    except Corrupt:
        # The checkpoint that would replace what is dropped is damaged: keep both.
        return
