"""Handles requests about topics: the leader of the metadata partition creates and changes them,
every broker lists and describes them."""

import asyncio
import secrets
from typing import Final

from quivermq.cluster import (
    Edit,
    Placement,
    Topic,
    View,
    alter_topic,
    create_topic,
    delete_topic,
    node_of,
    partition_id,
)
from quivermq.errors import NotLeader, QuiverError, TopicNotFound
from quivermq.node.ailments import on_broker
from quivermq.node.cluster_maps import (
    LEADERLESS,
    UNANSWERED,
    ClusterMaps,
    describe_partition,
    leader_settings_from_proto,
    map_bytes,
    settings_from_proto,
    without_figures,
)
from quivermq.node.forwarding import Forwarding
from quivermq.node.metadata import Metadata
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.replica_scheduler import ReplicaScheduler
from quivermq.node.service import Answer, Bulky, Handler, Room
from quivermq.settings import BrokerSettings
from quivermq.wire import DESCRIBED_BY_NAME_MAX, check_answer, proto

_LEADER_WAIT_S: Final = 5.0
_FOUNDING_MS: Final = 5_000
_DESCRIBE_S: Final = 2.0
_DESCRIPTION_BYTES: Final = 100
"""About the size of a partition's description, without names and troubles."""


def done() -> proto.Response:
    return proto.Response(done=proto.Done())


