"""What is left of a lease: offsets as intervals, never one by one."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from quivermq.client.leases import Interval


class Remainder:
    """Offsets that are not settled. Intervals are given in order, none empty."""

    __slots__ = ("_ends", "_starts", "count")

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.count = 0
        """How many offsets."""
        for start, end in intervals:
            self._starts.append(start)
            self._ends.append(end)
            self.count += end - start

    def within(self, start: int, end: int) -> list[Interval]:
        """What there is of these offsets."""
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        parts = zip(self._starts[first:last], self._ends[first:last], strict=True)
        return [(max(low, start), min(high, end)) for low, high in parts]

    def remove(self, start: int, end: int) -> None:
        """Take out what there is of these offsets."""
        starts, ends = self._starts, self._ends
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        if first >= last:
            return
        low, high = starts[first], ends[last - 1]
        taken = sum(ends[first:last]) - sum(starts[first:last])
        kept = [part for part in ((low, start), (end, high)) if part[0] < part[1]]
        starts[first:last] = [part[0] for part in kept]
        ends[first:last] = [part[1] for part in kept]
        self.count -= taken - sum(part[1] - part[0] for part in kept)
