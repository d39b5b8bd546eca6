"""Remembers why messages failed, as their consumers said, until the messages are done or dead."""

from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple

from quivermq.errors import BrokenInvariant
from quivermq.intervals import without
from quivermq.queue.interval_table import IntervalTable
from quivermq.queue.pieces import Piece

REASONS_MAX: Final = 1_000
"""Intervals of one group. Past it the lowest offsets are forgotten: their dead letters tell how
often they failed, and not why."""
REASON_CHARACTERS_MAX: Final = 200
"""The part of a reason that is remembered: it is written to every replica."""
_ENTRY_BYTES: Final = 8 + 8 + 4


class FailureReason(NamedTuple):
    """The messages [start, end) last failed for this reason."""

    start: int
    end: int
    reason: str


class FailureReasons(IntervalTable[FailureReason]):
    """The last reason for each message of a group that was given one."""

    __slots__ = ("size_bytes",)

    def __init__(self, entries: Iterable[FailureReason] = ()) -> None:
        super().__init__(entries)
        self.size_bytes = _size(self)
        """The size of all of it in a checkpoint. Counted along: it is asked for at every ack."""

    def put(self, start: int, end: int, reason: str) -> None:
        """Messages failed."""
        self.insert(FailureReason(start, end, reason))
        if len(self) > REASONS_MAX:
            self.remove_first()

    def of_pieces(self, pieces: Iterable[Piece]) -> list[FailureReason]:
        """Why some of these messages failed before."""
        found = (self.within(piece.start, piece.end) for piece in pieces if piece.failures)
        return list(chain.from_iterable(found))

    def stories_of(self, dead: list[Piece], reason: str) -> dict[str, list[Piece]]:
        """Messages that failed too often, by what their dead letters tell of it: the reason of the
        last failure, or else that of one before."""
        if reason:
            return {f"; the last time: {reason}": dead}
        if not len(self):
            return {"": dead}
        found: dict[str, list[Piece]] = {}
        for piece in dead:
            known = self.within(piece.start, piece.end)
            for start, end, earlier in known:
                found.setdefault(f"; before that: {earlier}", []).append(piece.part(start, end))
            silent = without([(piece.start, piece.end)], [(one.start, one.end) for one in known])
            for start, end in silent:
                found.setdefault("", []).append(piece.part(start, end))
        return found

    def _splice(self, first: int, last: int, entries: list[FailureReason]) -> None:
        self.size_bytes += _size(entries) - _size(self._entries[first:last])
        super()._splice(first, last, entries)

    def validate(self) -> None:
        """Raise `BrokenInvariant` unless the entries are in order and counted."""
        super().validate()
        if self.size_bytes != _size(self):
            raise BrokenInvariant(f"the reasons count {self.size_bytes} bytes")


def _size(entries: Iterable[FailureReason]) -> int:
    return sum(_ENTRY_BYTES + len(entry.reason.encode()) for entry in entries)
