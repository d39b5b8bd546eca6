"""Remembers the last holder of messages that wait again: it may ack them until another has them."""

from typing import Final, NamedTuple

from quivermq.intervals import Interval
from quivermq.queue.interval_table import IntervalTable

HOLDERS_MAX: Final = 65_536
"""Intervals of one group. Past it the lowest offsets are forgotten: their acks are refused."""


class LastHolder(NamedTuple):
    """The messages [start, end) were leased to this consumer under this number."""

    start: int
    end: int
    lease: int
    consumer: int


class LastHolders(IntervalTable[LastHolder]):
    """Sorted by offset; each offset has one last holder at most."""

    __slots__ = ()

    def put(self, start: int, end: int, lease: int, consumer: int) -> None:
        """Messages were given back, or their lease expired. Piece by piece, a lease is still one
        holder."""
        self.insert(LastHolder(start, end, lease, consumer))
        if len(self) > HOLDERS_MAX:
            self.remove_first()

    def held(self, lease: int, consumer: int | None, start: int, end: int) -> list[Interval]:
        """The parts of [start, end) that were last in this lease of this consumer; None: of any."""
        return [
            (holder.start, holder.end)
            for holder in self.within(start, end)
            if holder.lease == lease and consumer in {None, holder.consumer}
        ]
