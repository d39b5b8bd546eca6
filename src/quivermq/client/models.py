"""The values that a client returns: topics, brokers, messages, receipts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Self

from quivermq.client.checks import check_number
from quivermq.errors import InvalidRequest
from quivermq.wire import proto

_IDLE_SECONDS_MAX = 100 * 365 * 24 * 3600
_RETRY_SECONDS_MAX = ((1 << 32) - 1) // 1000


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
    """How long a topic keeps its messages; whatever limit is passed first counts, None: no limit.

    >>> client.create_topic("orders", retention=quivermq.Retention(max_age=7 * 24 * 3600))
    """

    max_age: float | timedelta | None = None
    """Seconds, or a timedelta."""
    max_messages: int | None = None
    max_bytes: int | None = None
    delete_acked: bool = False
    """Drop also what every group has done."""
    keep_until_archived: bool = False
    """Drop only what the archive holds."""

    def __post_init__(self) -> None:
        if isinstance(self.max_age, timedelta):
            object.__setattr__(self, "max_age", self.max_age.total_seconds())
        if self.max_age is not None:
            check_number("max_age", self.max_age, least=0.001)
        for name in ("max_messages", "max_bytes"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), least=1, whole=True)

    @property
    def max_age_ms(self) -> int:
        """0: no limit."""
        age = self.max_age
        if age is None:
            return 0
        seconds = age.total_seconds() if isinstance(age, timedelta) else age
        return max(1, round(seconds * 1000))


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `per_second` messages are delivered, over all partitions and groups of the topic.

    >>> client.create_topic("letters", rate_limit=quivermq.RateLimit(per_second=0.5, burst=1))
    """

    per_second: float
    burst: int = 1
    """So many may come at once after a pause."""

    def __post_init__(self) -> None:
        check_number("per_second", self.per_second, least=1e-9)
        check_number("burst", self.burst, least=1, whole=True)


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
        check_number("first", self.first, least=0)
        check_number("base", self.base, least=0.001)
        check_number("longest", self.longest, least=0.001)
        for name in ("first", "base", "longest"):
            if getattr(self, name) > _RETRY_SECONDS_MAX:
                raise InvalidRequest(
                    f"{name} must be at most {_RETRY_SECONDS_MAX:,} s: {getattr(self, name)!r}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """One partition as its leader sees it. What only the leader knows is None if it did not
    answer; `trouble` says why."""

    partition: int
    leader: int
    """The node that leads it; 0: nobody just then."""
    replicas: tuple[int, ...]
    start_offset: int | None = None
    """The first message that is kept."""
    end_offset: int | None = None
    """Behind the last message."""
    size_bytes: int | None = None
    in_sync: tuple[int, ...] | None = None
    """Replicas that have everything that is committed."""
    target: tuple[int, ...] = ()
    """Where the replicas are going to be, while they are being moved."""
    term: int | None = None
    commit_index: int | None = None
    trouble: str = ""
    """What is wrong, for people; empty: nothing."""

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
    """Another one after the topic was deleted and created again."""
    partitions: list[PartitionInfo]
    replication: int
    retention: Retention
    rate_limit: RateLimit | None
    max_deliveries: int
    dead_letter: str
    """The topic for messages that failed too often."""
    retry: Retry = field(default_factory=Retry)
    group_idle_retention: float | None = None
    """After so many seconds without use a shared group is forgotten; None: never."""

    @property
    def message_count(self) -> int | None:
        """How many messages are kept in all partitions; None if that is not known of all."""
        return _total(partition.message_count for partition in self.partitions)

    @property
    def size_bytes(self) -> int | None:
        """What the leaders' logs take on disk; None if that is not known of all."""
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
        topic, settings = described.topic, described.topic.settings
        known = {partition.partition: partition for partition in described.partitions}
        return cls(
            name=topic.name,
            id=topic.id.hex(),
            partitions=[
                _partition_info(place, known.get(place.partition)) for place in topic.partitions
            ],
            replication=topic.replication,
            retention=retention_of(settings),
            rate_limit=rate_limit_of(settings),
            max_deliveries=settings.max_deliveries or 5,
            dead_letter=settings.dead_letter or f"{topic.name}.dlq",
            retry=retry_of(settings),
            group_idle_retention=settings.group_idle_ms / 1000 or None,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The brokers, and who leads them."""

    cluster_id: str
    leader: int
    """The node that leads the metadata group; 0: nobody just then."""
    nodes: list[NodeInfo]
    node: int = 0
    """The one that answered."""
    version: int = 0
    """How often the catalog was changed."""
    level: int = 0
    """The feature level: what brokers may write. `upgrade_cluster` raises it."""

    @property
    def level_possible(self) -> int:
        """The highest level that every broker knows."""
        return min((node.level_max for node in self.nodes), default=self.level)

    @property
    def is_told_by_member(self) -> bool:
        """The broker that answered is one of these; if not, it was removed, or is not let in, and
        what it tells need not be true of any cluster."""
        return bool(self.cluster_id) and any(each.id == self.node for each in self.nodes)

    @classmethod
    def of(cls, found: proto.ClusterMap) -> Self:
        """The cluster as a broker sees it."""
        names = [spec.name for spec in fields(NodeInfo)]
        nodes = [
            NodeInfo(**{name: getattr(broker, name) for name in names}) for broker in found.brokers
        ]
        return cls(
            cluster_id=found.cluster_id,
            leader=found.leader,
            nodes=sorted(nodes, key=lambda node: node.id),
            node=found.node,
            version=found.version,
            level=found.level,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelInfo:
    """A feature level: what clusters that have it can do."""

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
    """Those that are new."""

    @classmethod
    def of(cls, upgraded: proto.ClusterUpgraded) -> Self:
        """What the leader of the metadata group tells."""
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
    """What is on its way, for people."""
    trouble: str = ""
    """What went wrong last, for people; empty: nothing."""

    @property
    def done(self) -> bool:
        """Nothing is left to move."""
        return not (self.moves_left or self.leaders_left)

    @classmethod
    def of(cls, progress: proto.RebalanceProgress) -> Self:
        """What the leader of the metadata group tells."""
        return cls(
            moves_left=progress.moves_left,
            leaders_left=progress.leaders_left,
            moving=list(progress.moving),
            trouble=progress.trouble,
        )


def topic_settings(
    *,
    retention: Retention | None,
    rate_limit: RateLimit | None,
    max_deliveries: int,
    dead_letter: str | None,
    retry: Retry | None = None,
    group_idle_retention: Idle = UNCHANGED,
) -> proto.TopicSettings:
    """The settings as they travel."""
    check_number("max_deliveries", max_deliveries, least=1, whole=True)
    kept = retention or Retention()
    settings = proto.TopicSettings(
        retention_ms=kept.max_age_ms,
        retention_messages=kept.max_messages or 0,
        retention_bytes=kept.max_bytes or 0,
        delete_acked=kept.delete_acked,
        keep_until_archived=kept.keep_until_archived,
        max_deliveries=max_deliveries,
        dead_letter=dead_letter or "",
    )
    if rate_limit is not None:
        settings.rate_per_second = rate_limit.per_second
        settings.rate_burst = rate_limit.burst
    if retry is not None:
        settings.retry_first_ms = round(retry.first * 1000)
        settings.retry_base_ms = max(1, round(retry.base * 1000))
        settings.retry_longest_ms = max(1, round(retry.longest * 1000))
    if not isinstance(group_idle_retention, Unchanged):
        settings.group_idle_ms = _idle_ms(group_idle_retention)
    return settings


def _idle_ms(idle: float | timedelta | None) -> int:
    """0: never."""
    if idle is None:
        return 0
    seconds = idle.total_seconds() if isinstance(idle, timedelta) else idle
    check_number("group_idle_retention", seconds, least=1)
    if seconds > _IDLE_SECONDS_MAX:
        raise InvalidRequest(
            f"group_idle_retention must be at most {_IDLE_SECONDS_MAX:,} s, or None: {idle!r}"
        )
    return round(seconds * 1000)


def retention_of(settings: proto.TopicSettings) -> Retention:
    """The other way round."""
    return Retention(
        max_age=settings.retention_ms / 1000 or None,
        max_messages=settings.retention_messages or None,
        max_bytes=settings.retention_bytes or None,
        delete_acked=settings.delete_acked,
        keep_until_archived=settings.keep_until_archived,
    )


def rate_limit_of(settings: proto.TopicSettings) -> RateLimit | None:
    """The other way round; None: no limit."""
    if not settings.rate_per_second:
        return None
    return RateLimit(settings.rate_per_second, settings.rate_burst or 1)


def retry_of(settings: proto.TopicSettings) -> Retry:
    """The other way round."""
    default = Retry()
    return Retry(
        first=settings.retry_first_ms / 1000,
        base=settings.retry_base_ms / 1000 or default.base,
        longest=settings.retry_longest_ms / 1000 or default.longest,
    )


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
    """Milliseconds since 1970, UTC: the producer's own, else when the leader took it."""
    priority: int

    @property
    def time(self) -> datetime:
        """`timestamp` as a datetime in UTC."""
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    def __repr__(self) -> str:
        key = "" if self.key is None else f" key={short(self.key)}"
        return f"<Message {self.topic}/{self.partition}@{self.offset}{key} {short(self.value)}>"


class Receipt(NamedTuple):
    """Where a message was stored."""

    topic: str
    partition: int
    offset: int


class BatchReceipt(NamedTuple):
    """Where messages that travelled together were stored: `count` of them, one behind the other."""

    partition: int
    first_offset: int
    count: int  # type: ignore[assignment]  # hides `tuple.count`, which nobody calls on a receipt


def short(data: bytes) -> str:
    """For people: the bytes, or how they begin."""
    return repr(data) if len(data) <= 40 else f"{data[:37]!r}... ({len(data):,} bytes)"
