"""Checks that appends to a partition and reads of its end are linearizable.

An append is told the offset that it got, a read the end of the partition. There is an order of all
of them in which each takes effect at one moment between its call and its answer, exactly if:

- an append that was answered before another one was asked for has the smaller offset;
- a read shows every append that was answered before the read was asked for;
- a read shows at least the end that was shown by a read answered before;
- an append that is asked for after a read was answered gets an offset that the read did not show.
"""

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from quivermq.testing import Violation
from quivermq.testing.trials.history import TopicPartition


class _Call(NamedTuple):
    began_us: int
    ended_us: int
    end: int
    """An append: behind what it stored. A read: the end that it saw."""
    first: int
    """An append: the offset that it got. A read: the end that it saw."""
    is_read: bool


class LogHistory:
    """Calls of all clients, by partition, with times of one clock."""

    def __init__(self) -> None:
        self._calls: dict[TopicPartition, list[_Call]] = defaultdict(list)

    def append(
        self, place: TopicPartition, began_us: int, ended_us: int, offset: int, count: int
    ) -> None:
        """Messages were acknowledged."""
        self._calls[place].append(_Call(began_us, ended_us, offset + count, offset, is_read=False))

    def read_end(self, place: TopicPartition, began_us: int, ended_us: int, end: int) -> None:
        """A partition was read to its end, at its leader."""
        self._calls[place].append(_Call(began_us, ended_us, end, end, is_read=True))

    def check(self) -> int:
        """Raise `Violation` unless everything is linearizable; returns the number of calls."""
        for place, calls in self._calls.items():
            _check(place, calls)
        return sum(map(len, self._calls.values()))


def _check(place: TopicPartition, calls: list[_Call]) -> None:
    """Whatever began after something had been answered must see it, or come behind it."""
    answered = sorted(calls, key=lambda call: call.ended_us)
    times = [call.ended_us for call in answered]
    # The largest end that any of the first n answers told of.
    highest = [0]
    by: list[_Call | None] = [None]
    for call in answered:
        is_higher = call.end > highest[-1]
        highest.append(call.end if is_higher else highest[-1])
        by.append(call if is_higher else by[-1])
    for call in calls:
        number = bisect_left(times, call.began_us)
        if call.first < highest[number]:
            what = "a read shows the end" if call.is_read else "an append got offset"
            raise Violation(
                f"I6: {place}: {what} {call.first} between {call.began_us} and {call.ended_us} us, "
                f"though {by[number]} was answered before"
            )