class TopicHandlers:
    """Creates, alters, deletes, lists and describes topics."""

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: Metadata,
        partitions: PartitionLookup,
        scheduler: ReplicaScheduler,
        maps: ClusterMaps,
        forwarding: Forwarding,
        lost: dict[bytes, str],
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._partitions = partitions
        self._scheduler = scheduler
        self._maps = maps
        self._forwarding = forwarding
        self._lost = lost
        self._slices = partitions.slices

    def handlers(self) -> dict[str, Handler]:
        return {
            "create_topic": self.create,
            "alter_topic": self.alter,
            "delete_topic": self.delete,
            "describe_partitions": self.describe_partitions,
        }

    def bulky(self) -> dict[str, Bulky]:
        return {
            "map": Bulky(self.map, lambda _: map_bytes(self._partitions.view.topics.values())),
            "describe_topics": Bulky(
                self.describe,
                lambda _: described_bytes(list(self._partitions.view.topics.values())),
            ),
        }

    async def map(self, request: proto.Request, room: Room) -> Answer:
        query = request.map
        if query.topics or query.latest or not query.brokers_only:
            self._check_inside()
        names = list(dict.fromkeys(query.topics))
        if query.latest or any(name not in self._partitions.view.topics for name in names):
            await self._metadata.catch_up()
        topics = self._partitions.view.topics
        missing = [name for name in names if name not in topics]
        if missing and query.auto_create and self._settings.auto_create_topics:
            for name in missing:
                await self._create(proto.CreateTopic(name=name))
        topics = self._partitions.view.topics
        names = names or ([] if query.brokers_only else sorted(topics))
        found = [topics[name] for name in names if name in topics]
        size = map_bytes(found)
        check_answer(size, "ask for topics by their names")
        await room(size)
        return proto.Response(map=await self._maps.cluster(self._metadata.leader, found)), ()

    async def create(self, request: proto.Request) -> proto.Response:
        await self._create(request.create_topic)
        return done()

    async def _create(self, body: proto.CreateTopic) -> None:
        settings = settings_from_proto(body.settings)
        topic_id = secrets.token_hex(12)

        def build(view: View) -> Edit | None:
            self._check_founders(view)
            return create_topic(
                view,
                body.name,
                topic_id=topic_id,
                partitions=body.partitions,
                replication=body.replication,
                settings=settings,
                leader_settings=leader_settings_from_proto(body.settings),
                default_partitions=self._settings.default_partitions,
                partitions_max=self._settings.partitions_max,
            )

        await self._metadata.edit(build)
        await self._wait_for_leaders(body.name)

    def _check_inside(self) -> None:
        """Refuse to answer outside of a cluster: that this broker knows no topic does not mean that
        there is none."""
        if not self._maps.is_inside:
            raise NotLeader("this broker is in no cluster yet, or not any more: ask another")

    def _check_founders(self, view: View) -> None:
        """Refuse while a cluster that is being founded does not know all its brokers: a topic would
        get too few replicas. A broker that stays away delays this by `_FOUNDING_MS` at most."""
        hosted = self._metadata.leading_replica()
        missing = [
            member
            for member in hosted.replica.configuration.voters
            if node_of(member) not in view.brokers and node_of(member) not in view.retired
        ]
        since_ms = view.cluster.created_ms if view.cluster else hosted.now_ms()
        if not view.serving or (missing and abs(hosted.now_ms() - since_ms) < _FOUNDING_MS):
            raise NotLeader("not all brokers of this cluster have registered yet; try again")

    async def _wait_for_leaders(self, name: str) -> None:
        """Wait a while for every partition to have a leader: the client wants to use the topic."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LEADER_WAIT_S
        led = 0
        while loop.time() < deadline:
            topic = self._partitions.view.topics.get(name)
            if topic is None:
                return
            # Those that have one are not looked at again: there may be thousands.
            while led < len(topic.partitions):
                if not self._partitions.leader_of(partition_id(topic.id, led)):
                    break
                led += 1
            else:
                return
            await asyncio.sleep(0.01)

    async def alter(self, request: proto.Request) -> proto.Response:
        body = request.alter_topic
        wanted = settings_from_proto(body.settings) if body.HasField("settings") else None
        await self._metadata.edit(
            lambda view: alter_topic(
                view,
                body.name,
                partitions=body.partitions,
                settings=wanted,
                leader_settings=leader_settings_from_proto(body.settings),
                partitions_max=self._settings.partitions_max,
            )
        )
        await self._wait_for_leaders(body.name)
        return done()

    async def delete(self, request: proto.Request) -> proto.Response:
        name = request.delete_topic.name
        await self._metadata.edit(lambda view: delete_topic(view, name))
        return done()

    async def describe(self, request: proto.Request, room: Room) -> Answer:
        self._check_inside()
        view = self._partitions.view
        names = list(dict.fromkeys(request.describe_topics.topics)) or sorted(view.topics)
        unknown = [name for name in names if name not in view.topics]
        if unknown:
            raise TopicNotFound(f"there is no topic {unknown[0]!r}")
        topics = [view.topics[name] for name in names]
        size = described_bytes(topics)
        check_answer(size, "describe topics by their names, fewer at once")
        await room(size)
        found = await self._describe_partitions(topics)
        answer = proto.TopicsDescribed()
        async with self._slices.turn() as turn:
            for topic in topics:
                answer.topics.add(
                    topic=self._maps.topic(topic),
                    partitions=[found[topic.name, n] for n in range(len(topic.partitions))],
                )
                await turn.rest()
        return proto.Response(topics_described=answer), ()

    async def _describe_partitions(
        self, topics: list[Topic]
    ) -> dict[tuple[str, int], proto.PartitionDescription]:
        """Descriptions of all partitions. Their leaders are asked, each once; the fields of a
        leader that does not answer stay unset."""
        found: dict[tuple[str, int], proto.PartitionDescription] = {}
        elsewhere: dict[int, list[proto.PartitionName]] = {}
        async with self._slices.turn() as turn:
            for topic in topics:
                for number in range(len(topic.partitions)):
                    seen, knowing = self._describe_here(topic, number)
                    found[topic.name, number] = seen
                    for node in knowing:
                        name = proto.PartitionName(topic=topic.name, partition=number)
                        elsewhere.setdefault(node, []).append(name)
                    await turn.rest()
        asked = [self._ask(node, names) for node, names in elsewhere.items()]
        for partition in [p for answer in await asyncio.gather(*asked) for p in answer]:
            place = (partition.topic, partition.partition)
            found[place] = _merge(found[place], partition)
        return found

    def _describe_here(
        self, topic: Topic, number: int
    ) -> tuple[proto.PartitionDescription, list[int]]:
        """A partition as far as it is known here, and the brokers that may know more."""
        wanted = partition_id(topic.id, number)
        hosted, leader = self._scheduler.replicas.get(wanted), self._partitions.leader_of(wanted)
        placement = topic.partitions[number]
        if hosted is not None:
            seen = describe_partition(hosted, self._maps.is_alive)
            if hosted.was_serving:
                return seen, []
        else:
            seen = proto.PartitionDescription(
                topic=topic.name,
                partition=number,
                leader=leader,
                replicas=map(node_of, placement.replicas),
                trouble=self._lost_here(wanted) or ("" if leader else LEADERLESS),
            )
        # Without a leader, each replica knows its own reason.
        asked = [leader] if leader else self._others(placement)
        return without_figures(seen), asked

    def _others(self, placement: Placement) -> list[int]:
        """The other live brokers that have a replica."""
        nodes = map(node_of, placement.replicas)
        return [n for n in nodes if n != self._settings.node_id and self._maps.is_alive(n)]

    def _lost_here(self, wanted: bytes) -> str:
        return on_broker(self._settings.node_id, self._lost.get(wanted, ""))

    async def _ask(
        self, node: int, names: list[proto.PartitionName]
    ) -> list[proto.PartitionDescription]:
        found: list[proto.PartitionDescription] = []
        for first in range(0, len(names), DESCRIBED_BY_NAME_MAX):
            part = names[first : first + DESCRIBED_BY_NAME_MAX]
            request = proto.Request(describe_partitions=proto.DescribePartitions(partitions=part))
            request.forwarded = True
            try:
                response, _ = await self._forwarding.forward(node, request, (), _DESCRIBE_S)
            except QuiverError:
                break
            # A broker that does not lead any more knows no more than this one.
            found += [
                each if each.leader == node else without_figures(each)
                for each in response.partitions_described.partitions
            ]
        return found

    async def describe_partitions(self, request: proto.Request) -> proto.Response:
        names = {(name.topic, name.partition) for name in request.describe_partitions.partitions}
        found = proto.PartitionsDescribed()
        async with self._slices.turn() as turn:
            for topic, number in sorted(names):
                hosted = self._partitions.local(topic, b"", number)
                if hosted is not None:
                    found.partitions.append(describe_partition(hosted, self._maps.is_alive))
                elif trouble := self._lost_here(self._partitions.partition_id(topic, b"", number)):
                    found.partitions.add(topic=topic, partition=number, trouble=trouble)
                await turn.rest()
        return proto.Response(partitions_described=found)


def _merge(
    known: proto.PartitionDescription, told: proto.PartitionDescription
) -> proto.PartitionDescription:
    """Merge the description made here with that of another broker; the troubles of both stay."""
    is_more = told.leader or (known.leader and told.replicas)
    is_answered = is_more and known.trouble in {UNANSWERED, LEADERLESS}
    troubles = ("" if is_answered else known.trouble, told.trouble)
    found = told if is_more else known
    found.trouble = "; ".join(dict.fromkeys(filter(None, "; ".join(troubles).split("; "))))
    return found


def described_bytes(topics: list[Topic]) -> int:
    """About the size of the description of these topics, before it is made."""
    return map_bytes(topics) + sum(
        (_DESCRIPTION_BYTES + len(topic.name)) * len(topic.partitions) for topic in topics
    )
