"""Raft's `Storage` in memory: for tests, benchmarks, and as its simplest implementation."""

from collections.abc import Sequence

from quivermq.errors import BrokenInvariant
from quivermq.raft import Configuration, Entry, HardState, Snapshot, fitting


class MemoryStorage:
    """Keeps what it is given; `snapshot_taken` is what followers that fell behind will get."""

    def __init__(self, configuration: Configuration | None = None) -> None:
        self.hard_state = HardState()
        self.configuration = configuration or Configuration()
        self.snapshot_taken: Snapshot | None = None
        self.base_index = 0
        self.base_term = 0
        self.kept: list[Entry] = []

    def initial_state(self) -> tuple[HardState, Configuration]:
        return self.hard_state, self.configuration

    def first_index(self) -> int:
        return self.base_index + 1

    def last_index(self) -> int:
        return self.base_index + len(self.kept)

    def term(self, index: int) -> int | None:
        if index == self.base_index:
            return self.base_term
        if self.base_index < index <= self.last_index():
            return self.kept[index - self.base_index - 1].term
        return None

    def entries(self, low: int, high: int, bytes_max: int) -> Sequence[Entry]:
        if low <= self.base_index or high > self.last_index() + 1:
            kept = f"{self.first_index()}..{self.last_index()}"
            raise BrokenInvariant(f"entries {low}..{high - 1} were asked for, kept are {kept}")
        return fitting(self.kept[low - self.base_index - 1 : high - self.base_index - 1], bytes_max)

    def snapshot(self) -> Snapshot | None:
        return self.snapshot_taken

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries over whatever was at and after the first one's index."""
        if not entries:
            return
        position = entries[0].index - self.base_index - 1
        if not 0 <= position <= len(self.kept):
            raise BrokenInvariant(
                f"append at {entries[0].index} would leave a hole after {self.last_index()}"
            )
        self.kept[position:] = entries

    def install(self, snapshot: Snapshot) -> None:
        """Replace the whole log by a snapshot."""
        self.snapshot_taken = snapshot
        self.configuration = snapshot.configuration
        self.base_index, self.base_term = snapshot.index, snapshot.term
        self.kept = []

    def compact(self, index: int) -> None:
        """Drop entries up to and with `index`, keeping its term."""
        term = self.term(index)
        if term is None:
            raise BrokenInvariant(f"compaction to {index}, which is not kept")
        self.kept = self.kept[index - self.base_index :]
        self.base_index, self.base_term = index, term
