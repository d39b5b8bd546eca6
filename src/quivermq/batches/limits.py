"""The limits that a batch is held to, by name. Numbers are defaults; a broker may set others."""

from dataclasses import dataclass, fields
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20

PRIORITY_MAX: Final = 7

# The end of the year 9999: the last instant that Python, Arrow and Spark all can show.
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999

# Counters stay below 2**63, so that Arrow's int64, JSON readers and Spark's BIGINT can hold them.
COUNTER_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one batch. Checked before anything is allocated, stored or proposed."""

    message_bytes_max: int = 8 * MIB
    """Value, key and headers of one message together."""

    batch_bytes_max: int = 16 * MIB
    """The body of one frame, and what it decompresses to."""

    headers_bytes_max: int = 64 * KIB
    """Names and values of one message's headers together."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be positive")
        if self.batch_bytes_max >= 1 << 31:
            raise ValueError("batch_bytes_max must stay below 2 GiB: Arrow's offsets are 32 bits")


DEFAULT_LIMITS: Final = Limits()
