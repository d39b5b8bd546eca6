"""What is wrong with a log's files, said so that a person or a replica can act on it."""

from dataclasses import dataclass

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
        last = "unknown" if self.last_index is None else self.last_index
        return (
            f"{self.path} at byte {self.position}: entries {self.first_index} to {last} "
            f"are damaged: {self.reason}"
        )

    def covers(self, index: Index) -> bool:
        """Whether this damage may have taken that entry."""
        return index >= self.first_index and (self.last_index is None or index <= self.last_index)
