"""Defines the records of the catalog, which the metadata partition keeps: brokers, topics and
the placement of their replicas.

Each is a frozen dataclass with `to_json` and `from_json`. Keys that this build does not know are
kept as they are (`others`), so a record that an earlier release changes loses nothing; a value that
no build writes raises `Corrupt`. Knows names, numbers and topic settings; must never know how the
catalog is replicated.

A *member* is the number of a replica in Raft: stay << 32 | epoch << 16 | node id. A node that lost
its disk comes back under a higher epoch, and a replica that was moved away and comes back without
its log is of a later stay. So neither can be taken for its former self (decision 0013).
"""

import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, cast

from quivermq.cluster.features import FEATURE_LEVEL_MAX, Levels
from quivermq.errors import Corrupt, InvalidRequest, UnsupportedFormat
from quivermq.names import check_topic_name
from quivermq.queue import TopicSettings
from quivermq.topic_settings import LEADER_ONLY, LeaderSettings

NODE_MAX: Final = 0xFFFF
EPOCH_MAX: Final = 0xFFFF
STAY_MAX: Final = (1 << 30) - 1
BROKER_MEMBER_MAX: Final = EPOCH_MAX << 16 | NODE_MAX
MEMBER_MAX: Final = (1 << 62) - 1
COUNT_MAX: Final = (1 << 63) - 1
PARTITIONS_LIMIT: Final = 1_000_000
LEVEL_LIMIT: Final = (1 << 32) - 1
TEXT_CHARACTERS_MAX: Final = 1_000
TOPIC_ID_BYTES: Final = 12

METADATA_TOPIC: Final = "_quiver"
METADATA_PARTITION: Final = bytes(TOPIC_ID_BYTES) + b"\xff\xff\xff\xff"

CLUSTER_KEY: Final = "cluster"
PRODUCERS_KEY: Final = "producers"
REBALANCE_KEY: Final = "rebalance"
BROKER_PREFIX: Final = "broker/"
RETIRED_PREFIX: Final = "retired/"
TOPIC_PREFIX: Final = "topic/"
RESTORED_PREFIX: Final = "restored/"
"""Before the id of a topic that was restored here: from which backup, and under which name."""

SERVING: Final = "serving"
LEAVING: Final = "leaving"
State = Literal["serving", "leaving"]

_HEX: Final = re.compile(r"(?:[0-9a-f]{2}){1,32}")
_TOPIC_ID: Final = re.compile(r"[0-9a-f]{24}")


def node_of(member: int) -> int:
    return member & NODE_MAX


def epoch_of(member: int) -> int:
    return member >> 16 & EPOCH_MAX


def broker_member_of(member: int) -> int:
    """The number of the member's broker, which says whose disk it is and not which stay."""
    return member & BROKER_MEMBER_MAX


def member_of(node: int, epoch: int, stay: int = 0) -> int:
    return stay << 32 | epoch << 16 | node


