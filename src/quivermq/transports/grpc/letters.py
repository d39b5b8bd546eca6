"""Dead letters and delayed messages, in the words of the public API."""

import asyncio
from collections.abc import Sequence
from typing import Final

from quivermq.client import REDRIVE_TARGETS
from quivermq.errors import Forbidden, InvalidRequest
from quivermq.intervals import Interval, IntervalSet, split_intervals
from quivermq.transports.grpc.administration import of_all
from quivermq.transports.grpc.call import Call
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import proto

_LISTED: Final = 1_000


async def list_dead_letters(
    call: Call, request: api.ListDeadLettersRequest
) -> api.ListDeadLettersResponse:
    """The dead letters that are left, by topic and partition."""
    call = call.listing()
    topics = [request.topic] if request.topic else await _dead_letter_topics(call)
    response = api.ListDeadLettersResponse()
    for topic in topics:

        async def ask(partition: int, topic: str = topic) -> tuple[int, list[Interval]]:
            return partition, await _dead(call, topic, partition, request.filter)

        try:
            listed = await of_all(map(ask, range(await call.partitions_of(topic))))
        except Forbidden:
            if request.topic:
                raise
            # Of all topics those that the caller may read.
            continue
        async with call.broker.partitions.slices.turn() as turn:
            for partition, intervals in listed:
                if intervals:
                    letters = response.letters.add(topic=topic, partition=partition)
                    for start, end in intervals:
                        letters.ranges.add(start=start, end=end)
                        await turn.rest()
    return response


async def _dead_letter_topics(call: Call) -> list[str]:
    answer, _ = await call.ask(proto.Request(describe_topics=proto.DescribeTopics()))
    topics = [described.topic for described in answer.topics_described.topics]
    places = {topic.settings.dead_letter or f"{topic.name}.dlq" for topic in topics}
    return sorted(places & {topic.name for topic in topics})


async def _dead(call: Call, topic: str, partition: int, wanted: api.LetterFilter) -> list[Interval]:
    """Of one partition: as often as a broker has to be asked to look at all letters."""
    found: list[Interval] = []
    asked = proto.ListDead(topic=topic, partition=partition)
    if wanted.ByteSize():
        asked.filter.CopyFrom(_filter(wanted))
    while True:
        answer, _ = await call.ask(proto.Request(list_dead=asked))
        found += [(part.start, part.end) for part in answer.dead_listed.intervals]
        if not answer.dead_listed.next:
            return found
        asked.first = answer.dead_listed.next


def _filter(wanted: api.LetterFilter) -> proto.LetterFilter:
    found = proto.LetterFilter(
        topic=wanted.topic,
        group=wanted.group,
        reason=wanted.reason,
        died_from_ms=wanted.died_from_ms,
        died_before_ms=wanted.died_before_ms,
    )
    if wanted.HasField("key"):
        found.key = wanted.key
    return found


async def redrive(call: Call, request: api.RedriveRequest) -> api.RedriveResponse:
    if not 0 <= request.rate < float("inf"):
        raise InvalidRequest(f"a rate is a number of messages a second: {request.rate}")
    wanted = proto.Redrive(to=REDRIVE_TARGETS.get(request.to or "group", request.to))
    redriven = await _move(call, request, wanted, request.rate)
    return api.RedriveResponse(messages=redriven.messages, stayed=redriven.stayed)


async def purge(call: Call, request: api.PurgeRequest) -> api.PurgeResponse:
    purged = await _move(call, request, proto.Redrive(purge=True))
    return api.PurgeResponse(messages=purged.messages)


async def _move(
    call: Call,
    request: api.RedriveRequest | api.PurgeRequest,
    wanted: proto.Redrive,
    rate: float = 0.0,
) -> proto.Redriven:
    is_named = request.HasField("partition")
    if request.ranges and not is_named:
        raise InvalidRequest("offsets mean something in one partition: name it")
    wanted.topic = request.topic
    if request.filter.ByteSize():
        wanted.filter.CopyFrom(_filter(request.filter))
    numbers = [request.partition] if is_named else range(await call.partitions_of(request.topic))
    total = proto.Redriven()
    for number in numbers:
        named = [(each.start, each.end) for each in request.ranges]
        if rate:
            dead = IntervalSet(await _dead(call, request.topic, number, request.filter))
            named = [x for part in named for x in dead.within(*part)] if named else list(dead)
        portions = split_intervals(named, max(1, int(rate))) if rate else iter([named])
        for portion in portions:
            await _move_at(call, wanted, number, portion, total)
            if rate:
                await asyncio.sleep(sum(end - start for start, end in portion) / rate)
    return total


async def _move_at(
    call: Call, wanted: proto.Redrive, number: int, intervals: list[Interval], into: proto.Redriven
) -> None:
    asked = proto.Redrive()
    asked.CopyFrom(wanted)
    asked.partition = number
    for start, end in intervals:
        asked.intervals.add(start=start, end=end)
    while True:
        answer, _ = await call.ask(proto.Request(redrive_to=asked))
        into.messages += answer.redriven.messages
        into.stayed += answer.redriven.stayed
        if not answer.redriven.next:
            return
        asked.first = answer.redriven.next


async def list_delayed(call: Call, request: api.ListDelayedRequest) -> api.ListDelayedResponse:
    """Delayed messages of all partitions, the next one first."""

    async def ask(partition: int) -> list[api.Delayed]:
        asked = proto.ListDelayed(
            topic=request.topic, partition=partition, limit=request.limit or _LISTED
        )
        answer, _ = await call.ask(proto.Request(list_delayed=asked))
        return [
            api.Delayed(
                partition=partition,
                first_offset=each.start,
                count=each.count,
                due_ms=each.due_ms,
                priority=each.priority,
            )
            for each in answer.delayed_listed.batches
        ]

    listed = await of_all(map(ask, range(await call.partitions_of(request.topic))))
    found = sorted(
        (each for part in listed for each in part),
        key=lambda each: (each.due_ms, each.partition, each.first_offset),
    )
    return api.ListDelayedResponse(delayed=found)


async def cancel_delayed(
    call: Call, request: api.CancelDelayedRequest
) -> api.CancelDelayedResponse:
    if not request.ranges:
        raise InvalidRequest("name the messages to cancel by their offsets")
    cancel = proto.CancelDelayed(
        topic=request.topic, partition=request.partition, intervals=_intervals(request.ranges)
    )
    answer, _ = await call.ask(proto.Request(cancel_delayed=cancel))
    return api.CancelDelayedResponse(messages=answer.delayed_cancelled.cancelled)


def _intervals(ranges: Sequence[api.OffsetRange]) -> list[proto.Interval]:
    return [proto.Interval(start=each.start, end=each.end) for each in ranges]
