"""The log as consensus sees it: a durable part in storage and a tail that is still being written.

    first_index ........ tail_start ....... handed ........ last_index
    |--- in storage ---| |--- being written ---| |--- not handed out ---|

    applied <= applying <= committed <= last_index

`tail` begins right after what storage has confirmed. Entries leave it when a write is confirmed,
not when it is handed out: until then a crash may lose them, and a conflicting append may replace
them. A snapshot received from a leader waits here in the same way.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from quivermq.errors import BrokenInvariant
from quivermq.raft.messages import Entry, EntryKind, Snapshot, entries_bytes, fitting
from quivermq.raft.options import MIB, NO_LIMIT
from quivermq.raft.storage import Storage

# How much of the log is looked at in one go, where all of it must be looked at.
PAGE_BYTES = 1 * MIB


def fail(what: str) -> NoReturn:
    """Raise; a caller that knows more of the story passes its own function instead."""
    raise BrokenInvariant(what)


class EntryLog:
    """One log out of two parts, and the three indexes that only ever grow."""

    __slots__ = (
        "applied",
        "apply_bytes_max",
        "apply_paused",
        "applying",
        "applying_bytes",
        "committed",
        "fail",
        "handed",
        "incoming",
        "incoming_handed",
        "storage",
        "tail",
        "tail_start",
    )

    def __init__(
        self,
        storage: Storage,
        apply_bytes_max: int = NO_LIMIT,
        fail: Callable[[str], NoReturn] = fail,
    ) -> None:
        self.storage = storage
        self.fail = fail
        self.tail: list[Entry] = []
        self.tail_start = storage.last_index() + 1
        # First index of the tail that no write has been handed out for.
        self.handed = self.tail_start
        # A snapshot to be written before anything else; it replaces all that storage holds.
        self.incoming: Snapshot | None = None
        self.incoming_handed = False
        # Everything up to here is chosen for ever, as far as this member knows.
        self.committed = storage.first_index() - 1
        # Handed out to be applied; applied for good.
        self.applying = self.committed
        self.applied = self.committed
        self.apply_bytes_max = apply_bytes_max
        self.applying_bytes = 0
        self.apply_paused = False

    @property
    def first_index(self) -> int:
        return self.incoming.index + 1 if self.incoming else self.storage.first_index()

    @property
    def last_index(self) -> int:
        return self.tail_start + len(self.tail) - 1

    @property
    def last_term(self) -> int:
        if self.tail:
            return self.tail[-1].term
        return self.term(self.tail_start - 1) or 0

    def term(self, index: int) -> int | None:
        """The term at `index`; None if it is compacted away or not there yet."""
        position = index - self.tail_start
        if position >= 0:
            return self.tail[position].term if position < len(self.tail) else None
        if self.incoming:
            return self.incoming.term if index == self.incoming.index else None
        return self.storage.term(index)

    def slice(self, low: int, high: int, bytes_max: int = NO_LIMIT) -> Sequence[Entry]:
        """Entries `low .. high - 1` as far as they fit, at least one."""
        start = self.tail_start
        if low >= start:
            return fitting(self.tail[low - start : high - start], bytes_max)
        stored = self.storage.entries(low, min(high, start), bytes_max)
        if high <= start or len(stored) < start - low:
            return stored
        return fitting([*stored, *self.tail[: high - start]], bytes_max)

    def membership_indexes(self, low: int, high: int) -> Iterator[int]:
        """Where in `low .. high - 1` the membership changes, as far as entries are still kept."""
        low = max(low, self.first_index)
        while low < high:
            page = self.slice(low, high, PAGE_BYTES)
            yield from (entry.index for entry in page if entry.kind is EntryKind.MEMBERSHIP)
            low = page[-1].index + 1

    def is_up_to_date(self, last_term: int, last_index: int) -> bool:
        """Whether a log ending there has all that this one could have committed (§5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def append(self, entries: Sequence[Entry]) -> None:
        """Put entries at their indexes, dropping whatever was there and after."""
        first = entries[0].index
        if first <= self.committed:
            self.fail(f"entry {first} would be replaced, but {self.committed} is committed")
        position = first - self.tail_start
        if position == len(self.tail):
            self.tail.extend(entries)
        elif position >= 0:
            self.tail[position:] = entries
            self.handed = min(self.handed, first)
        else:
            self.tail = list(entries)
            self.tail_start = self.handed = first

    def append_after(
        self, previous_index: int, previous_term: int, entries: Sequence[Entry]
    ) -> bool:
        """A follower's append: False if this log does not hold the entry before (§5.3)."""
        if self.term(previous_index) != previous_term:
            return False
        if previous_index == self.last_index:
            if entries:
                self.append(entries)
            return True
        # Entries that are here already stay: a delayed append must not cut off what later
        # appends brought, which may have been acknowledged.
        for position, entry in enumerate(entries):
            if self.term(entry.index) != entry.term:
                self.append(entries[position:])
                break
        return True

    def agreement_by_term(self, index: int, term: int) -> tuple[int, int]:
        """The last position at or below `index` whose term is not above `term`.

        Terms never fall along a log, so everything above it differs from a log that has `term` at
        `index`: a conflict is found one term at a time instead of one entry at a time (§5.3).
        Returns the position and its term, which is 0 where this log no longer knows it.
        """
        while index > 0:
            mine = self.term(index)
            if mine is None:
                return index, 0
            if mine <= term:
                return index, mine
            index -= 1
        return 0, 0

    def commit_to(self, index: int) -> None:
        if index <= self.committed:
            return
        if index > self.last_index:
            self.fail(
                f"commit of {index} past the end of the log at {self.last_index}: "
                f"was a part of the log lost?"
            )
        self.committed = index

    @property
    def has_writes_open(self) -> bool:
        return bool(self.tail)

    def unhanded(self) -> Sequence[Entry]:
        """Entries that no write has been handed out for."""
        return self.tail[self.handed - self.tail_start :]

    @property
    def unhanded_snapshot(self) -> Snapshot | None:
        return None if self.incoming_handed else self.incoming

    def hand_out(self) -> None:
        self.handed = self.last_index + 1
        self.incoming_handed = self.incoming is not None

    def entries_stored(self, index: int, term: int) -> None:
        """Writes up to `index` are confirmed, if the entry written there is still the one here."""
        position = index - self.tail_start
        if position < 0 or self.term(index) != term or index >= self.handed:
            return
        del self.tail[: position + 1]
        self.tail_start = index + 1

    def extend_applied(self, index: int) -> None:
        """Entries up to `index` were written and applied without ever being in the tail."""
        self.tail_start = self.handed = index + 1
        self.committed = self.applying = self.applied = index

    def snapshot_stored(self, index: int) -> None:
        if self.incoming and self.incoming.index == index:
            self.incoming = None
            self.incoming_handed = False

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the whole log; `snapshot` must be ahead of everything committed here."""
        self.incoming = snapshot
        self.incoming_handed = False
        self.tail = []
        self.tail_start = self.handed = snapshot.index + 1
        self.committed = snapshot.index

    def appliable_index(self, *, unstable_too: bool) -> int:
        """How far entries may be applied: with asynchronous writes only what is durable here."""
        return self.committed if unstable_too else min(self.committed, self.tail_start - 1)

    def has_appliable(self, *, unstable_too: bool) -> bool:
        if self.apply_paused or self.incoming:
            return False
        return self.applying < self.appliable_index(unstable_too=unstable_too)

    def appliable(self, *, unstable_too: bool) -> Sequence[Entry]:
        """Committed entries not yet handed out to be applied, within the limit."""
        if not self.has_appliable(unstable_too=unstable_too):
            return ()
        high = self.appliable_index(unstable_too=unstable_too) + 1
        return self.slice(self.applying + 1, high, self.apply_bytes_max - self.applying_bytes)

    def hand_out_applying(self, entries: Sequence[Entry], *, unstable_too: bool) -> None:
        self.applying = entries[-1].index
        self.applying_bytes += entries_bytes(entries)
        # A cut list means that the next entry did not fit: nothing more until some is applied.
        cut = self.applying < self.appliable_index(unstable_too=unstable_too)
        self.apply_paused = cut or self.applying_bytes >= self.apply_bytes_max

    def applied_to(self, index: int, size: int = 0) -> None:
        if index > self.committed or index < self.applied:
            self.fail(f"{index} is applied, outside of {self.applied}..{self.committed}")
        self.applied = index
        self.applying = max(self.applying, index)
        self.applying_bytes = max(self.applying_bytes - size, 0)
        self.apply_paused = self.applying_bytes >= self.apply_bytes_max
