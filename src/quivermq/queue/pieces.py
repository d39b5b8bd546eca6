"""Pieces: messages in a row that share a priority and a number of failures."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from quivermq.intervals import Interval


class Piece(NamedTuple):
    """The messages [start, end)."""

    start: int
    end: int
    priority: int
    failures: int

    def part(self, start: int, end: int) -> "Piece":
        """The part of it that lies in [start, end); there must be one."""
        return Piece(max(start, self.start), min(end, self.end), self.priority, self.failures)


def overlapping(pieces: Sequence[Piece], start: int, end: int) -> tuple[int, int]:
    """Which of sorted pieces have messages in [start, end): from the first up to, without, last."""
    first = max(bisect_right(pieces, (start, float("inf"))) - 1, 0)
    if first < len(pieces) and pieces[first].end <= start:
        first += 1
    last = first
    while last < len(pieces) and pieces[last].start < end:
        last += 1
    return first, last


def cut(pieces: Sequence[Piece], intervals: Iterable[Interval]) -> tuple[list[Piece], list[Piece]]:
    """Cut sorted intervals out of sorted pieces, in one pass: the parts inside, and the rest."""
    found: list[Piece] = []
    left: list[Piece] = []
    at = 0
    rest: Piece | None = None
    for low, high in intervals:
        if rest is not None and rest.end <= low:
            left.append(rest)
            rest = None
        if rest is None:
            first = max(bisect_right(pieces, (low, float("inf")), at) - 1, at)
            left += pieces[at:first]
            at = first
        while rest is not None or (at < len(pieces) and pieces[at].start < high):
            if rest is None:
                rest = pieces[at]
                at += 1
            if rest.end <= low:
                left.append(rest)
                rest = None
                continue
            if rest.start < low:
                left.append(rest.part(rest.start, low))
            found.append(rest.part(low, high))
            if rest.end > high:
                rest = rest.part(high, rest.end)
                break
            rest = None
    if rest is not None:
        left.append(rest)
    left += pieces[at:]
    return found, left


def piece_intervals(pieces: Sequence[Piece]) -> list[Interval]:
    """The intervals of pieces, as they come."""
    return [(piece.start, piece.end) for piece in pieces]


def messages_in(pieces: Sequence[Piece]) -> int:
    """How many messages they are."""
    return sum(piece.end - piece.start for piece in pieces)
