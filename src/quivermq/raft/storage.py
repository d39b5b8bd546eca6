"""The interface through which consensus reads the stored log. It never writes through it.

Writes leave as a `Ready` or as storage messages; the driver of the replica makes them durable. An
implementation sees no calls while a method runs, and must show a write in full once it is done.
"""

from collections.abc import Sequence
from typing import Protocol

from quivermq.raft.messages import Configuration, Entry, HardState, Snapshot


class Storage(Protocol):
    """The durable part of the log."""

    def initial_state(self) -> tuple[HardState, Configuration]:
        """The last persisted state; read once, at start.

        The configuration is the one in force at the applied index that the node is started with.
        A partition is founded by giving its first members the same snapshot, at index 1 or later,
        and a hard state of at least its term: the founding configuration is in no entry, so members
        added later can only get it from there.
        """
        ...

    def first_index(self) -> int:
        """Index of the first entry kept: one past the last one compacted away."""
        ...

    def last_index(self) -> int: ...

    def term(self, index: int) -> int | None:
        """The term of an entry; None outside `first_index - 1 .. last_index`.

        The term of the last entry compacted away stays known: without it the first append after a
        compaction could not be checked, and every follower would need a snapshot.
        """
        ...

    def entries(self, low: int, high: int, bytes_max: int) -> Sequence[Entry]:
        """Entries `low .. high - 1`, cut to `bytes_max` by `messages.fitting`."""
        ...

    def snapshot(self) -> Snapshot | None:
        """A snapshot at or past `first_index - 1`; None if one is not available just yet."""
        ...
