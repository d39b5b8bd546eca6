"""Dead letters and delayed messages, in the words of the public API."""

from collections.abc import Sequence
from typing import Final

from quivermq.errors import InvalidRequest
from quivermq.transports.grpc.administration import of_all
from quivermq.transports.grpc.call import Call
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import proto

_LISTED: Final = 1_000


async def list_dead_letters(
    call: Call, request: api.ListDeadLettersRequest
) -> api.ListDeadLettersResponse:
    """The dead letters that are left, by partition."""

    async def ask(partition: int) -> tuple[int, Sequence[proto.Interval]]:
        asked = proto.ListDead(topic=request.topic, partition=partition)
        answer, _ = await call.ask(proto.Request(list_dead=asked))
        return partition, answer.dead_listed.intervals

    call = call.listing()
    listed = await of_all(map(ask, range(await call.partitions_of(request.topic))))
    response = api.ListDeadLettersResponse()
    async with call.broker.partitions.slices.turn() as turn:
        for partition, intervals in listed:
            letters = response.letters.add(partition=partition) if intervals else None
            for interval in intervals:
                if letters is not None:
                    letters.ranges.add(start=interval.start, end=interval.end)
                await turn.rest()
    return response


async def redrive(call: Call, request: api.RedriveRequest) -> api.RedriveResponse:
    return api.RedriveResponse(messages=await _move(call, request, purge=False))


async def purge(call: Call, request: api.PurgeRequest) -> api.PurgeResponse:
    return api.PurgeResponse(messages=await _move(call, request, purge=True))


async def _move(call: Call, request: api.RedriveRequest | api.PurgeRequest, *, purge: bool) -> int:
    is_named = request.HasField("partition")
    if request.ranges and not is_named:
        raise InvalidRequest("offsets mean something in one partition: name it")

    async def move_at(partition: int) -> int:
        moved = proto.Redrive(
            topic=request.topic,
            partition=partition,
            intervals=_intervals(request.ranges),
            purge=purge,
        )
        answer, _ = await call.ask(proto.Request(redrive=moved))
        return int(answer.redriven.messages)

    if is_named:
        return await move_at(request.partition)
    return sum(await of_all(map(move_at, range(await call.partitions_of(request.topic)))))


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
