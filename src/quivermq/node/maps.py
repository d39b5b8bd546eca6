"""The cluster as its clients see it: brokers, topics, and who leads what."""

from collections import Counter
from collections.abc import Callable, Iterable

from quivermq.cluster import Level, Topic, View, group_id, node_of
from quivermq.node.group import Group
from quivermq.node.partitions import Partitions
from quivermq.queue import TopicSettings
from quivermq.wire import proto


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
    """After how long idle groups are to be forgotten; None: nothing was said of it."""
    return found.group_idle_ms if found.HasField("group_idle_ms") else None


class Maps:
    """Draws maps of the cluster."""

    def __init__(
        self, node_id: int, partitions: Partitions, is_alive: Callable[[int], bool]
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self.is_alive = is_alive

    def cluster(self, leader: int, topics: Iterable[Topic]) -> proto.ClusterMap:
        view = self._partitions.view
        return proto.ClusterMap(
            cluster_id=view.cluster.id if view.cluster else "",
            version=view.version,
            leader=leader,
            brokers=self.brokers(view),
            topics=[self.topic(topic) for topic in topics],
            node=self._node_id,
            level=view.cluster.level if view.cluster else 0,
            release=view.cluster.release if view.cluster else "",
        )

    def brokers(self, view: View) -> list[proto.Broker]:
        leads: Counter[int] = Counter()
        holds: Counter[int] = Counter()
        for topic, partition, placement in view.partitions():
            leads[self._partitions.leader_of(group_id(topic.id, partition))] += 1
            holds.update(map(node_of, placement.replicas))
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

    def topic(self, topic: Topic) -> proto.TopicMap:
        settings = settings_to_proto(topic.topic_settings)
        if self._partitions.level >= Level.IDLE_GROUPS:
            settings.group_idle_ms = topic.group_idle_ms
        return proto.TopicMap(
            name=topic.name,
            id=bytes.fromhex(topic.id),
            replication=topic.replication,
            settings=settings,
            partitions=[
                proto.PartitionMap(
                    partition=partition,
                    leader=self._partitions.leader_of(group_id(topic.id, partition)),
                    replicas=map(node_of, placement.replicas),
                    target=map(node_of, placement.target),
                )
                for partition, placement in enumerate(topic.partitions)
            ],
        )


def described(group: Group, is_alive: Callable[[int], bool]) -> proto.PartitionDescription:
    """A partition as the replica here sees it. Who is down is not in sync, though it may have been
    when the group fell asleep."""
    replica = group.replica
    last = group.log.edge.next_index - 1
    members = replica.configuration.members
    return proto.PartitionDescription(
        topic=group.name.topic,
        partition=group.name.partition,
        leader=node_of(replica.leader),
        replicas=map(node_of, members),
        start_offset=group.log.start.next_offset,
        end_offset=group.readable_end,
        size_bytes=group.log.size_bytes,
        term=replica.term,
        commit_index=replica.commit_index,
        in_sync=[
            node_of(member)
            for member in members
            if is_alive(node_of(member)) and _is_in_sync(group, member, last)
        ],
        trouble=group.trouble,
        incarnation=group.incarnation,
    )


def _is_in_sync(group: Group, member: int, last: int) -> bool:
    if member == group.member:
        return True
    lag = group.replica.lag_of(member)
    return lag is not None and last - lag >= group.replica.commit_index
