"""Delayed batches of a partition, kept once for all groups: by offset, and by due time.

Both orders are columns of numbers, so that a million of them is copied, packed and restored in
milliseconds. Groups remember how far they have come in both (`Group.due`), and take over what is
due; what is not due costs a group nothing.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress
from struct import Struct
from typing import Final, NamedTuple

from quivermq.errors import BrokenInvariant
from quivermq.queue.columns import ColumnReader, column

_COUNT: Final = Struct("<I")

BLOCK: Final = 1024
"""Entries of the order by due time that are kept together; twice as many are split."""

BYTES_EACH: Final = 8 + 8 + 8 + 1 + 8 + 8 + 4
"""The size of a batch in a checkpoint."""


class DueKey(NamedTuple):
    """A place in the order by due time."""

    due_ms: int
    start: int


FIRST_KEY: Final = DueKey(0, 0)
_NO_START: Final = 2**64 - 1
LAST_KEY: Final = DueKey(_NO_START, _NO_START)


def key_of(due_ms: int) -> DueKey:
    """Behind everything that is due at this time."""
    return DueKey(due_ms, _NO_START)


class Delayed(NamedTuple):
    """A batch that must not be delivered before its time."""

    start: int
    end: int
    due_ms: int
    priority: int

    @property
    def key(self) -> DueKey:
        return DueKey(self.due_ms, self.start)


class DelayedBatches:
    """Batches come in order of offsets, and go from anywhere."""

    def __init__(self) -> None:
        self._starts = array("Q")
        self._ends = array("Q")
        self._dues = array("Q")
        self._levels = array("B")
        self._order = DueOrder()

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Delayed]:
        """In order of offsets."""
        columns = (self._starts, self._ends, self._dues, self._levels)
        return map(Delayed._make, zip(*columns, strict=True))

    @property
    def size_bytes(self) -> int:
        """The size of it in a checkpoint."""
        return BYTES_EACH * len(self)

    def add(self, start: int, end: int, due_ms: int, priority: int) -> None:
        """A batch behind all others."""
        self._starts.append(start)
        self._ends.append(end)
        self._dues.append(due_ms)
        self._levels.append(priority)
        self._order.add(due_ms, start, end - start)

    def at(self, position: int) -> Delayed:
        """By position in order of offsets."""
        return Delayed(
            self._starts[position],
            self._ends[position],
            self._dues[position],
            self._levels[position],
        )

    def position(self, offset: int) -> int:
        """Of the first batch that begins at an offset, or behind it."""
        return bisect_left(self._starts, offset)

    def start_at(self, position: int) -> int:
        return self._starts[position]

    def due_by(self, due_ms: int, first: int, stop: int) -> list[int]:
        """Positions from `first` to before `stop` of those that are due at a time."""
        if not due_ms:
            return []
        dues = enumerate(self._dues[first:stop], first)
        return [position for position, other_ms in dues if other_ms <= due_ms]

    def overlapping(self, start: int, end: int) -> Iterator[Delayed]:
        """Batches with messages in [start, end), in order of offsets."""
        first = bisect_right(self._starts, start)
        if first and self._ends[first - 1] > start:
            first -= 1
        for position in range(first, len(self._starts)):
            if self._starts[position] >= end:
                return
            yield self.at(position)

    def holding(self, offset: int) -> Delayed | None:
        """The batch that an offset is in."""
        return next(self.overlapping(offset, offset + 1), None)

    def due_after(self, key: DueKey) -> Iterator[Delayed]:
        """Batches behind a place in the order by due time."""
        for start in self._order.starts_after(key):
            yield self.at(bisect_left(self._starts, start))

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next one is due that is not due yet."""
        return self._order.next_due_ms(now_ms)

    def messages_after(self, key: DueKey) -> int:
        """How many messages the batches behind a place in the order by due time have."""
        return self._order.messages_after(key)

    def messages_below(self, offset: int, key: DueKey) -> int:
        """The same of messages below an offset."""
        stop = self.position(offset)
        if not stop:
            return 0
        below = sum(self._ends[:stop]) - sum(self._starts[:stop])
        below -= max(self._ends[stop - 1] - offset, 0)
        if len(self._order) - self._order.count_after(key) < stop:
            passed = map(self.at, self._positions(self._order.starts_to(key)))
            return below - sum(min(b.end, offset) - b.start for b in passed if b.start < offset)
        columns = (self._starts[:stop], self._ends[:stop], self._dues[:stop])
        return sum(
            min(end, offset) - start
            for start, end, due_ms in zip(*columns, strict=True)
            if (due_ms, start) > key
        )

    def _positions(self, starts: Iterable[int]) -> Iterator[int]:
        return (bisect_left(self._starts, start) for start in starts)

    def over(self, key: DueKey, skip: int, most: int) -> list[Delayed]:
        """Of those up to a place in the order by due time, some: a window that begins at `skip`,
        counted on from the beginning where there are fewer."""
        count = len(self._order) - self._order.count_after(key)
        if not count:
            return []
        skip = skip % count if count > most else 0
        starts = self._order.starts_from(skip, min(most, count - skip))
        return [self.at(position) for position in self._positions(starts)]

    def trim(self, begin: int) -> None:
        """Batches that begin below `begin` do not exist any more."""
        gone = self.position(begin)
        if gone:
            for each in (self._starts, self._ends, self._dues, self._levels):
                del each[:gone]
            self._order.keep_from(begin)

    def forget(self, gone: Sequence[Delayed]) -> None:
        """Batches, in order of offsets, that are delayed no longer."""
        positions = [bisect_left(self._starts, one.start) for one in gone]
        self._starts = _without(self._starts, positions)
        self._ends = _without(self._ends, positions)
        self._dues = _without(self._dues, positions)
        self._levels = _without(self._levels, positions)
        for one in gone:
            self._order.remove(one.key)

    def pack(self) -> bytes:
        """The same bytes on every replica that applied the same entries."""
        parts = [_COUNT.pack(len(self)), *(column("Q", x) for x in (self._starts, self._ends))]
        parts += (column("Q", self._dues), column("B", self._levels))
        return b"".join((*parts, *self._order.pack()))

    @classmethod
    def unpack(cls, reader: ColumnReader) -> "DelayedBatches":
        found = cls()
        (count,) = reader.values(_COUNT)
        found._starts, found._ends, found._dues = (reader.column("Q", count) for _ in range(3))
        found._levels = reader.column("B", count)
        found._order = DueOrder.unpack(reader, count)
        return found

    def validate(self) -> None:
        """Raise `BrokenInvariant` unless both orders hold the same."""
        expected = sorted((one.due_ms, one.start, one.end - one.start) for one in self)
        if expected != list(self._order):
            raise BrokenInvariant("the delayed batches are not all there in order of due times")
        self._order.validate()


