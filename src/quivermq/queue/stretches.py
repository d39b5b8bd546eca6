"""Where the messages of each priority lie: stretches of offsets, and not a word per message.

A stretch is a run of messages with one priority; batches that follow one another make one stretch.
Delayed batches stand apart, with their time. The index is part of the replicated state: whoever
leads next finds the urgent messages of a long backlog without reading it.

Bounded: what every group has passed is flattened to one stretch of the lowest priority, so that a
group that begins there finds it in order of offsets. If groups lag so far behind that there is
nothing to flatten, a batch is filed under the priority of the one before it: it is delivered all
the same, only less urgently or more so than asked for.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from quivermq.batches.limits import PRIORITY_MAX
from quivermq.errors import BrokenInvariant
from quivermq.queue.intervals import Interval, IntervalSet, without

LEVELS: Final = PRIORITY_MAX + 1
STRETCHES_MAX: Final = 262_144
DELAYED_MANY: Final = 65_536
"""Delayed batches, due or not, with which those that everybody has passed are forgotten."""
DELAYED_MAX: Final = 1_000_000
"""Delayed batches of which the index knows; past it, producers are refused."""

CLOCK_ERROR_MS_MAX: Final = 24 * 3600 * 1000
"""A delay is forgotten only so long after it ended: clocks go back."""

_COUNTS: Final = Struct("<" + "I" * (LEVELS + 1) + "QQQ")
_DELAYED: Final = Struct("<QQQB")


class Delayed(NamedTuple):
    """A batch that must not be delivered before its time."""

    start: int
    end: int
    due_ms: int
    priority: int


class Stretches:
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
        self.delayed: dict[int, Delayed] = {}
        """By start, in order of offsets."""
        self._delayed_starts: list[int] = []

    def add(self, start: int, end: int, priority: int, due_ms: int = 0) -> None:
        """A batch is applied; `due_ms` if it must wait for its time."""
        if self.begin == self.end:
            self.begin = start
        self.end = end
        if due_ms:
            self.delayed[start] = Delayed(start, end, due_ms, priority)
            self._delayed_starts.append(start)
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

    def delayed_from(self, cursor: int, end: int) -> Iterator[Delayed]:
        """Delayed batches from `cursor` on and below `end`, in order of offsets; also one that
        the cursor stands in, because a group was sought there."""
        first = bisect_right(self._delayed_starts, cursor)
        if first and self.delayed[self._delayed_starts[first - 1]].end > cursor:
            first -= 1
        for at in range(first, len(self._delayed_starts)):
            start = self._delayed_starts[at]
            if start >= end:
                return
            yield self.delayed[start]

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
        gone = bisect_left(self._delayed_starts, begin)
        for start in self._delayed_starts[:gone]:
            del self.delayed[start]
        del self._delayed_starts[:gone]
        self.end = max(self.end, begin)

    def flatten(self, end: int, now_ms: int, cancelled: IntervalSet) -> None:
        """Forget the priorities of what is below `end`; but not delays that are not over, nor
        delayed batches of which some was cancelled."""
        end = min(end, self.end)
        for one in self.delayed_from(end, end + 1):
            # Half of a batch would be nowhere.
            end = min(end, one.start)
        if end <= max(self.begin, self.flat_end):
            return
        for level in range(LEVELS):
            starts, ends = self._starts[level], self._ends[level]
            gone = bisect_right(ends, end)
            del starts[:gone], ends[:gone]
            if starts and starts[0] < end:
                starts[0] = end
        due = [
            one.start
            for one in self.delayed_from(0, end)
            if one.due_ms + CLOCK_ERROR_MS_MAX <= now_ms
            and not cancelled.within(one.start, one.end)
        ]
        for start in due:
            del self.delayed[start]
        self._delayed_starts = list(self.delayed)
        held = [(one.start, one.end) for one in self.delayed_from(0, end)]
        flat = without([(self.begin, end)], held)
        self._starts[0][:0] = array("Q", [start for start, _ in flat])
        self._ends[0][:0] = array("Q", [stop for _, stop in flat])
        self.size = sum(map(len, self._starts))
        self.flat_end = end

    def pack(self) -> bytes:
        """The same bytes on every replica that applied the same entries."""
        counts = [len(starts) for starts in self._starts]
        parts = [_COUNTS.pack(*counts, len(self.delayed), self.begin, self.end, self.flat_end)]
        parts.append(bytes([self._last_level]))
        for starts, ends in zip(self._starts, self._ends, strict=True):
            parts += (_little(starts), _little(ends))
        parts += [_DELAYED.pack(*found) for found in self.delayed.values()]
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: memoryview) -> "Stretches":
        found = cls()
        *counts, delayed, found.begin, found.end, found.flat_end = _COUNTS.unpack_from(data)
        at = _COUNTS.size
        found._last_level = data[at]
        at += 1
        for level, count in enumerate(counts):
            for target in (found._starts[level], found._ends[level]):
                target.frombytes(data[at : at + 8 * count])
                _to_native(target)
                at += 8 * count
        found.size = sum(counts)
        for _ in range(delayed):
            one = Delayed(*_DELAYED.unpack_from(data, at))
            found.delayed[one.start] = one
            found._delayed_starts.append(one.start)
            at += _DELAYED.size
        if at != len(data):
            raise BrokenInvariant(f"{len(data) - at} bytes are left behind the stretches")
        return found

    def validate(self) -> None:
        """Raise `BrokenInvariant` unless every stretch is in order and no two overlap."""
        if self.size != sum(map(len, self._starts)):
            raise BrokenInvariant(f"{self.size} stretches are counted")
        every = [(start, end) for _, start, end in self._all()]
        every += [(one.start, one.end) for one in self.delayed.values()]
        at = self.begin
        for start, end in sorted(every):
            if not at <= start < end <= self.end:
                raise BrokenInvariant(f"stretch {start} to {end} follows {at}")
            at = end

    def _all(self) -> Iterator[tuple[int, int, int]]:
        for level in range(LEVELS):
            for start, end in zip(self._starts[level], self._ends[level], strict=True):
                yield level, start, end


def _little(numbers: "array[int]") -> bytes:
    copy = array("Q", numbers)
    _to_native(copy)
    return copy.tobytes()


def _to_native(numbers: "array[int]") -> None:
    """Bytes in a checkpoint are little-endian, wherever it is read."""
    if _IS_BIG_ENDIAN:
        numbers.byteswap()


_IS_BIG_ENDIAN: Final = array("H", [1]).tobytes() == b"\x00\x01"
