"""Pieces: messages in a row that share a priority and a number of failures."""

from bisect import bisect_right
from typing import NamedTuple

from quivermq.queue.intervals import Interval


class Piece(NamedTuple):
    """The messages [start, end)."""

    start: int
    end: int
    priority: int
    failures: int

    def part(self, start: int, end: int) -> "Piece":
        """What of it lies in [start, end); there must be something."""
        return Piece(max(start, self.start), min(end, self.end), self.priority, self.failures)


def overlapping(pieces: list[Piece], start: int, end: int) -> tuple[int, int]:
    """Which of sorted pieces have messages in [start, end): from the first up to, without, last."""
    first = max(bisect_right(pieces, (start, float("inf"))) - 1, 0)
    if first < len(pieces) and pieces[first].end <= start:
        first += 1
    last = first
    while last < len(pieces) and pieces[last].start < end:
        last += 1
    return first, last


def take(pieces: list[Piece], start: int, end: int) -> list[Piece]:
    """Remove [start, end) from sorted pieces; returns what was in there."""
    first, last = overlapping(pieces, start, end)
    if first == last:
        return []
    found = [piece.part(start, end) for piece in pieces[first:last]]
    left = []
    if pieces[first].start < start:
        left.append(pieces[first].part(0, start))
    if pieces[last - 1].end > end:
        left.append(pieces[last - 1].part(end, pieces[last - 1].end))
    pieces[first:last] = left
    return found


def intervals_of(pieces: list[Piece]) -> list[Interval]:
    """Where pieces lie."""
    return [(piece.start, piece.end) for piece in pieces]


def messages_in(pieces: list[Piece]) -> int:
    """How many messages they are."""
    return sum(piece.end - piece.start for piece in pieces)
