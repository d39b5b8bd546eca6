"""Reads partitions by offset and by time, for Fetch."""

from collections.abc import Sequence
from typing import Final

from quivermq.batches import Frame
from quivermq.transports.grpc.call import Call
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.transports.grpc.parts import Parts, batch_parts, with_parts
from quivermq.transports.grpc.polling import BYTES_DEFAULT, PLAIN_MESSAGES_MAX
from quivermq.transports.grpc.shapes import MessageRun, add_messages, check_format
from quivermq.wire import proto

_MESSAGES_DEFAULT: Final = 1_000


async def fetch(call: Call, request: api.FetchRequest) -> api.FetchResponse | bytes:
    """The messages of a partition from a place on."""
    check_format(request.format)
    offset = await _offset(call, request)
    wait_s = call.wait_s(request.wait_ms)
    asked = proto.Fetch(
        topic=request.topic,
        partition=request.partition,
        offset=offset,
        bytes_max=request.max_bytes or BYTES_DEFAULT,
        wait_ms=int(wait_s * 1000),
        follower_ok=request.follower_ok,
    )
    answer, frames = await call.ask(proto.Request(fetch=asked), wait_s=wait_s)
    fetched = answer.fetched
    response = api.FetchResponse(
        next_offset=fetched.next_offset,
        start_offset=fetched.start_offset,
        end_offset=fetched.end_offset,
    )
    if request.format == api.FORMAT_ARROW:
        return _arrow(response, frames, request.max_messages)
    left = min(request.max_messages or _MESSAGES_DEFAULT, PLAIN_MESSAGES_MAX)
    async with call.broker.partitions.slices.turn() as turn:
        for frame in frames:
            start = max(offset, frame.header.base_offset)
            end = min(frame.header.next_offset, start + left)
            await add_messages(response, frame, [MessageRun(start, end, 0)], call.limits, turn)
            response.next_offset = end
            left -= end - start
            if not left:
                break
    return response


def _arrow(response: api.FetchResponse, frames: Sequence[Frame], most: int) -> bytes:
    """Whole batches, as many as hold `most` messages: who reads Arrow skips rows."""
    found: list[Parts] = []
    messages = 0
    for frame in frames:
        found.append(batch_parts(frame))
        messages += frame.header.count
        response.next_offset = frame.header.next_offset
        if most and messages >= most:
            break
    return b"".join(with_parts(response, "batches", found))


async def _offset(call: Call, request: api.FetchRequest) -> int:
    where = request.WhichOneof("start")
    if where == "offset":
        return request.offset
    find = proto.FindOffset(
        topic=request.topic, partition=request.partition, follower_ok=request.follower_ok
    )
    if where == "timestamp_ms":
        find.timestamp_ms = request.timestamp_ms
    elif where == "latest":
        find.latest = True
    else:
        find.earliest = True
    answer, _ = await call.ask(proto.Request(find_offset=find))
    return answer.offset_found.offset
