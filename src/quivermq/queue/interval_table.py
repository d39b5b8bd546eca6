"""Something that is known of messages, for intervals of offsets: sorted, and never two of one."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from quivermq.errors import BrokenInvariant

_START: Final = itemgetter(0)

Entry = TypeVar("Entry", bound=NamedTuple)
"""Begins with `start` and `end`; equal in all else, neighbours may become one."""


class IntervalTable(Generic[Entry]):
    """Sorted by offset; each offset has one entry at most."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries: list[Any] = list(entries)

    def copy(self) -> Self:
        return type(self)(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def insert(self, entry: Entry) -> None:
        """Take the place of what is known of these messages; neighbours that are equal join."""
        start, end, *known = entry
        self.remove(start, end)
        entries = self._entries
        first = last = bisect_right(entries, start, key=_START)
        if first and entries[first - 1][1:] == (start, *known):
            first, start = first - 1, entries[first - 1].start
        if last < len(entries) and (entries[last].start, *entries[last][2:]) == (end, *known):
            last, end = last + 1, entries[last].end
        self._splice(first, last, [type(entry)(start, end, *known)])

    def remove(self, start: int, end: int) -> None:
        """Forget messages."""
        first, last = self._overlapping(start, end)
        if first == last:
            return
        low, high = self._entries[first], self._entries[last - 1]
        kept = []
        if low.start < start:
            kept.append(low._replace(end=start))
        if high.end > end:
            kept.append(high._replace(start=end))
        self._splice(first, last, kept)

    def remove_first(self) -> None:
        """Forget the entry with the lowest offsets."""
        self._splice(0, 1, [])

    def within(self, start: int, end: int) -> list[Entry]:
        """The entries of messages in [start, end), cut to that."""
        first, last = self._overlapping(start, end)
        return [
            entry._replace(start=max(start, entry.start), end=min(end, entry.end))
            for entry in self._entries[first:last]
        ]

    def _splice(self, first: int, last: int, entries: list[Any]) -> None:
        """All changes pass through here."""
        self._entries[first:last] = entries

    def _overlapping(self, start: int, end: int) -> tuple[int, int]:
        first = bisect_right(self._entries, start, key=_START)
        if first and self._entries[first - 1].end > start:
            first -= 1
        last = first
        while last < len(self._entries) and self._entries[last].start < end:
            last += 1
        return first, last

    def validate(self) -> None:
        """Raise `BrokenInvariant` unless the entries are sorted and apart."""
        before = 0
        for entry in self._entries:
            if not before <= entry.start < entry.end:
                raise BrokenInvariant(f"{entry} comes after {before}")
            before = entry.end
