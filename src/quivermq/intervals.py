"""Sets of offsets as sorted intervals: their size is the number of gaps, not of messages.

Pure, and below all packages: brokers and clients use the same.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import sub

from quivermq.errors import BrokenInvariant

Interval = tuple[int, int]
"""Offsets from the first up to and without the second."""


class IntervalSet:
    """Disjoint intervals that do not touch, in order."""

    __slots__ = ("_ends", "_starts", "count")

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.count = 0
        """How many offsets are in it."""
        for start, end in intervals:
            self.add(start, end)

    @classmethod
    def of_columns(cls, starts: Iterable[int], ends: Iterable[int]) -> "IntervalSet":
        """Intervals that are in order and apart already."""
        made = cls()
        made._starts, made._ends = list(starts), list(ends)
        made.count = sum(made._ends) - sum(made._starts)
        return made

    def copy(self) -> "IntervalSet":
        made = IntervalSet()
        made._starts, made._ends, made.count = self._starts.copy(), self._ends.copy(), self.count
        return made

    @property
    def starts(self) -> Sequence[int]:
        return self._starts

    @property
    def ends(self) -> Sequence[int]:
        return self._ends

    def __iter__(self) -> Iterator[Interval]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        """How many intervals."""
        return len(self._starts)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def add(self, start: int, end: int) -> None:
        """Put [start, end) in; what was there already stays."""
        if start >= end:
            return
        if not self._ends or start > self._ends[-1]:
            # Nearly always they come in order.
            self._starts.append(start)
            self._ends.append(end)
            self.count += end - start
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            self.count -= sum(self._ends[first:last]) - sum(self._starts[first:last])
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        self.count += end - start

    def remove(self, start: int, end: int) -> None:
        """Take [start, end) out, as far as it is in."""
        starts, ends = self._starts, self._ends
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        if start >= end or first >= last:
            return
        low, high = starts[first], ends[last - 1]
        if last - first == 1:
            self.count -= min(end, high) - max(start, low)
        else:
            self.count -= sum(ends[first:last]) - sum(starts[first:last])
            self.count += max(start - low, 0) + max(high - end, 0)
        if low < start and end < high:
            starts[first:last], ends[first:last] = (low, end), (start, high)
        elif low < start:
            starts[first:last], ends[first:last] = (low,), (start,)
        elif end < high:
            starts[first:last], ends[first:last] = (end,), (high,)
        else:
            del starts[first:last], ends[first:last]

    def within(self, start: int, end: int) -> list[Interval]:
        """The parts of [start, end) that are in it."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        return [
            (max(start, self._starts[at]), min(end, self._ends[at])) for at in range(first, last)
        ]

    def parts_in(self, start: int, end: int) -> int:
        """How many parts of [start, end) are in it."""
        return max(bisect_left(self._starts, end) - bisect_right(self._ends, start), 0)

    def gaps(self, start: int, end: int) -> list[Interval]:
        """The parts of [start, end) that are not in it."""
        return without([(start, end)], self.within(start, end))

    def first_gap(self, start: int, end: int) -> Interval | None:
        """The first part of [start, end) that is not in it."""
        at = bisect_right(self._ends, start)
        if at < len(self._starts) and self._starts[at] <= start:
            start = self._ends[at]
            at += 1
        if start >= end:
            return None
        return start, min(end, self._starts[at]) if at < len(self._starts) else end

    def take_up_to(self, offset: int) -> int:
        """Take out the intervals that begin at `offset` or below; returns where the last of what is
        taken ends, or `offset`. Intervals do not touch: only one can begin at an end."""
        taken = bisect_right(self._starts, offset)
        if taken:
            offset = max(offset, self._ends[taken - 1])
            self.count -= sum(self._ends[:taken]) - sum(self._starts[:taken])
            del self._starts[:taken], self._ends[:taken]
        return offset

    def validate(self) -> None:
        """Raise `BrokenInvariant` unless the intervals are sorted, apart and counted."""
        before = -1
        for start, end in self:
            if not before < start < end:
                raise BrokenInvariant(f"interval {start} to {end} comes after {before}")
            before = end
        if self.count != sum(self._ends) - sum(self._starts):
            raise BrokenInvariant(f"{self.count} offsets are counted in {list(self)[:10]}")


def without(wanted: Iterable[Interval], taken: Iterable[Interval]) -> list[Interval]:
    """Sorted intervals without the offsets of sorted others."""
    left: list[Interval] = []
    cuts = list(taken)
    at = 0
    for start, end in wanted:
        while at < len(cuts) and cuts[at][1] <= start:
            at += 1
        low, number = start, at
        while number < len(cuts) and cuts[number][0] < end:
            cut_start, cut_end = cuts[number]
            if cut_start > low:
                left.append((low, cut_start))
            low = max(low, cut_end)
            number += 1
        if low < end:
            left.append((low, end))
    return left


def join(intervals: Iterable[Interval]) -> list[Interval]:
    """The same offsets, sorted, with no two intervals that touch."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = found[-1][0], end
        elif start < end:
            found.append((start, end))
    return found


def overlap(some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """The offsets that are in both; each of them is short."""
    return [
        (max(start, low), min(end, high))
        for start, end in some
        for low, high in others
        if start < high and low < end
    ]


def split_intervals(intervals: Iterable[Interval], most: int) -> Iterator[list[Interval]]:
    """Portions of one interval each, with so many offsets at most."""
    for start, end in intervals:
        for low in range(start, end, most):
            yield [(low, min(end, low + most))]


def intervals_of(offsets: list[int]) -> list[Interval]:
    """Offsets, of which there must be one, as intervals in order."""
    first, count = offsets[0], len(offsets)
    if offsets[-1] - first == count - 1 and offsets == list(range(first, first + count)):
        return [(first, first + count)]
    ordered = sorted(set(offsets))
    gaps = enumerate(map(sub, ordered[1:], ordered), 1)
    cuts = [0, *(place for place, gap in gaps if gap != 1), len(ordered)]
    return [(ordered[start], ordered[end - 1] + 1) for start, end in pairwise(cuts)]
