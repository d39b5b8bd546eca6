"""What the groups of this broker are called."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionName:
    """Which partition it is, for people and for the disk."""

    topic: str
    partition: int

    @property
    def folder(self) -> str:
        return f"log/{self.topic}/{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"
