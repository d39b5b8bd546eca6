"""Topics, groups, offsets and the cluster, in the words of the public API."""

import asyncio
from collections.abc import Coroutine, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

from quivermq.client import GroupInfo, group_infos
from quivermq.errors import InvalidRequest
from quivermq.transports.grpc.call import Call
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import proto

_AT_ONCE: Final = 64
"""Partitions that one call asks about at a time."""
T = TypeVar("T")


async def create_topic(call: Call, request: api.CreateTopicRequest) -> api.CreateTopicResponse:
    creation = proto.CreateTopic(
        name=request.topic, partitions=request.partitions, replication=request.replication
    )
    if request.HasField("settings"):
        _copy_settings(request.settings, creation.settings)
    await call.ask(proto.Request(create_topic=creation))
    return api.CreateTopicResponse()


async def alter_topic(call: Call, request: api.AlterTopicRequest) -> api.AlterTopicResponse:
    change = proto.AlterTopic(name=request.topic, partitions=request.partitions)
    if request.HasField("settings"):
        change.settings.SetInParent()
        _copy_settings(request.settings, change.settings)
    await call.ask(proto.Request(alter_topic=change))
    return api.AlterTopicResponse()


async def delete_topic(call: Call, request: api.DeleteTopicRequest) -> api.DeleteTopicResponse:
    await call.ask(proto.Request(delete_topic=proto.DeleteTopic(name=request.topic)))
    return api.DeleteTopicResponse()


async def list_topics(call: Call, request: api.ListTopicsRequest) -> api.ListTopicsResponse:
    asked = proto.DescribeTopics(topics=request.topics)
    answer, _ = await call.ask(proto.Request(describe_topics=asked))
    response = api.ListTopicsResponse()
    async with call.broker.partitions.slices.turn() as turn:
        for described in answer.topics_described.topics:
            response.topics.append(_topic(described))
            await turn.rest()
    return response


def _topic(described: proto.TopicDescription) -> api.Topic:
    found = described.topic
    topic = api.Topic(name=found.name, id=found.id.hex(), replication=found.replication)
    topic.settings.SetInParent()
    _copy_settings(found.settings, topic.settings)
    topic.settings.dead_letter = topic.settings.dead_letter or f"{found.name}.dlq"
    for each in described.partitions:
        partition = topic.partitions.add(
            partition=each.partition,
            leader=each.leader,
            replicas=each.replicas,
            trouble=each.trouble,
        )
        for name in ("start_offset", "end_offset", "size_bytes"):
            if each.HasField(name):
                setattr(partition, name, getattr(each, name))
    return topic


def _copy_settings(
    source: proto.TopicSettings | api.TopicSettings, target: proto.TopicSettings | api.TopicSettings
) -> None:
    """Both have the same fields by name; a test sees to it."""
    for field, value in source.ListFields():
        setattr(target, field.name, value)


