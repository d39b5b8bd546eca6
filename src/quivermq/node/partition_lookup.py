"""Finds the replica that a request is for, or the broker that leads it."""

from quivermq.cluster import Topic, View, node_of, partition_id
from quivermq.errors import (
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    Overloaded,
    QuiverError,
    TopicNotFound,
)
from quivermq.node.ailments import on_broker
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.known_leaders import KnownLeaders
from quivermq.node.metadata import Metadata
from quivermq.node.replica_scheduler import ReplicaScheduler
from quivermq.node.time_slices import Slices


class PartitionLookup:
    """The partitions of the cluster, seen from this broker."""

    def __init__(
        self, metadata: Metadata, scheduler: ReplicaScheduler, leaders: KnownLeaders
    ) -> None:
        self._metadata = metadata
        self._scheduler = scheduler
        self.leaders = leaders
        self.slices = Slices()
        """Shared by all work over many partitions."""

    @property
    def view(self) -> View:
        return self._metadata.view

    async def catch_up(self) -> None:
        """Know everything that the catalog said when this was called."""
        await self._metadata.catch_up()

    @property
    def level(self) -> int:
        """The feature level by which this broker writes."""
        return self._metadata.level

    def topic(self, name: str, topic_id: bytes = b"") -> Topic:
        """A topic by name; and by id, if the asker knows it."""
        topic = self.view.topics.get(name)
        if topic is None:
            raise TopicNotFound(
                f"there is no topic {name!r}: create it with `quiver topic create {name}`"
            )
        if topic_id and topic_id.hex() != topic.id:
            raise TopicNotFound(f"topic {name!r} was deleted and created again")
        return topic

    def partition_id(self, name: str, topic_id: bytes, partition: int) -> bytes:
        return _id_of(self.topic(name, topic_id), partition)

    def is_restoring(self, name: str) -> bool:
        topic = self.view.topics.get(name)
        return topic is not None and bool(topic.restoring)

    def local(self, name: str, topic_id: bytes, partition: int) -> HostedReplica | None:
        """The replica if it runs here."""
        return self._scheduler.replicas.get(self.partition_id(name, topic_id, partition))

    def leading(
        self, name: str, topic_id: bytes, partition: int, *, restoring: bool = False
    ) -> HostedReplica:
        """The replica if it is led here; raises `NotLeader`, or `NotEnoughReplicas`, or why no
        broker can serve it. `restoring`: also of a topic that is being restored."""
        topic = self.topic(name, topic_id)
        if topic.restoring and not restoring:
            raise Overloaded(f"topic {name!r} is being restored from a backup; try again later")
        wanted = _id_of(topic, partition)
        hosted = self._scheduler.replicas.get(wanted)
        if hosted is not None and hosted.was_serving:
            return hosted
        raise self.not_leading(wanted, f"{name}/{partition}")

    def not_leading(self, wanted: bytes, name: str) -> QuiverError:
        leader = self.leader_of(wanted)
        if leader:
            return NotLeader(f"node {leader} leads {name}", leader=leader)
        hosted = self._scheduler.replicas.get(wanted)
        if hosted is not None and hosted.refusal is not None:
            return hosted.refusal
        if hosted is not None and (hosted.is_abandoned or hosted.trouble):
            here = f"; {on_broker(hosted.member, hosted.ailment)}" if hosted.ailment else ""
            return NotEnoughReplicas(
                f"{name} has no leader: a majority of its replicas cannot be reached{here}"
            )
        return NotLeader(f"no leader of {name} is known yet; try again")

    def leader_of(self, wanted: bytes) -> int:
        """The node that leads a partition; 0 if none does, as far as is known here."""
        hosted = self._scheduler.replicas.get(wanted)
        if hosted is not None and not hosted.trouble:
            leader = node_of(hosted.replica.leader)
            if leader and (leader != node_of(hosted.member) or hosted.was_serving):
                return leader
            # A replica that is behind, or blank, may have heard less than this broker.
            return self.leaders.node(wanted, later_than=hosted.replica.term)
        return self.leaders.node(wanted)

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; raises `TopicNotFound` if there is none."""
        return len(self.topic(topic).partitions)

    def leader_in(self, topic: str, partition: int) -> int:
        """The node that leads a partition of a topic; 0 if that is not known."""
        return self.leader_of(partition_id(self.topic(topic).id, partition))

    def address_of(self, node: int) -> str:
        broker = self.view.brokers.get(node)
        return broker.address if broker else ""


def _id_of(topic: Topic, partition: int) -> bytes:
    if partition >= len(topic.partitions):
        raise InvalidRequest(
            f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, not {partition}"
        )
    return partition_id(topic.id, partition)
