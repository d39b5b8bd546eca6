"""The settings of a topic that its partitions act on, and the command that changes them.

Validated before it is proposed, so applying cannot fail. Stored as JSON with sorted keys: the same
bytes everywhere; a key that this build does not know is left to builds that do.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from quivermq.batches import Buffer
from quivermq.errors import InvalidRequest
from quivermq.names import check_name


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What may be set per topic; 0 stands for "no limit"."""

    retention_ms: int = 0
    retention_messages: int = 0
    retention_bytes: int = 0
    delete_acked: bool = False
    keep_until_archived: bool = False
    rate_per_second: float = 0.0
    rate_burst: int = 1
    max_deliveries: int = 5
    dead_letter: str = ""
    """The topic for messages that failed too often; empty: `<topic>.dlq`."""
    retry_first_ms: int = 0
    """The wait after the first failure of a message."""
    retry_base_ms: int = 1000
    """The wait after the second; it doubles with each further one."""
    retry_longest_ms: int = 60_000

    def check(self) -> None:
        """Raise `InvalidRequest` unless every value is one that can be acted on."""
        for field in fields(self):
            value, default = getattr(self, field.name), field.default
            wanted = (int, float) if isinstance(default, float) else type(default)
            if not isinstance(value, wanted) or (
                isinstance(value, bool) != isinstance(default, bool)
            ):
                raise InvalidRequest(f"{field.name} must be {type(default).__name__}: {value!r}")
            if isinstance(value, int | float) and not 0 <= value < 2**63:
                raise InvalidRequest(f"{field.name} must not be negative or huge: {value!r}")
        if self.rate_burst < 1 or self.max_deliveries < 1:
            raise InvalidRequest("rate_burst and max_deliveries must be at least 1")
        if self.dead_letter:
            check_name("dead_letter", self.dead_letter)

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: Buffer) -> "TopicSettings":
        found: dict[str, Any] = json.loads(bytes(data))
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in found.items() if name in known})
