"""Remembers the last holder of messages that wait again: it may ack them until another has them."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final, NamedTuple

from quivermq.errors import BrokenInvariant
from quivermq.intervals import Interval

HOLDERS_MAX: Final = 65_536
"""Intervals of one group. Past it the lowest offsets are forgotten: their acks are refused."""

_START: Final = itemgetter(0)


class LastHolder(NamedTuple):
    """The messages [start, end) were leased to this consumer under this number."""

    start: int
    end: int
    lease: int
    consumer: int


class LastHolders:
    """Sorted by offset; each offset has one last holder at most."""

    __slots__ = ("_holders",)

    def __init__(self, holders: Iterable[LastHolder] = ()) -> None:
        self._holders = list(holders)

    def copy(self) -> "LastHolders":
        return LastHolders(self._holders)

    def __len__(self) -> int:
        return len(self._holders)

    def __iter__(self) -> Iterator[LastHolder]:
        return iter(self._holders)

    def put(self, start: int, end: int, lease: int, consumer: int) -> None:
        """Messages were given back, or their lease expired."""
        self.remove(start, end)
        at = bisect_right(self._holders, start, key=_START)
        first = last = at
        # Acknowledged or expired piece by piece, a lease is still one holder.
        if at and self._holders[at - 1][1:] == (start, lease, consumer):
            first, start = at - 1, self._holders[at - 1].start
        if at < len(self._holders) and self._holders[at][::2] == (end, lease):
            last, end = at + 1, self._holders[at].end
        self._holders[first:last] = [LastHolder(start, end, lease, consumer)]
        if len(self._holders) > HOLDERS_MAX:
            del self._holders[0]

    def remove(self, start: int, end: int) -> None:
        """Messages are with another consumer, or done."""
        first, last = self._overlapping(start, end)
        if first == last:
            return
        low, high = self._holders[first], self._holders[last - 1]
        kept = []
        if low.start < start:
            kept.append(low._replace(end=start))
        if high.end > end:
            kept.append(high._replace(start=end))
        self._holders[first:last] = kept

    def held(self, lease: int, consumer: int | None, start: int, end: int) -> list[Interval]:
        """The parts of [start, end) that were last in this lease of this consumer; None: of any."""
        first, last = self._overlapping(start, end)
        return [
            (max(start, holder.start), min(end, holder.end))
            for holder in self._holders[first:last]
            if holder.lease == lease and consumer in {None, holder.consumer}
        ]

    def _overlapping(self, start: int, end: int) -> tuple[int, int]:
        first = bisect_right(self._holders, start, key=_START)
        if first and self._holders[first - 1].end > start:
            first -= 1
        last = first
        while last < len(self._holders) and self._holders[last].start < end:
            last += 1
        return first, last

    def validate(self) -> None:
        """Raise `BrokenInvariant` unless they are sorted and apart."""
        before = 0
        for holder in self._holders:
            if not before <= holder.start < holder.end:
                raise BrokenInvariant(f"{holder} comes after {before}")
            before = holder.end
