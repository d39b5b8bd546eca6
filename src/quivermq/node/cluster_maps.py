"""Builds the answers that show clients the cluster: its brokers, topics and partition leaders."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from quivermq.cluster import Topic, View, node_of, partition_id
from quivermq.node.ailments import on_broker
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.queue import TopicSettings
from quivermq.topic_settings import LEADER_ONLY, REPLICATED
from quivermq.wire import proto

UNANSWERED: Final = "its leader did not answer"
LEADERLESS: Final = "no leader is known"
_TOPIC_BYTES: Final = 120
_PARTITION_BYTES: Final = 24
"""About the size of a map, without the names."""
_COUNTS_KEPT_FACTOR: Final = 20
"""Counting takes at most a twentieth of the time."""
_CACHED_FACTOR: Final = 2
"""Maps of deleted topics are dropped once there are so many times more maps than topics."""


def settings_to_proto(settings: TopicSettings) -> proto.TopicSettings:
    return proto.TopicSettings(
        **{setting.name: getattr(settings, setting.name) for setting in REPLICATED}
    )


def settings_from_proto(found: proto.TopicSettings) -> TopicSettings:
    """The settings in a request; 0 and "" stand for the defaults."""
    settings = TopicSettings(
        **{setting.name: getattr(found, setting.name) or setting.default for setting in REPLICATED}
    )
    settings.check()
    return settings


def leader_settings_from_proto(found: proto.TopicSettings) -> dict[str, int]:
    """The settings in a request that only leaders act on, without those that it leaves unset."""
    names = [setting.name for setting in LEADER_ONLY]
    return {name: getattr(found, name) for name in names if found.HasField(name)}


class _CachedMap(NamedTuple):
    """The last map of a topic, and what it was made from."""

    topic: Topic
    partition_ids: tuple[bytes, ...]
    leaders: tuple[int, ...]
    level: int
    """The feature level: it decides which settings are shown."""
    packed: bytes
    """The topic as a part of a `ClusterMap`."""


class ClusterMaps:
    """Makes maps of the cluster.

    The map of a topic is cached until the topic or a leader changes: most maps are those of a
    moment ago.
    """

    def __init__(
        self, node_id: int, partitions: PartitionLookup, is_alive: Callable[[int], bool]
    ) -> None:
        self.node_id = node_id
        self._partitions = partitions
        self._slices = partitions.slices
        self.is_alive = is_alive
        self._cached: dict[str, _CachedMap] = {}
        self._counts: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
        self._counted_until = 0.0
        self._counted_version = -1

    async def cluster(self, leader: int, topics: Sequence[Topic]) -> proto.ClusterMap:
        view = self._partitions.view
        brokers = await self.brokers(view)
        parts = []
        async with self._slices.turn() as turn:
            for topic in topics:
                parts.append(self._map_of(topic).packed)
                await turn.rest()
        if len(self._cached) > _CACHED_FACTOR * max(len(self._partitions.view.topics), 1):
            self._forget_deleted()
        found = proto.ClusterMap.FromString(b"".join(parts))
        found.cluster_id = view.cluster.id if view.cluster else ""
        found.version, found.leader, found.node = view.version, leader, self.node_id
        # By which this broker acts: it may not have noted yet what the catalog says.
        found.level = min(view.cluster.level, self._partitions.level) if view.cluster else 0
        found.release = view.cluster.release if view.cluster else ""
        found.brokers.extend(brokers)
        return found

    @property
    def is_inside(self) -> bool:
        """This broker is in a cluster, as far as it knows, so its answers about topics count."""
        view = self._partitions.view
        return view.cluster is not None and self.node_id in view.brokers

    def _forget_deleted(self) -> None:
        kept = {topic.id for topic in self._partitions.view.topics.values()}
        self._cached = {key: cached for key, cached in self._cached.items() if key in kept}

    async def brokers(self, view: View) -> list[proto.Broker]:
        """All brokers. Their leaders and replicas are counted anew for each map, unless that takes
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
                zone=broker.zone,
                machine=broker.machine,
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
        return proto.ClusterMap.FromString(self._map_of(topic).packed).topics[0]

    def _partition_ids(self, topic: Topic) -> tuple[bytes, ...]:
        cached = self._cached.get(topic.id)
        if cached is not None and cached.topic is topic:
            return cached.partition_ids
        return tuple(partition_id(topic.id, number) for number in range(len(topic.partitions)))

    def _map_of(self, topic: Topic) -> _CachedMap:
        partition_ids = self._partition_ids(topic)
        leaders = tuple(map(self._partitions.leader_of, partition_ids))
        level = self._partitions.level
        cached = self._cached.get(topic.id)
        if cached is None or cached.topic is not topic or cached[2:4] != (leaders, level):
            found = _topic_map(topic, leaders, level)
            packed = proto.ClusterMap(topics=[found]).SerializeToString()
            cached = self._cached[topic.id] = _CachedMap(
                topic, partition_ids, leaders, level, packed
            )
        return cached


def _topic_map(topic: Topic, leaders: tuple[int, ...], level: int) -> proto.TopicMap:
    settings = settings_to_proto(topic.topic_settings)
    for setting in LEADER_ONLY:
        if level >= setting.level:
            setattr(settings, setting.name, getattr(topic, setting.name))
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
    """About the size of a map of these topics, before it is made."""
    return sum(
        _TOPIC_BYTES + len(topic.name) + _PARTITION_BYTES * len(topic.partitions)
        for topic in topics
    )


def describe_partition(
    hosted: HostedReplica, is_alive: Callable[[int], bool]
) -> proto.PartitionDescription:
    """A partition as the replica here sees it. A broker that is down is not in sync, though it may
    have been when the replica fell asleep."""
    replica = hosted.replica
    last = hosted.log.edge.next_index - 1
    members = replica.configuration.members
    return proto.PartitionDescription(
        topic=hosted.name.topic,
        partition=hosted.name.partition,
        leader=node_of(replica.leader),
        replicas=map(node_of, members),
        start_offset=hosted.log.start.next_offset,
        end_offset=hosted.readable_end,
        size_bytes=hosted.log.size_bytes,
        term=replica.term,
        commit_index=replica.commit_index,
        in_sync=[
            node_of(member)
            for member in members
            if is_alive(node_of(member)) and _is_in_sync(hosted, member, last)
        ],
        trouble=on_broker(hosted.member, hosted.ailment),
        incarnation=hosted.incarnation,
        life=hosted.life,
    )


def without_figures(found: proto.PartitionDescription) -> proto.PartitionDescription:
    """The same without the fields that only the leader knows for sure: it did not answer."""
    for name in ("start_offset", "end_offset", "size_bytes", "term", "commit_index", "in_sync"):
        found.ClearField(name)
    found.trouble = found.trouble or (UNANSWERED if found.leader else LEADERLESS)
    return found


def _is_in_sync(hosted: HostedReplica, member: int, last: int) -> bool:
    if member == hosted.member:
        return True
    lag = hosted.replica.lag_of(member)
    return lag is not None and last - lag >= hosted.replica.commit_index
