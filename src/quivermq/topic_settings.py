"""Describes every setting of a topic: its default, its bounds, its name in each place, its help.

The checks and conversions of client, broker, catalog and command line follow these descriptions. A
new setting is one field here, the field of the same name in `quiver.proto`, and an argument or a
field of one in the client. Imports nothing of ours.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeVar

STORED_MAX: Final = 2**63 - 1
"""No setting is above this: brokers keep numbers in 63 bits."""
_UINT32_MAX: Final = 2**32 - 1

Value = TypeVar("Value", bool, int, float, str)
Kind = Literal["duration", "size", "count", "number", "rate", "flag", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a topic. Bounds are in the unit that brokers store."""

    name: str
    """In the catalog, in checkpoints, and on the wire."""
    default: Any
    kind: Kind
    """A duration is stored in milliseconds, and in the client it is seconds."""
    argument: str
    """Of `create_topic` and `alter_topic`, and of `TopicInfo`."""
    part: str = ""
    """The field of the argument's class; empty: the argument is the value itself."""
    option: str
    """Of `quiver topic create` and `alter`."""
    help: str
    least: float = 0
    most: float = STORED_MAX
    zero: Literal["none", "default", "value"] = "default"
    """Stored or sent, 0 means None, or the default, or is a value like others."""
    is_delivery: bool = False
    """It concerns the delivery to groups, and the help lists it there."""
    level: int = 1
    """The feature level of the cluster from which on it can be set."""

    def to_stored(self, given: Any) -> Any:
        """A value of the client as brokers store it."""
        if given is None:
            return type(self.default)()
        return round(given * 1000) if self.kind == "duration" else given

    def from_stored(self, stored: Any) -> Any:
        """A stored value as the client shows it."""
        if not stored and self.zero != "value":
            if self.zero == "none":
                return None
            stored = self.default
        return stored / 1000 if self.kind == "duration" else stored


def _setting(default: Value, kind: Kind, argument: str, **more: Any) -> Value:
    """A field of the classes below; `argument` may name a part: `retention.max_age`."""
    argument, _, part = argument.partition(".")
    more = {"option": part or argument, **more}
    return field(
        default=default, metadata={"kind": kind, "argument": argument, "part": part} | more
    )


@dataclass(frozen=True, slots=True)
class ReplicatedSettings:
    """The settings that partitions replicate and act on."""

    retention_ms: int = _setting(
        0,
        "duration",
        "retention.max_age",
        least=1,
        zero="none",
        help="Drop messages older than this: 12h, 7d; none: keep them.",
    )
    retention_messages: int = _setting(
        0,
        "count",
        "retention.max_messages",
        least=1,
        zero="none",
        help="Drop the oldest messages of a partition past so many; none: keep them.",
    )
    retention_bytes: int = _setting(
        0,
        "size",
        "retention.max_bytes",
        least=1,
        zero="none",
        help="Drop the oldest messages of a partition past this: 500MB, 10GB; none: keep them.",
    )
    delete_acked: bool = _setting(
        False,
        "flag",
        "retention.delete_acked",
        help="Also drop messages that every group has done; without groups, none.",
    )
    keep_until_archived: bool = _setting(
        False,
        "flag",
        "retention.keep_until_archived",
        help="Drop only messages that `quiver pipeline archive` has archived.",
    )
    rate_per_second: float = _setting(
        0.0,
        "rate",
        "rate_limit.per_second",
        option="rate_limit",
        least=1e-9,
        zero="none",
        is_delivery=True,
        help="Deliver at most so many, over all groups: 0.5, 100/s, 30/m; none: no limit.",
    )
    rate_burst: int = _setting(
        1,
        "number",
        "rate_limit.burst",
        least=1,
        most=_UINT32_MAX,
        is_delivery=True,
        help="Deliver up to so many at once after a pause.",
    )
    max_deliveries: int = _setting(
        5,
        "number",
        "max_deliveries",
        least=1,
        most=_UINT32_MAX,
        is_delivery=True,
        help="A message that failed so often becomes a dead letter.",
    )
    dead_letter: str = _setting(
        "",
        "text",
        "dead_letter",
        is_delivery=True,
        help="Where dead letters go; default: TOPIC.dlq.",
    )
    retry_first_ms: int = _setting(
        0,
        "duration",
        "retry.first",
        option="retry_first",
        most=_UINT32_MAX,
        zero="value",
        is_delivery=True,
        help="Backoff after a message's first failure.",
    )
    retry_base_ms: int = _setting(
        1_000,
        "duration",
        "retry.base",
        option="retry_base",
        least=1,
        most=_UINT32_MAX,
        is_delivery=True,
        help="Backoff after the second; it doubles with each further one.",
    )
    retry_longest_ms: int = _setting(
        60_000,
        "duration",
        "retry.longest",
        option="retry_longest",
        least=1,
        most=_UINT32_MAX,
        is_delivery=True,
        help="The longest backoff.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSettings:
    """The settings that only leaders act on: whole numbers in the catalog, where 1 is yes; unknown
    to partitions.

    In requests they are unset unless they are to change.
    """

    group_idle_ms: int = _setting(
        7 * 24 * 3600 * 1000,
        "duration",
        "group_idle_retention",
        least=1_000,
        most=100 * 365 * 24 * 3600 * 1000,
        zero="none",
        is_delivery=True,
        level=2,
        help="Delete a shared group that is unused for so long: 12h, 7d; none: never.",
    )
    drop_expired: bool = _setting(
        False,
        "flag",
        "drop_expired",
        is_delivery=True,
        level=2,
        help="Drop messages whose ttl is over instead of making them dead letters.",
    )


def _describe(kind: type[ReplicatedSettings | LeaderSettings]) -> tuple[Setting, ...]:
    return tuple(
        Setting(name=each.name, default=each.default, **each.metadata) for each in fields(kind)
    )


REPLICATED: Final = _describe(ReplicatedSettings)
LEADER_ONLY: Final = _describe(LeaderSettings)
SETTINGS: Final = (*REPLICATED, *LEADER_ONLY)