class DueOrder:
    """(due time, start, messages) in order, in blocks: what comes goes in anywhere."""

    def __init__(self) -> None:
        self._dues: list[array[int]] = []
        self._starts: list[array[int]] = []
        self._messages: list[array[int]] = []
        self._lasts: list[tuple[int, int]] = []
        """Due time and start of the last one of each block."""
        self._totals: list[int] = []
        """Messages of each block."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        columns = (chain.from_iterable(x) for x in (self._dues, self._starts, self._messages))
        return zip(*columns, strict=True)

    def add(self, due_ms: int, start: int, messages: int) -> None:
        """One that begins behind all others: of those due at the same time it is the last."""
        if not self._lasts:
            self._insert_block(0, array("Q"), array("Q"), array("I"))
        at = min(bisect_right(self._lasts, (due_ms, start)), len(self._lasts) - 1)
        dues = self._dues[at]
        inside = bisect_right(dues, due_ms)
        dues.insert(inside, due_ms)
        self._starts[at].insert(inside, start)
        self._messages[at].insert(inside, messages)
        self._totals[at] += messages
        self._count += 1
        self._lasts[at] = (dues[-1], self._starts[at][-1])
        if len(dues) >= 2 * BLOCK:
            self._split(at)

    def _split(self, at: int) -> None:
        blocks = (self._dues[at], self._starts[at], self._messages[at])
        behind = [block[BLOCK:] for block in blocks]
        for block in blocks:
            del block[BLOCK:]
        self._renew(at)
        self._insert_block(at + 1, *behind)

    def _insert_block(
        self, at: int, dues: "array[int]", starts: "array[int]", messages: "array[int]"
    ) -> None:
        self._dues.insert(at, dues)
        self._starts.insert(at, starts)
        self._messages.insert(at, messages)
        self._totals.insert(at, sum(messages))
        self._lasts.insert(at, (dues[-1], starts[-1]) if dues else (0, 0))

    def _renew(self, at: int) -> None:
        """A block has changed; an empty one goes."""
        if self._dues[at]:
            self._lasts[at] = (self._dues[at][-1], self._starts[at][-1])
            self._totals[at] = sum(self._messages[at])
            return
        for each in (self._dues, self._starts, self._messages, self._lasts, self._totals):
            del each[at]

    def _after(self, key: DueKey) -> tuple[int, int]:
        """Block and place in it of the first one behind a key."""
        at = bisect_right(self._lasts, key)
        if at == len(self._lasts):
            return at, 0
        dues = self._dues[at]
        low, high = bisect_left(dues, key.due_ms), bisect_right(dues, key.due_ms)
        return at, bisect_right(self._starts[at], key.start, low, high)

    def starts_after(self, key: DueKey) -> Iterator[int]:
        at, inside = self._after(key)
        while at < len(self._starts):
            block = self._starts[at]
            for place in range(inside, len(block)):
                yield block[place]
            at, inside = at + 1, 0

    def starts_to(self, key: DueKey) -> Iterator[int]:
        at, inside = self._after(key)
        for block in self._starts[:at]:
            yield from block
        if inside:
            yield from self._starts[at][:inside]

    def starts_from(self, skip: int, count: int) -> list[int]:
        """So many from a place on, counted from the beginning."""
        found: list[int] = []
        for block in self._starts:
            if skip < len(block):
                found += block[skip : skip + count - len(found)]
            skip = max(skip - len(block), 0)
            if len(found) >= count:
                break
        return found

    def next_due_ms(self, now_ms: int) -> int | None:
        at, inside = self._after(key_of(now_ms))
        return self._dues[at][inside] if at < len(self._dues) else None

    def count_after(self, key: DueKey) -> int:
        at, inside = self._after(key)
        return sum(map(len, self._dues[at:])) - inside

    def messages_after(self, key: DueKey) -> int:
        at, inside = self._after(key)
        passed = sum(self._messages[at][:inside]) if at < len(self._messages) else 0
        return sum(self._totals[at:]) - passed

    def remove(self, key: DueKey) -> None:
        at = bisect_left(self._lasts, key)
        dues, starts = self._dues[at], self._starts[at]
        low, high = bisect_left(dues, key.due_ms), bisect_right(dues, key.due_ms)
        inside = bisect_left(starts, key.start, low, high)
        del dues[inside], starts[inside], self._messages[at][inside]
        self._count -= 1
        self._renew(at)

    def keep_from(self, begin: int) -> None:
        """Those that begin below `begin` go."""
        for at in range(len(self._starts) - 1, -1, -1):
            if min(self._starts[at]) >= begin:
                continue
            kept = [start >= begin for start in self._starts[at]]
            self._count -= len(kept) - sum(kept)
            for blocks in (self._dues, self._starts, self._messages):
                blocks[at] = array(blocks[at].typecode, compress(blocks[at], kept))
            self._renew(at)

    def pack(self) -> Iterator[bytes]:
        for code, blocks in (("Q", self._dues), ("Q", self._starts), ("I", self._messages)):
            yield from (column(code, block) for block in blocks)

    @classmethod
    def unpack(cls, reader: ColumnReader, count: int) -> "DueOrder":
        found = cls()
        columns = reader.column("Q", count), reader.column("Q", count), reader.column("I", count)
        for at in range(0, count, BLOCK):
            parts = (each[at : at + BLOCK] for each in columns)
            found._insert_block(len(found._dues), *parts)
        found._count = count
        return found

    def validate(self) -> None:
        lasts = [(d[-1], s[-1]) for d, s in zip(self._dues, self._starts, strict=True)]
        totals = list(map(sum, self._messages))
        if (lasts, totals) != (self._lasts, self._totals) or self._count != sum(
            map(len, self._dues)
        ):
            raise BrokenInvariant("the order by due time is not counted right")


def _without(numbers: "array[int]", positions: Sequence[int]) -> "array[int]":
    """Without those at some places, which are in order."""
    left = array(numbers.typecode)
    at = 0
    for position in positions:
        left.extend(numbers[at:position])
        at = position + 1
    left.extend(numbers[at:])
    return left
