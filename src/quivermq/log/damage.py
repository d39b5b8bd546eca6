"""Damage of a log's files, described so that a person or a replica can act on it."""

from dataclasses import dataclass, replace

from quivermq.batches import Index


@dataclass(frozen=True, slots=True)
class Damage:
    """Entries that were durable and cannot be read."""

    path: str
    position: int
    """Where in the file the damage starts."""
    first_index: Index
    last_index: Index | None
    """The last entry that is missing; None where nothing left tells how many there were."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.what}"

    @property
    def what(self) -> str:
        """Which entries, and why."""
        if self.last_index is None:
            return f"entries from {self.first_index} on may be damaged: {self.reason}"
        if self.last_index == self.first_index:
            return f"entry {self.first_index} is damaged: {self.reason}"
        return f"entries {self.first_index} to {self.last_index} are damaged: {self.reason}"

    def covers(self, index: Index) -> bool:
        """Whether this damage may have taken that entry."""
        return index >= self.first_index and (self.last_index is None or index <= self.last_index)

    def before(self, index: Index) -> "Damage":
        """The same without the entries from `index` on, which are cut."""
        if self.last_index is None or self.last_index < index:
            return self
        return replace(self, last_index=Index(index - 1))
