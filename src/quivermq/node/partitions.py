"""Finding the group that a request is for, and telling who leads it otherwise."""

from quivermq.cluster import Topic, View, group_id, node_of
from quivermq.errors import (
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    QuiverError,
    TopicNotFound,
)
from quivermq.node.group import Group
from quivermq.node.leaders import Leaders
from quivermq.node.metadata import Metadata
from quivermq.node.remedies import on_broker
from quivermq.node.runner import GroupRunner
from quivermq.node.slices import Slices


class Partitions:
    """The partitions of the cluster, seen from this broker."""

    def __init__(self, metadata: Metadata, runner: GroupRunner, leaders: Leaders) -> None:
        self._metadata = metadata
        self._runner = runner
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

    def group_id(self, name: str, topic_id: bytes, partition: int) -> bytes:
        topic = self.topic(name, topic_id)
        if partition >= len(topic.partitions):
            raise InvalidRequest(
                f"topic {name!r} has partitions 0 to {len(topic.partitions) - 1}, not {partition}"
            )
        return group_id(topic.id, partition)

    def local(self, name: str, topic_id: bytes, partition: int) -> Group | None:
        """The group if it runs here."""
        return self._runner.groups.get(self.group_id(name, topic_id, partition))

    def leading(self, name: str, topic_id: bytes, partition: int) -> Group:
        """The group if it is led here; raises `NotLeader`, or `NotEnoughReplicas`, or why it cannot
        be served by anybody."""
        wanted = self.group_id(name, topic_id, partition)
        group = self._runner.groups.get(wanted)
        if group is not None and group.was_serving:
            return group
        raise self.not_leading(wanted, f"{name}/{partition}")

    def not_leading(self, wanted: bytes, name: str) -> QuiverError:
        leader = self.leader_of(wanted)
        if leader:
            return NotLeader(f"node {leader} leads {name}", leader=leader)
        group = self._runner.groups.get(wanted)
        if group is not None and group.refusal is not None:
            return group.refusal
        if group is not None and (group.is_abandoned or group.trouble):
            here = f"; {on_broker(group.member, group.ailment)}" if group.ailment else ""
            return NotEnoughReplicas(
                f"{name} has no leader: a majority of its replicas cannot be reached{here}"
            )
        return NotLeader(f"no leader of {name} is known yet; try again")

    def leader_of(self, wanted: bytes) -> int:
        """The node that leads a group; 0 if nobody does, as far as is known here."""
        group = self._runner.groups.get(wanted)
        if group is not None and not group.trouble:
            leader = node_of(group.replica.leader)
            if leader and (leader != node_of(group.member) or group.was_serving):
                return leader
            # A replica that is behind, or blank, may have heard less than this broker.
            return self.leaders.node(wanted, later_than=group.replica.term)
        return self.leaders.node(wanted)

    def address_of(self, node: int) -> str:
        broker = self.view.brokers.get(node)
        return broker.address if broker else ""
