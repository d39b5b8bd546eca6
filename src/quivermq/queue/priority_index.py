"""The index of priorities: finds the messages of each priority, without an entry per message.

A stretch is a run of messages with one priority; batches that follow one another make one stretch.
Delayed batches stand apart, with their time. The index is part of the replicated state: the
next leader finds the urgent messages of a long backlog without reading it.

Bounded: what every group has passed is flattened to one stretch of the lowest priority, so that a
group that begins there finds it in order of offsets. If groups lag so far behind that there is
nothing to flatten, a batch is filed under the priority of the one before it: it is delivered all
the same, only less urgently or more so than asked for.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from quivermq.batches import PRIORITY_MAX
from quivermq.errors import BrokenInvariant
from quivermq.intervals import Interval, IntervalSet
from quivermq.queue.columns import ColumnReader, column
from quivermq.queue.delayed import LAST_KEY, Delayed, DelayedBatches, DueKey, key_of

LEVELS: Final = PRIORITY_MAX + 1
STRETCHES_MAX: Final = 262_144
DELAYED_MANY: Final = 65_536
"""Delayed batches, due or not, with which those that every group has passed are forgotten."""
DELAYED_MAX: Final = 1_000_000
"""Delayed batches of which the index knows; past it, producers are refused."""

NO_OFFSET: Final = 2**64 - 1

CLOCK_ERROR_MS_MAX: Final = 24 * 3600 * 1000
"""A delay is forgotten only so long after it ended: clocks go back."""

FLATTENED_AT_ONCE: Final = 16_384
"""Delayed batches that are passed, and looked at, in one attempt: it is made between two entries,
while all requests wait."""

_COUNTS: Final = Struct("<" + "I" * LEVELS + "QQQB")


class PriorityIndex:
    """The index of one partition. Grows with the entries, shrinks from the front."""

    def __init__(self) -> None:
        self.begin = 0
        """The first offset that it knows of."""
        self.end = 0
        self.flat_end = 0
        """Below, everything stands under level 0, whatever its priority."""
        self._starts = [array("Q") for _ in range(LEVELS)]
        self._ends = [array("Q") for _ in range(LEVELS)]
        self._last_level = 0
        self.size = 0
        self.delayed = DelayedBatches()

    def add(self, start: int, end: int, priority: int, due_ms: int = 0) -> None:
        """A batch is applied; `due_ms` if it must wait for its time."""
        if self.begin == self.end:
            self.begin = start
        self.end = end
        if due_ms:
            self.delayed.add(start, end, due_ms, priority)
            return
        level = priority if self.size < STRETCHES_MAX else self._last_level
        ends = self._ends[level]
        if ends and ends[-1] == start:
            ends[-1] = end
        else:
            self._starts[level].append(start)
            ends.append(end)
            self.size += 1
        self._last_level = level

    def find(self, level: int, cursor: int, end: int) -> Interval | None:
        """The first stretch of a level from `cursor` on and below `end`, or what is left of it."""
        ends = self._ends[level]
        # A cursor is at the end nearly always, or somewhere in the first stretch that is left.
        if not ends or ends[-1] <= cursor:
            return None
        at = bisect_right(ends, cursor)
        start = max(self._starts[level][at], cursor)
        return (start, min(ends[at], end)) if start < end else None

    def count(self, level: int, cursor: int, end: int, limit: int) -> int:
        """Messages of a level from `cursor` to `end`, counted no further than `limit`."""
        found = 0
        while found < limit and (stretch := self.find(level, cursor, end)) is not None:
            found += stretch[1] - stretch[0]
            cursor = stretch[1]
        return min(found, limit)

    @property
    def is_full(self) -> bool:
        """Whether something should be flattened."""
        return self.size >= STRETCHES_MAX or len(self.delayed) >= DELAYED_MANY

    @property
    def takes_delayed(self) -> bool:
        """Whether there is room for a further delayed batch."""
        return len(self.delayed) < DELAYED_MAX

    @property
    def middle(self) -> int:
        """Half way between what is flat and the end."""
        return (max(self.begin, self.flat_end) + self.end) // 2

    def trim(self, begin: int) -> None:
        """Messages below `begin` do not exist any more."""
        if begin <= self.begin:
            return
        self.begin = begin
        for level in range(LEVELS):
            starts, ends = self._starts[level], self._ends[level]
            gone = bisect_right(ends, begin)
            self.size -= gone
            del starts[:gone], ends[:gone]
            if starts and starts[0] < begin:
                starts[0] = begin
        self.delayed.trim(begin)
        self.end = max(self.end, begin)

    def flatten(
        self,
        end: int,
        now_ms: int,
        cancelled: IntervalSet,
        taken: tuple[DueKey, int] = (LAST_KEY, NO_OFFSET),
        turn: int = 0,
    ) -> None:
        """Forget the priorities of what is below `end`; but not delays that are not over, nor
        delayed batches of which some was cancelled, nor those that a group has not `taken`: behind
        this due time, or from this offset on.

        Not all at once, if there are very many delayed batches: `turn` counts the attempts.
        """
        self._flatten_to(self._flat_limit(min(end, self.end)))
        over = min(taken[0], key_of(max(now_ms - CLOCK_ERROR_MS_MAX, 0)))
        window = self.delayed.over(over, turn * FLATTENED_AT_ONCE, FLATTENED_AT_ONCE)
        limit = min(taken[1], self.flat_end)
        gone = [
            one for one in window if one.end <= limit and not cancelled.within(one.start, one.end)
        ]
        if gone:
            gone.sort()
            self.delayed.forget(gone)
            self._fill(gone)

    def _flat_limit(self, end: int) -> int:
        """How far to flatten: not past many delayed batches, and none of them in halves."""
        first = self.delayed.position(max(self.begin, self.flat_end))
        last = first + FLATTENED_AT_ONCE
        if last < len(self.delayed):
            end = min(end, self.delayed.start_at(last))
        inside = self.delayed.holding(end)
        return end if inside is None else min(end, inside.start)

    def _flatten_to(self, end: int) -> None:
        begin = max(self.begin, self.flat_end)
        if end <= begin:
            return
        for level in range(1, LEVELS):
            starts, ends = self._starts[level], self._ends[level]
            gone = bisect_right(ends, end)
            del starts[:gone], ends[:gone]
            if starts and starts[0] < end:
                starts[0] = end
        starts, ends = self._starts[0], self._ends[0]
        first, last = bisect_right(ends, begin), bisect_right(ends, end)
        if last < len(starts) and starts[last] < end:
            if starts[last] < begin:
                starts.insert(last, starts[last])
                ends.insert(last, begin)
                first, last = first + 1, last + 1
            starts[last] = end
        if first < last and starts[first] < begin:
            ends[first] = begin
            first += 1
        flat: list[Interval] = []
        for one in self.delayed.overlapping(begin, end):
            if begin < one.start:
                flat.append((begin, one.start))
            begin = one.end
        if begin < end:
            flat.append((begin, end))
        starts[first:last] = array("Q", [start for start, _ in flat])
        ends[first:last] = array("Q", [stop for _, stop in flat])
        self.size = sum(map(len, self._starts))
        self.flat_end = end

    def _fill(self, batches: Sequence[Delayed]) -> None:
        """Batches are not delayed any more: they close gaps between stretches. In one pass."""
        old_starts, old_ends = self._starts[0], self._ends[0]
        starts, ends = array("Q"), array("Q")
        from_start = from_end = 0
        for low, high in IntervalSet((one.start, one.end) for one in batches):
            at = bisect_left(old_starts, low)
            starts.extend(old_starts[from_start:at])
            ends.extend(old_ends[from_end:at])
            if at and old_ends[at - 1] == low:
                ends.pop()
            else:
                starts.append(low)
            from_start = from_end = at
            if at < len(old_starts) and old_starts[at] == high:
                from_start = at + 1
            else:
                ends.append(high)
        starts.extend(old_starts[from_start:])
        ends.extend(old_ends[from_end:])
        self._starts[0], self._ends[0] = starts, ends
        self.size = sum(map(len, self._starts))

    @property
    def size_bytes(self) -> int:
        """The size of it in a checkpoint."""
        return 16 * self.size + self.delayed.size_bytes

    def pack(self) -> bytes:
        """The same bytes on every replica that applied the same entries."""
        counts = [len(starts) for starts in self._starts]
        parts = [_COUNTS.pack(*counts, self.begin, self.end, self.flat_end, self._last_level)]
        for starts, ends in zip(self._starts, self._ends, strict=True):
            parts += (column("Q", starts), column("Q", ends))
        return b"".join((*parts, self.delayed.pack()))

    @classmethod
    def unpack(cls, data: memoryview) -> "PriorityIndex":
        found, reader = cls(), ColumnReader(data)
        *counts, found.begin, found.end, found.flat_end, found._last_level = reader.values(_COUNTS)
        for level, count in enumerate(counts):
            found._starts[level] = reader.column("Q", count)
            found._ends[level] = reader.column("Q", count)
        found.size = sum(counts)
        found.delayed = DelayedBatches.unpack(reader)
        reader.end("the stretches")
        return found

    def validate(self) -> None:
        """Raise `BrokenInvariant` unless every stretch is in order and no two overlap."""
        if self.size != sum(map(len, self._starts)):
            raise BrokenInvariant(f"{self.size} stretches are counted")
        every = [(start, end) for _, start, end in self._all()]
        every += [(one.start, one.end) for one in self.delayed]
        self.delayed.validate()
        at = self.begin
        for start, end in sorted(every):
            if not at <= start < end <= self.end:
                raise BrokenInvariant(f"stretch {start} to {end} follows {at}")
            at = end

    def _all(self) -> Iterator[tuple[int, int, int]]:
        for level in range(LEVELS):
            for start, end in zip(self._starts[level], self._ends[level], strict=True):
                yield level, start, end
