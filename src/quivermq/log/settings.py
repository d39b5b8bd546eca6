"""Every limit and size of the log, by name."""

from dataclasses import dataclass, field
from typing import Final

from quivermq.batches import DEFAULT_LIMITS, KIB, MIB, Limits


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How a partition's log uses its disk."""

    segment_bytes: int = 64 * MIB
    """A segment that would grow past this is sealed. One write may exceed it."""

    allocation_bytes_min: int = 64 * KIB
    """The disk space of an idle partition."""

    allocation_bytes_step: int = 16 * MIB
    """A growing segment is preallocated in growing steps up to this one."""

    open_segments_max: int = 8
    """Sealed segments whose file and index are kept open per partition."""

    unmarked_bytes_max: int = 0
    """Bytes that a sync may leave without a mark: for disks that sync later by themselves, where a
    mark for each small write would cost as much as the write."""

    checkpoint_bytes_max: int = 256 * MIB
    """The largest state that a checkpoint may hold."""

    limits: Limits = field(default=DEFAULT_LIMITS)
    """The limits of appended batches; stored ones are not held to them."""

    @property
    def syncs_at_once(self) -> bool:
        """Whether what was synced is on the disk; otherwise the power may take it."""
        return not self.unmarked_bytes_max

    def __post_init__(self) -> None:
        if not 0 < self.allocation_bytes_min <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(
                "0 < allocation_bytes_min <= segment_bytes <= 1 GiB must hold: "
                f"{self.allocation_bytes_min}, {self.segment_bytes}"
            )
        if self.allocation_bytes_step <= 0 or self.open_segments_max <= 0:
            raise ValueError("allocation_bytes_step and open_segments_max must be positive")


# Positions in a segment are 32 bits, and one write may go past `segment_bytes`.
SEGMENT_BYTES_MAX: Final = 1 << 30
FILE_BYTES_MAX: Final = (1 << 32) - 1
ENTRIES_MAX: Final = 2_000_000
"""A segment is sealed past this too. More of them are not missing, whatever a file claims: the
place of each is kept in memory."""

_ANY: Final = (1 << 31) - 1
STORED_LIMITS: Final = Limits(_ANY, _ANY, _ANY)
"""Stored batches were accepted once, and stay readable under any limits of the broker."""
