"""The values that a client returns: topics, brokers, messages, receipts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Self

from quivermq.batches import content_type_of, expires_ms_of
from quivermq.client.checks import check_number
from quivermq.errors import InvalidRequest
from quivermq.topic_settings import REPLICATED, SETTINGS, Setting
from quivermq.wire import proto


class Unchanged:
    """The value of `UNCHANGED`."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
"""Leave this setting as it is; None would mean "no limit"."""

Idle = float | timedelta | Unchanged | None
"""Seconds, or a timedelta; None: never; unchanged, or for a new topic: as brokers have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long a topic keeps its messages: the limit that is passed first counts. None: no limit.

    >>> client.create_topic("orders", retention=quivermq.Retention(max_age=7 * 24 * 3600))
    """

    max_age: float | timedelta | None = None
    """Seconds, or a timedelta."""
    max_messages: int | None = None
    max_bytes: int | None = None
    delete_acked: bool = False
    """Drop also messages that every group has done."""
    keep_until_archived: bool = False
    """Drop only messages that the archive holds."""

    def __post_init__(self) -> None:
        if isinstance(self.max_age, timedelta):
            object.__setattr__(self, "max_age", self.max_age.total_seconds())
        _check_parts("retention", self)

    @property
    def max_age_ms(self) -> int:
        """0: no limit."""
        age = self.max_age
        return round((age.total_seconds() if isinstance(age, timedelta) else age or 0) * 1000)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `per_second` messages are delivered, over all partitions and groups of the topic.

    >>> client.create_topic("letters", rate_limit=quivermq.RateLimit(per_second=0.5, burst=1))
    """

    per_second: float
    burst: int = 1
    """So many may be delivered at once after a pause."""

    def __post_init__(self) -> None:
        _check_parts("rate_limit", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How long a message that failed waits before it is delivered again, in seconds.

    >>> client.create_topic("orders", retry=quivermq.Retry(base=5.0, longest=600.0))
    """

    first: float = 0.0
    """After the first failure."""
    base: float = 1.0
    """After the second; it doubles with each further one."""
    longest: float = 60.0

    def __post_init__(self) -> None:
        _check_parts("retry", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """One partition as its leader sees it. Fields that only the leader knows are None if it did
    not answer; `trouble` says why."""

    partition: int
    leader: int
    """The node that leads it; 0: it has no leader."""
    replicas: tuple[int, ...]
    start_offset: int | None = None
    """The first message that is kept."""
    end_offset: int | None = None
    """One past the last message."""
    size_bytes: int | None = None
    in_sync: tuple[int, ...] | None = None
    """Replicas that have everything that is committed."""
    target: tuple[int, ...] = ()
    """The nodes that the replicas are being moved to; empty: they are not moved."""
    term: int | None = None
    commit_index: int | None = None
    trouble: str = ""
    """The problem, for people; empty: none."""

    @property
    def message_count(self) -> int | None:
        """How many messages are kept."""
        if self.start_offset is None or self.end_offset is None:
            return None
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic: its partitions and its settings."""

    name: str
    id: str
    """A topic that was deleted and created again has another one."""
    partitions: list[PartitionInfo]
    replication: int
    retention: Retention
    rate_limit: RateLimit | None
    max_deliveries: int
    dead_letter: str
    """The topic for messages that failed too often."""
    retry: Retry = field(default_factory=Retry)
    group_idle_retention: float | None = None
    """A shared group is deleted after so many seconds without use; None: never."""
    drop_expired: bool = False
    """Messages whose time to live is over are dropped; else they become dead letters."""

    @property
    def message_count(self) -> int | None:
        """How many messages all partitions keep; None if one of them is not known."""
        return _total(partition.message_count for partition in self.partitions)

    @property
    def size_bytes(self) -> int | None:
        """The size of the leaders' logs on disk; None if one of them is not known."""
        return _total(partition.size_bytes for partition in self.partitions)

    def __repr__(self) -> str:
        messages, size = (
            "?" if known is None else f"{known:,}"
            for known in (self.message_count, self.size_bytes)
        )
        return (
            f"<TopicInfo {self.name!r} {len(self.partitions)} partitions x {self.replication}, "
            f"{messages} messages, {size} bytes>"
        )

    @classmethod
    def of(cls, described: proto.TopicDescription) -> Self:
        """The topic as a broker described it."""
        topic = described.topic
        settings = settings_from_proto(topic.settings)
        settings["dead_letter"] = settings["dead_letter"] or f"{topic.name}.dlq"
        known = {partition.partition: partition for partition in described.partitions}
        return cls(
            name=topic.name,
            id=topic.id.hex(),
            partitions=[
                _partition_info(place, known.get(place.partition)) for place in topic.partitions
            ],
            replication=topic.replication,
            **settings,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """One broker."""

    id: int
    address: str
    alive: bool
    leaders: int
    """Partitions that it leads."""
    replicas: int = 0
    """Partitions that it holds."""
    state: str = ""
    """"serving", "leaving", or "refused" with the reason."""
    version: str = ""
    peer_address: str = ""
    http_address: str = ""
    level_min: int = 0
    """The feature levels that its release knows, both ends included."""
    level_max: int = 0
    zone: str = ""
    """Where it runs, as its operator named it; "": nowhere in particular."""
    machine: str = ""
    """The host that other brokers reach it at: brokers with the same one share a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The brokers, and the one that leads the metadata partition."""

    cluster_id: str
    leader: int
    """The node that leads the metadata partition; 0: it has no leader."""
    nodes: list[NodeInfo]
    node: int = 0
    """The broker that answered."""
    version: int = 0
    """How often the catalog was changed."""
    level: int = 0
    """The feature level: what brokers may write. `upgrade_cluster` raises it."""
    by_gateway: bool = False
    """A gateway passed the question on, and clients that know gateways do not ask brokers."""

    @property
    def level_possible(self) -> int:
        """The highest level that every broker knows."""
        return min((node.level_max for node in self.nodes), default=self.level)

    @property
    def is_told_by_member(self) -> bool:
        """The broker that answered is one of `nodes`. If not, it was removed, or is not let in,
        and its answer need not be true of any cluster."""
        return bool(self.cluster_id) and any(each.id == self.node for each in self.nodes)

    @classmethod
    def of(cls, found: proto.ClusterMap) -> Self:
        """The cluster as a broker sees it."""
        names = [spec.name for spec in fields(NodeInfo)]
        nodes = [
            NodeInfo(
                **{name: getattr(broker, name) for name in names}
                | {"address": broker.address or broker.hidden_address}
            )
            for broker in found.brokers
        ]
        return cls(
            cluster_id=found.cluster_id,
            leader=found.leader,
            nodes=sorted(nodes, key=lambda node: node.id),
            node=found.node,
            version=found.version,
            level=found.level,
            by_gateway=any(broker.hidden_address for broker in found.brokers),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelInfo:
    """A feature level, and what it brings to a cluster."""

    level: int
    release: str
    """The first release that knows it."""
    brings: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeInfo:
    """From which feature level to which a cluster was raised, or would be."""

    before: int
    level: int
    levels: list[LevelInfo] = field(default_factory=list)
    """Those above `before`."""

    @classmethod
    def of(cls, upgraded: proto.ClusterUpgraded) -> Self:
        """As the leader of the metadata partition answered."""
        return cls(
            before=upgraded.before,
            level=upgraded.level,
            levels=[
                LevelInfo(level=each.level, release=each.release, brings=each.brings)
                for each in upgraded.levels
            ],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceInfo:
    """How far a rebalance is."""

    moves_left: int
    leaders_left: int
    moving: list[str] = field(default_factory=list)
    """The moves under way, for people."""
    trouble: str = ""
    """The last failure, for people; empty: none."""

    @property
    def done(self) -> bool:
        """Nothing is left to move."""
        return not (self.moves_left or self.leaders_left)

    @classmethod
    def of(cls, progress: proto.RebalanceProgress) -> Self:
        """As the leader of the metadata partition answered."""
        return cls(
            moves_left=progress.moves_left,
            leaders_left=progress.leaders_left,
            moving=list(progress.moving),
            trouble=progress.trouble,
        )


def settings_to_proto(given: Mapping[str, Any]) -> proto.TopicSettings:
    """Arguments of `create_topic` as they travel; those missing, None or unchanged stay unset."""
    settings = proto.TopicSettings()
    for setting in SETTINGS:
        value = given.get(setting.argument, UNCHANGED)
        if isinstance(value, Unchanged):
            continue
        if setting.part:
            value = None if value is None else getattr(value, setting.part)
        else:
            value = value.total_seconds() if isinstance(value, timedelta) else value
            _check_setting(setting, value)
        setattr(settings, setting.name, setting.to_stored(value))
    return settings


def altered_settings(before: TopicInfo, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `settings_to_proto` that keep what is unchanged as it was `before`."""
    kept = {setting.argument: getattr(before, setting.argument) for setting in REPLICATED}
    if kept["dead_letter"] == f"{before.name}.dlq":
        kept["dead_letter"] = ""
    return kept | {name: value for name, value in given.items() if not isinstance(value, Unchanged)}


def settings_from_proto(settings: proto.TopicSettings) -> dict[str, Any]:
    """The fields of `TopicInfo` that show a topic's settings."""
    found: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for setting in SETTINGS:
        value = setting.from_stored(getattr(settings, setting.name))
        if setting.part:
            parts.setdefault(setting.argument, {})[setting.part] = value
        else:
            found[setting.argument] = value
    limit = parts.pop("rate_limit")
    found["rate_limit"] = None if limit["per_second"] is None else RateLimit(**limit)
    return found | {name: _CLASSES[name](**values) for name, values in parts.items()}


_CLASSES: Final[Mapping[str, Any]] = {"retention": Retention, "retry": Retry}


def _check_parts(argument: str, given: object) -> None:
    for setting in SETTINGS:
        if setting.argument == argument:
            _check_setting(setting, getattr(given, setting.part))


def _check_setting(setting: Setting, value: Any) -> None:
    """Raise `InvalidRequest` unless users may give this value."""
    if setting.kind in {"flag", "text"} or (value is None and setting.zero == "none"):
        return
    name, scale = setting.part or setting.argument, 1000 if setting.kind == "duration" else 1
    whole = setting.kind in {"size", "count", "number"}
    check_number(name, value, least=setting.least / scale, whole=whole)
    most = int(setting.most) // scale
    if value > most:
        unit = " s" if setting.kind == "duration" else ""
        other = ", or None" if setting.zero == "none" else ""
        raise InvalidRequest(f"{name} must be at most {most:,}{unit}{other}: {value!r}")


def _total(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(number or 0 for number in known)


_OF_THE_LEADER: Final = ("start_offset", "end_offset", "size_bytes", "term", "commit_index")


def _partition_info(
    place: proto.PartitionMap, described: proto.PartitionDescription | None
) -> PartitionInfo:
    if described is None:
        described = proto.PartitionDescription()
    told = {name: getattr(described, name) for name in _OF_THE_LEADER if described.HasField(name)}
    silence = "" if told else "its leader did not answer"
    return PartitionInfo(
        partition=place.partition,
        leader=described.leader or place.leader,
        replicas=tuple(described.replicas) or tuple(place.replicas),
        in_sync=tuple(described.in_sync) if told else None,
        target=tuple(place.target),
        trouble=described.trouble or silence,
        **told,
    )


class Message(NamedTuple):
    """One message as it was read.

    >>> for message in client.read("orders"):
    ...     print(message.offset, message.key, message.value)
    """

    topic: str
    partition: int
    offset: int
    """Its number in the partition, from 0, without gaps."""
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    timestamp: int
    """Milliseconds since 1970, UTC: the producer's own, else the leader's when it stored it."""
    priority: int

    @property
    def data(self) -> Any:
        """The value as `deserializer` decodes it; without one, the value. Raises what that
        raises."""
        return self.value

    @property
    def time(self) -> datetime:
        """`timestamp` as a datetime in UTC."""
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    @property
    def content_type(self) -> str | None:
        """As its producer named it, in the header `content-type`."""
        return content_type_of(self.headers)

    @property
    def expires(self) -> datetime | None:
        """When its time to live is over; None: it has none."""
        return expires_of(self.headers)

    def __repr__(self) -> str:
        key = "" if self.key is None else f" key={short(self.key)}"
        return f"<Message {self.topic}/{self.partition}@{self.offset}{key} {short(self.value)}>"


class Receipt(NamedTuple):
    """Where a message was stored."""

    topic: str
    partition: int
    offset: int


class BatchReceipt(NamedTuple):
    """Where a batch was stored: `count` messages with consecutive offsets."""

    partition: int
    first_offset: int
    count: int  # type: ignore[assignment]  # hides `tuple.count`, of no use on a receipt


def expires_of(headers: Mapping[str, bytes]) -> datetime | None:
    """When the time to live of a message is over; None: it has none."""
    found = expires_ms_of(headers)
    return None if found is None else datetime.fromtimestamp(found / 1000, UTC)


def short(data: bytes) -> str:
    """The bytes as people read them; many are cut."""
    return repr(data) if len(data) <= 40 else f"{data[:37]!r}... ({len(data):,} bytes)"