def partition_id(topic_id: str, partition: int) -> bytes:
    """The 16 bytes that name a partition and its log in Raft."""
    return bytes.fromhex(topic_id) + partition.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Which cluster this is, since when, and what its brokers may write."""

    id: str
    created_ms: int
    level: int = int(FEATURE_LEVEL_MAX)
    """The feature level: brokers write nothing that belongs to a higher one."""
    release: str = FEATURE_LEVEL_MAX.release
    """The first release that knows the level, for brokers that do not."""
    others: dict[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.others,
            "id": self.id,
            "created_ms": self.created_ms,
            "level": self.level,
            "release": self.release,
        }

    @classmethod
    def from_json(cls, value: Any) -> "ClusterRecord":
        found = _object(value, "the cluster")
        level, release = level_of(found)
        return cls(
            id=_hex(found, "id"),
            created_ms=_integer(found, "created_ms"),
            level=level,
            release=release,
            others=_others(found, _CLUSTER),
        )


def level_of(value: Any) -> tuple[int, str]:
    """The feature level in the record of a cluster, and the first release that knows it.

    Every release reads these two, even if it cannot read the rest of the record.
    """
    found = _object(value, "the cluster")
    if "level" not in found:
        raise UnsupportedFormat(
            "the catalog was written by a build before release 0.2.0, which this one does not "
            "read: start with an empty data directory"
        )
    return _integer(found, "level", 1, LEVEL_LIMIT), _text(found, "release")


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A broker: its data directory, its addresses, its release."""

    id: int
    directory_id: str
    """Empty: the directory was lost, and the next empty one takes its place."""
    boot: int
    """How often the directory was started."""
    member: int
    address: str
    peer_address: str
    http_address: str
    version: str
    state: State = SERVING
    life: str = ""
    """Random, from its last start: a directory that does not know it is an old copy."""
    level_min: int = 0
    """The feature levels that its release knows, as told at its last start."""
    level_max: int = 0
    others: dict[str, Any] = field(default_factory=dict, hash=False)
    zone: str = ""
    """Where it runs, as its operator named it; brokers of one zone may fail together."""

    @property
    def key(self) -> str:
        return f"{BROKER_PREFIX}{self.id}"

    @property
    def machine(self) -> str:
        """The host that other brokers reach it at: brokers with the same one share a machine."""
        return self.peer_address.rpartition(":")[0]

    @property
    def levels(self) -> Levels:
        return Levels(self.level_min, self.level_max)

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        del value["others"]
        if not self.zone:
            del value["zone"]
        return self.others | value

    @classmethod
    def from_json(cls, value: Any) -> "BrokerRecord":
        found = _object(value, "a broker")
        node = _integer(found, "id", 1, NODE_MAX)
        member = _integer(found, "member", 1, BROKER_MEMBER_MAX)
        if node_of(member) != node:
            raise Corrupt(f"broker {node} cannot be member {member}, which is another broker's")
        state = found.get("state")
        if state not in (SERVING, LEAVING):  # no set: it may be unhashable
            raise Corrupt(f"broker {node} has a state that this build does not know")
        return cls(
            id=node,
            directory_id="" if found.get("directory_id") == "" else _hex(found, "directory_id"),
            boot=_integer(found, "boot"),
            member=member,
            address=_text(found, "address"),
            peer_address=_text(found, "peer_address"),
            http_address=_text(found, "http_address"),
            version=_text(found, "version"),
            state=cast("State", state),
            life="" if found.get("life", "") == "" else _hex(found, "life"),
            level_min=_integer({"level_min": 0, **found}, "level_min", 0, LEVEL_LIMIT),
            level_max=_integer({"level_max": 0, **found}, "level_max", 0, LEVEL_LIMIT),
            others=_others(found, _BROKER),
            zone=_text({"zone": "", **found}, "zone"),
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """The members of one partition."""

    replicas: tuple[int, ...]
    """The first is the preferred leader."""
    founders: tuple[int, ...] = ()
    """The first configuration; empty once the members have changed."""
    target: tuple[int, ...] = ()
    """The members to reach, while the partition is moved."""
    leaving: tuple[int, ...] = ()
    """Members of targets that were given up: they may have joined by then, so they keep their
    data until the move is over."""
    others: dict[str, Any] = field(default_factory=dict, hash=False)
    start: int | None = None
    """Of a restored partition: the offset of its first message, for its founders."""
    moves: int = 0
    """How often members were taken out, from `Level.STAYS` on: the stay of those that come next."""

    @property
    def planned(self) -> tuple[int, ...]:
        """The members once nothing moves any more."""
        return self.target or self.replicas

    @property
    def named(self) -> frozenset[int]:
        """All members whose logs are kept."""
        return frozenset({*self.replicas, *self.target, *self.leaving})

    def member_on(self, broker_member: int) -> int:
        """The number under which a broker takes part: that of the replica whose log it has, or else
        one that it never had."""
        for member in self.named:
            if broker_member_of(member) == broker_member:
                return member
        return member_of(node_of(broker_member), epoch_of(broker_member), self.moves)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {**self.others, "replicas": list(self.replicas)}
        if self.founders:
            value["founders"] = list(self.founders)
        if self.target:
            value["target"] = list(self.target)
        if self.leaving:
            value["leaving"] = list(self.leaving)
        if self.start is not None:
            value["start"] = self.start
        if self.moves:
            value["moves"] = self.moves
        return value

    @classmethod
    def from_json(cls, value: Any) -> "Placement":
        found = _object(value, "a placement")
        replicas = _members(found.get("replicas"))
        if not replicas:
            raise Corrupt("a partition has no replicas")
        lists = [found.get(name) for name in ("founders", "target", "leaving")]
        founders, target, leaving = (
            () if members is None else _members(members) for members in lists
        )
        start = _integer(found, "start") if "start" in found else None
        moves = _integer({"moves": 0, **found}, "moves", 0, STAY_MAX)
        others = _others(found, _PLACEMENT)
        return cls(replicas, founders, target, leaving, others, start, moves)


@dataclass(frozen=True, slots=True)
class Topic(LeaderSettings):
    """A topic: its identity, its settings, and where each partition is.

    The settings that only leaders act on are fields of the record itself, and not in `settings`,
    which partitions replicate.
    """

    name: str
    id: str
    """12 bytes in hexadecimal; a topic that was deleted and created again has another one."""
    replication: int
    settings: dict[str, Any] = field(hash=False)
    partitions: tuple[Placement, ...]
    others: dict[str, Any] = field(default_factory=dict, hash=False)
    restoring: str = ""
    """Not "": it takes only what is restored, from the backup of this name."""

    @property
    def key(self) -> str:
        return TOPIC_PREFIX + self.name

    @property
    def topic_settings(self) -> TopicSettings:
        return settings_of(self.settings)

    def to_json(self) -> dict[str, Any]:
        value = {
            **self.others,
            "name": self.name,
            "id": self.id,
            "replication": self.replication,
            "settings": dict(self.settings),
            "partitions": [placement.to_json() for placement in self.partitions],
        }
        # Below its feature level a setting keeps its default, so no earlier release meets it.
        for setting in LEADER_ONLY:
            if getattr(self, setting.name) != setting.default:
                value[setting.name] = int(getattr(self, setting.name))
        if self.restoring:
            value["restoring"] = self.restoring
        return value

    @classmethod
    def from_json(cls, value: Any, before: "tuple[Any, Topic] | None" = None) -> "Topic":
        """`before` is an earlier record and its JSON: placements that did not change are reused."""
        found = _object(value, "a topic")
        name = found.get("name")
        if not isinstance(name, str):
            raise Corrupt("the name of a topic is no text")
        try:
            check_topic_name(name, internal=True)
        except InvalidRequest as error:
            raise Corrupt(f"the catalog holds a topic that cannot be: {error}") from error
        identity = found.get("id")
        if not isinstance(identity, str) or not _TOPIC_ID.fullmatch(identity):
            raise Corrupt(f"topic {name} has an id that is not {TOPIC_ID_BYTES} bytes")
        settings = _object(found.get("settings"), "the settings of a topic")
        settings_of(settings)
        return cls(
            name=name,
            id=identity,
            replication=_integer(found, "replication", 1, NODE_MAX),
            settings=settings,
            partitions=_placements(found.get("partitions"), before),
            others=_others(found, _TOPIC),
            restoring=_text({"restoring": "", **found}, "restoring"),
            **{
                setting.name: type(setting.default)(
                    _integer({setting.name: int(setting.default), **found}, setting.name)
                )
                for setting in LEADER_ONLY
            },
        )


_CLUSTER: Final = frozenset(item.name for item in fields(ClusterRecord))
_BROKER: Final = frozenset(item.name for item in fields(BrokerRecord))
_PLACEMENT: Final = frozenset(item.name for item in fields(Placement))
_TOPIC: Final = frozenset(item.name for item in fields(Topic))


def settings_of(value: Any) -> TopicSettings:
    """The settings in a record; those that only other builds know are left aside."""
    settings = TopicSettings.of(value)
    try:
        settings.check()
    except (InvalidRequest, ValueError, RecursionError) as error:
        # The last two come from printing what no build wrote.
        raise Corrupt("the settings of a topic hold a value that cannot be acted on") from error
    return settings


def next_producer(value: Any) -> int:
    """The producer id that is granted next, from the record at `PRODUCERS_KEY`."""
    return _integer(_object(value, "the producers"), "next", 1)


def producer_floor(value: Any) -> int:
    """Ids below this one are never granted any more, from the same record."""
    return _integer({"floor": 0, **_object(value, "the producers")}, "floor")


def retired_member(value: Any) -> int:
    """The last member number of a removed broker, from the record below `RETIRED_PREFIX`."""
    return _integer(_object(value, "a removed broker"), "member", 1, BROKER_MEMBER_MAX)


def _placements(value: Any, before: tuple[Any, Topic] | None) -> tuple[Placement, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= PARTITIONS_LIMIT:
        raise Corrupt(f"a topic has 1 to {PARTITIONS_LIMIT} partitions, in a list")
    if before is None:
        return tuple(map(Placement.from_json, value))
    known = list(zip(before[0]["partitions"], before[1].partitions, strict=True))
    kept = [
        placement if was is item or was == item else Placement.from_json(item)
        for item, (was, placement) in zip(value, known, strict=False)
    ]
    return (*kept, *map(Placement.from_json, value[len(kept) :]))


def _members(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise Corrupt("members are not in a list")
    for member in value:
        if type(member) is not int or not 0 < member <= MEMBER_MAX or not member & NODE_MAX:
            raise Corrupt("a member has a number that no broker can have")
    if len({member & NODE_MAX for member in value}) != len(value):
        raise Corrupt("a partition has two replicas on one broker")
    return tuple(value)


def _others(found: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The fields that a later release added to a record."""
    return {key: found[key] for key in found if key not in known}


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Corrupt(f"the record of {what} is no JSON object")
    return value


def _integer(found: dict[str, Any], key: str, low: int = 0, high: int = COUNT_MAX) -> int:
    value = found.get(key)
    if type(value) is not int or not low <= value <= high:
        raise Corrupt(f"{key} must be a whole number from {low} to {high}")
    return value


def _text(found: dict[str, Any], key: str) -> str:
    value = found.get(key)
    if not isinstance(value, str) or len(value) > TEXT_CHARACTERS_MAX:
        raise Corrupt(f"{key} must be text of at most {TEXT_CHARACTERS_MAX} characters")
    return value


def _hex(found: dict[str, Any], key: str) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise Corrupt(f"{key} must be 1 to 32 bytes in hexadecimal, in small letters")
    return value