async def of_all(asked: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The answers of all partitions, some at a time; raises the first refusal."""
    found: list[T] = []
    waiting = iter(asked)
    while some := list(islice(waiting, _AT_ONCE)):
        outcomes = await asyncio.gather(*some, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            found.append(outcome)
    return found


async def new_producer(call: Call, _: api.NewProducerRequest) -> api.NewProducerResponse:
    answer, _frames = await call.ask(proto.Request(new_producer=proto.NewProducer()))
    granted = answer.producer_granted
    return api.NewProducerResponse(id=granted.producer_id, epoch=granted.producer_epoch)


async def commit(call: Call, request: api.CommitRequest) -> api.CommitResponse:
    commit = proto.CommitOffset(
        topic=request.topic,
        group=request.group,
        partition=request.partition,
        offset=request.offset,
    )
    await call.ask(proto.Request(commit_offset=commit))
    return api.CommitResponse()


async def committed(call: Call, request: api.CommittedRequest) -> api.CommittedResponse:
    async def ask(partition: int) -> dict[int, int]:
        asked = proto.CommittedOffsets(
            topic=request.topic, group=request.group, partitions=[partition]
        )
        answer, _ = await call.ask(proto.Request(committed_offsets=asked))
        return dict(answer.offsets_committed.offsets)

    found: dict[int, int] = {}
    for each in await of_all(map(ask, range(await call.partitions_of(request.topic)))):
        found.update(each)
    return api.CommittedResponse(offsets=found)


async def seek(call: Call, request: api.SeekRequest) -> api.SeekResponse:
    where = request.WhichOneof("to")
    if where is None:
        raise InvalidRequest("say where to seek: earliest, latest, offset or timestamp_ms")
    partitions = list(request.partitions) or list(range(await call.partitions_of(request.topic)))
    if where == "offset" and len(partitions) != 1:
        raise InvalidRequest(
            f"an offset means something in one partition, not in {len(partitions)}: name it"
        )

    async def seek_at(partition: int) -> tuple[int, int]:
        seek = proto.SeekGroup(topic=request.topic, group=request.group, partition=partition)
        setattr(seek, where, getattr(request, where))
        answer, _ = await call.ask(proto.Request(seek_group=seek))
        return partition, answer.group_sought.offset

    return api.SeekResponse(offsets=dict(await of_all(map(seek_at, partitions))))


async def delete_group(call: Call, request: api.DeleteGroupRequest) -> api.DeleteGroupResponse:
    async def delete_at(partition: int) -> None:
        delete = proto.DeleteGroup(topic=request.topic, group=request.group, partition=partition)
        await call.ask(proto.Request(delete_group=delete))

    await of_all(map(delete_at, range(await call.partitions_of(request.topic))))
    return api.DeleteGroupResponse()


async def list_groups(call: Call, request: api.ListGroupsRequest) -> api.ListGroupsResponse:
    async def describe(partition: int) -> list[proto.GroupDescription]:
        asked = proto.DescribeGroups(
            topic=request.topic, group=request.group, partitions=[partition]
        )
        answer, _ = await call.ask(proto.Request(describe_groups=asked))
        return list(answer.groups_described.groups)

    call = call.listing()
    numbers = range(await call.partitions_of(request.topic))
    described = [each for found in await of_all(map(describe, numbers)) for each in found]
    asked = proto.DescribeSticky(topic=request.topic, group=request.group)
    answer, _ = await call.ask(proto.Request(describe_sticky=asked))
    groups = group_infos(request.topic, described, answer.sticky_described.groups)
    return api.ListGroupsResponse(groups=map(_group, groups))


def _group(info: GroupInfo) -> api.Group:
    names = ("name", "topic", "mode", "lag", "in_flight", "delayed", "done", "dead", "lost")
    group = api.Group(**{name: getattr(info, name) for name in names})
    group.redelivered = info.redelivered
    for member in info.members:
        group.members.add(
            id=member.id,
            name=member.name,
            in_flight=member.in_flight,
            partitions=member.partitions,
        )
    for partition in info.partitions:
        group.partitions.add(
            partition=partition.partition,
            lag=partition.lag,
            in_flight=partition.in_flight,
            floor=partition.floor,
            committed=partition.committed,
            end_offset=partition.end_offset,
        )
    return group


async def cluster(call: Call, _: api.ClusterRequest) -> api.ClusterResponse:
    answer, _frames = await call.ask(proto.Request(map=proto.MapQuery(brokers_only=True)))
    found = answer.map
    response = api.ClusterResponse(
        cluster_id=found.cluster_id, leader=found.leader, node=found.node
    )
    names = [field.name for field in api.Broker.DESCRIPTOR.fields]
    for broker in sorted(found.brokers, key=lambda broker: broker.id):
        shown = {name: getattr(broker, name) for name in names}
        shown["address"] = broker.address or broker.hidden_address
        response.brokers.add(**shown)
    return response
