"""The cluster as its clients see it: brokers, topics, and who leads what."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from quivermq.cluster import Level, Topic, View, node_of, partition_id
from quivermq.node.hosted_replica import HostedReplica, on_broker
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.queue import TopicSettings
from quivermq.wire import proto

UNANSWERED: Final = "its leader did not answer"
LEADERLESS: Final = "no leader is known"
_TOPIC_BYTES: Final = 120
_PARTITION_BYTES: Final = 24
"""About what a map takes, without the names."""
_COUNTS_KEPT_FACTOR: Final = 20
"""Counting may take a twentieth of the time at most."""
_DRAWN_FACTOR: Final = 2
"""Drawings of deleted topics are dropped once there are so many times more than topics."""


def settings_to_proto(settings: TopicSettings) -> proto.TopicSettings:
    return proto.TopicSettings(
        **{field: getattr(settings, field) for field in TopicSettings.__dataclass_fields__}
    )


def settings_from_proto(found: proto.TopicSettings) -> TopicSettings:
    """What a client asked for; 0 and "" stand for the defaults."""
    defaults = TopicSettings()
    names = TopicSettings.__dataclass_fields__
    settings = TopicSettings(
        **{name: getattr(found, name) or getattr(defaults, name) for name in names}
    )
    settings.check()
    return settings


def group_idle_from_proto(found: proto.TopicSettings) -> int | None:
    """After how long idle replicas are to be forgotten; None: nothing was said of it."""
    return found.group_idle_ms if found.HasField("group_idle_ms") else None


class _Drawn(NamedTuple):
    """A topic as it was drawn last."""

    topic: Topic
    partition_ids: tuple[bytes, ...]
    leaders: tuple[int, ...]
    level: int
    """Of features: it decides which settings are told."""
    packed: bytes
    """The topic as a part of a `ClusterMap`."""


class ClusterMaps:
    """Draws maps of the cluster.

    What was drawn of a topic is kept for as long as neither the topic nor a leader changes: most
    maps are those of a moment ago.
    """

    def __init__(
        self, node_id: int, partitions: PartitionLookup, is_alive: Callable[[int], bool]
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._slices = partitions.slices
        self.is_alive = is_alive
        self._drawn: dict[str, _Drawn] = {}
        self._counts: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
        self._counted_until = 0.0
        self._counted_version = -1

    async def cluster(self, leader: int, topics: Sequence[Topic]) -> proto.ClusterMap:
        view = self._partitions.view
        brokers = await self.brokers(view)
        parts = []
        async with self._slices.turn() as turn:
            for topic in topics:
                parts.append(self._draw(topic).packed)
                await turn.rest()
        if len(self._drawn) > _DRAWN_FACTOR * max(len(self._partitions.view.topics), 1):
            self._forget_deleted()
        found = proto.ClusterMap.FromString(b"".join(parts))
        found.cluster_id = view.cluster.id if view.cluster else ""
        found.version, found.leader, found.node = view.version, leader, self._node_id
        found.level = view.cluster.level if view.cluster else 0
        found.release = view.cluster.release if view.cluster else ""
        found.brokers.extend(brokers)
        return found

    @property
    def is_inside(self) -> bool:
        """This broker is in a cluster, for all that it knows: what it tells of topics counts."""
        view = self._partitions.view
        return view.cluster is not None and self._node_id in view.brokers

    def _forget_deleted(self) -> None:
        kept = {topic.id for topic in self._partitions.view.topics.values()}
        self._drawn = {key: drawn for key, drawn in self._drawn.items() if key in kept}

    async def brokers(self, view: View) -> list[proto.Broker]:
        """All brokers. What they lead and hold is counted anew for each map, unless that takes
        long: then the counts may be a little old."""
        if time.perf_counter() > self._counted_until or self._counted_version != view.version:
            await self._count(view)
        leads, holds = self._counts
        return [
            proto.Broker(
                id=broker.id,
                address=broker.address,
                peer_address=broker.peer_address,
                http_address=broker.http_address,
                alive=self.is_alive(broker.id),
                leaders=leads[broker.id],
                replicas=holds[broker.id],
                state=broker.state,
                version=broker.version,
                level_min=broker.level_min,
                level_max=broker.level_max,
            )
            for broker in view.brokers.values()
        ]

    async def _count(self, view: View) -> None:
        began = time.perf_counter()
        leads: Counter[int] = Counter()
        holds: Counter[int] = Counter()
        leader_of = self._partitions.leader_of
        async with self._slices.turn() as turn:
            for topic in view.topics.values():
                for partition_id, placement in zip(
                    self._partition_ids(topic), topic.partitions, strict=True
                ):
                    leads[leader_of(partition_id)] += 1
                    for member in placement.replicas:
                        holds[node_of(member)] += 1
                await turn.rest()
        now = time.perf_counter()
        self._counts = leads, holds
        self._counted_version = view.version
        self._counted_until = now + _COUNTS_KEPT_FACTOR * (now - began)

    def topic(self, topic: Topic) -> proto.TopicMap:
        return proto.ClusterMap.FromString(self._draw(topic).packed).topics[0]

    def _partition_ids(self, topic: Topic) -> tuple[bytes, ...]:
        drawn = self._drawn.get(topic.id)
        if drawn is not None and drawn.topic is topic:
            return drawn.partition_ids
        return tuple(partition_id(topic.id, number) for number in range(len(topic.partitions)))

    def _draw(self, topic: Topic) -> _Drawn:
        partition_ids = self._partition_ids(topic)
        leaders = tuple(map(self._partitions.leader_of, partition_ids))
        level = self._partitions.level
        drawn = self._drawn.get(topic.id)
        if drawn is None or drawn.topic is not topic or drawn[2:4] != (leaders, level):
            found = _topic_map(topic, leaders, level)
            packed = proto.ClusterMap(topics=[found]).SerializeToString()
            drawn = self._drawn[topic.id] = _Drawn(topic, partition_ids, leaders, level, packed)
        return drawn


def _topic_map(topic: Topic, leaders: tuple[int, ...], level: int) -> proto.TopicMap:
    settings = settings_to_proto(topic.topic_settings)
    if level >= Level.IDLE_GROUPS:
        settings.group_idle_ms = topic.group_idle_ms
    return proto.TopicMap(
        name=topic.name,
        id=bytes.fromhex(topic.id),
        replication=topic.replication,
        settings=settings,
        partitions=[
            proto.PartitionMap(
                partition=partition,
                leader=leader,
                replicas=map(node_of, placement.replicas),
                target=map(node_of, placement.target),
            )
            for partition, (leader, placement) in enumerate(
                zip(leaders, topic.partitions, strict=True)
            )
        ],
    )


def map_bytes(topics: Iterable[Topic]) -> int:
    """About what a map of these topics takes, seen before it is drawn."""
    return sum(
        _TOPIC_BYTES + len(topic.name) + _PARTITION_BYTES * len(topic.partitions)
        for topic in topics
    )


def described(
    partition_id: HostedReplica, is_alive: Callable[[int], bool]
) -> proto.PartitionDescription:
    """A partition as the replica here sees it. Who is down is not in sync, though it may have been
    when the replica fell asleep."""
    replica = partition_id.replica
    last = partition_id.log.edge.next_index - 1
    members = replica.configuration.members
    return proto.PartitionDescription(
        topic=partition_id.name.topic,
        partition=partition_id.name.partition,
        leader=node_of(replica.leader),
        replicas=map(node_of, members),
        start_offset=partition_id.log.start.next_offset,
        end_offset=partition_id.readable_end,
        size_bytes=partition_id.log.size_bytes,
        term=replica.term,
        commit_index=replica.commit_index,
        in_sync=[
            node_of(member)
            for member in members
            if is_alive(node_of(member)) and _is_in_sync(partition_id, member, last)
        ],
        trouble=on_broker(partition_id.member, partition_id.ailment),
        incarnation=partition_id.incarnation,
    )


def without_figures(found: proto.PartitionDescription) -> proto.PartitionDescription:
    """The same, without what only the leader knows for sure: it did not answer."""
    for name in ("start_offset", "end_offset", "size_bytes", "term", "commit_index", "in_sync"):
        found.ClearField(name)
    found.trouble = found.trouble or (UNANSWERED if found.leader else LEADERLESS)
    return found


def _is_in_sync(partition_id: HostedReplica, member: int, last: int) -> bool:
    if member == partition_id.member:
        return True
    lag = partition_id.replica.lag_of(member)
    return lag is not None and last - lag >= partition_id.replica.commit_index
