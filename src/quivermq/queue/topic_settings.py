"""Checks and encodes the settings of a topic that its partitions replicate.

They are checked before they are proposed, so applying cannot fail. Stored as JSON with sorted keys:
the same bytes everywhere; a key that this build does not know is left to builds that do.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from quivermq.batches import Buffer
from quivermq.errors import InvalidRequest
from quivermq.names import check_name
from quivermq.topic_settings import REPLICATED, STORED_MAX, ReplicatedSettings

_NAMES: Final = frozenset(setting.name for setting in REPLICATED)


@dataclass(frozen=True, slots=True)
class TopicSettings(ReplicatedSettings):
    """The settings of a topic that its partitions act on."""

    def check(self) -> None:
        """Raise `InvalidRequest` unless every value is one that can be acted on."""
        for setting in REPLICATED:
            name, value, default = setting.name, getattr(self, setting.name), setting.default
            wanted = (int, float) if isinstance(default, float) else type(default)
            if not isinstance(value, wanted) or (
                isinstance(value, bool) != isinstance(default, bool)
            ):
                raise InvalidRequest(f"{name} must be {type(default).__name__}: {value!r}")
            if isinstance(value, int | float) and not 0 <= value <= STORED_MAX:
                raise InvalidRequest(f"{name} must not be negative or huge: {value!r}")
            if setting.kind == "number" and value < setting.least:
                raise InvalidRequest(f"{name} must be at least {setting.least}: {value!r}")
        if self.dead_letter:
            check_name("dead_letter", self.dead_letter)

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: Buffer) -> "TopicSettings":
        return cls.of(json.loads(bytes(data)))

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "TopicSettings":
        """The settings in a record; those that only other builds know are left aside."""
        return cls(**{name: found[name] for name in found if name in _NAMES})
