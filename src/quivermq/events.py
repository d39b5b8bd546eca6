"""Events of a cluster: what brokers tell in the topic `_events`, one JSON object a message.

Pure: knows names and fields; must never know how events are found, stored or read.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

EVENTS_TOPIC: Final = "_events"

KINDS: Final = {
    "leader_changed": "a broker leads a partition; `_quiver` is the metadata partition",
    "broker_joined": "a broker is a member of the cluster",
    "broker_started": "a broker was started again",
    "broker_stopping": "a broker stops, because it was told to",
    "broker_lost": "the leader of the cluster does not hear a broker any more",
    "broker_back": "it hears it again",
    "broker_leaving": "a broker is on its way out: its partitions move",
    "broker_left": "a broker is no member any more",
    "broker_replaced": "a broker that lost its data begins anew",
    "broker_unfit": "a broker has to stop: its release does not fit the cluster",
    "partition_moving": "a partition is to have other replicas",
    "partition_moved": "it has them",
    "group_rebalanced": "a sticky group has other members, or shares its partitions anew",
    "replica_damaged": "what a broker has stored of a partition is damaged; others mend it",
    "replica_mended": "it is whole again",
    "replica_stopped": "a replica does not take part any more, and says what to do",
    "directory_damaged": "a file of a data directory was repaired, or a log was put aside",
    "disk_full": "a write waits for room on the disk",
    "disk_trouble": "a disk did not do what it was told: the log is read anew",
    "refusals": "how many requests a broker refused in the last seconds, by reason",
    "topic_created": "a topic was created",
    "topic_altered": "settings or partitions of a topic were changed",
    "topic_deleted": "a topic was deleted",
    "certificates_loaded": "a broker uses other certificates",
    "certificates_refused": "a broker keeps the certificates that it has: the new ones do not fit",
    "level_raised": "the feature level of the cluster was raised",
    "events_left_out": "there were too many events: how many are missing, by kind",
}
"""All kinds, each with its meaning. More may come: programs pass over those they do not know."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event."""

    time: str
    """In UTC, to the millisecond: `2026-01-31T12:00:00.123Z`."""
    kind: str
    detail: str
    """In words, for people."""
    broker: int | None = None
    """Which one it concerns."""
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    told_by: int | None = None
    """The broker that saw it."""
    id: str = ""
    """The same if a broker stored the event twice."""
    counts: dict[str, int] = field(default_factory=dict)
    """Of `refusals` and `events_left_out`."""
    offset: int = -1
    """Its place in the topic; -1: it is not stored yet."""

    def to_json(self) -> dict[str, Any]:
        """As it is stored: without its place."""
        value = asdict(self)
        del value["offset"]
        if not self.counts:
            del value["counts"]
        return value

    @classmethod
    def parse(cls, data: bytes, offset: int) -> "Event | None":
        """A stored event; None if it is none, whoever wrote it. Of later releases, what is known
        here."""
        try:
            found = json.loads(data)
            known = {name: found[name] for name in _TYPES if name in found}
        except (ValueError, TypeError, RecursionError):
            return None
        if not all(isinstance(value, _TYPES[name]) for name, value in known.items()):
            return None
        if not all(name in known for name in ("time", "kind", "detail")):
            return None
        return cls(**known, offset=offset)


_OPTIONAL_INT: Final = (int, type(None))
_OPTIONAL_TEXT: Final = (str, type(None))
_TYPES: Final[dict[str, Any]] = {
    "time": str, "kind": str, "detail": str, "broker": _OPTIONAL_INT, "topic": _OPTIONAL_TEXT,
    "partition": _OPTIONAL_INT, "group": _OPTIONAL_TEXT, "told_by": _OPTIONAL_INT, "id": str,
    "counts": dict,
}  # fmt: skip
