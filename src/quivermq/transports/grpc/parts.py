"""Responses with Arrow batches, laid out around the bodies of frames.

protobuf would copy each body three times: into the message, into its parent, into the bytes that
leave. Here all that stands around a body is serialized by protobuf, and one join copies the rest.
The order of fields is free in protobuf, so what is laid out by hand comes last.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from google.protobuf.message import Message

from quivermq.batches import Buffer, Frame
from quivermq.transports.grpc.arrow_streams import stream_parts
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api

Parts = list[Buffer]

_LENGTH_DELIMITED: Final = 2
_STREAM: Final = api.ArrowBatch.DESCRIPTOR.fields_by_name["stream"].number
_PUSH: Final = api.Response.DESCRIPTOR.fields_by_name["push"].number


def serialize(response: Message | bytes) -> bytes:
    """A response as it leaves."""
    return response if isinstance(response, bytes) else response.SerializeToString()


def with_parts(message: Message, field: str, each: Iterable[Parts]) -> Parts:
    """A message, and behind it a field of it, once for each of these."""
    number = message.DESCRIPTOR.fields_by_name[field].number
    found: Parts = [message.SerializeToString()]
    for parts in each:
        found += _field(number, parts)
    return found


def batch_parts(frame: Frame, leased: Sequence[api.LeasedRange] = ()) -> Parts:
    """An `ArrowBatch`: the frame as an Arrow stream, its body as it is."""
    header = frame.header
    batch = api.ArrowBatch(
        first_offset=header.base_offset,
        count=header.count,
        timestamp_ms=header.timestamp_ms,
        priority=header.priority,
        leased=leased,
    )
    return [batch.SerializeToString(), *_field(_STREAM, stream_parts(frame))]


def push_response(number: int, deliveries: Iterable[Parts]) -> bytes:
    """A `Response` that pushes these."""
    push = with_parts(api.Push(), "deliveries", deliveries)
    return b"".join([api.Response(id=number).SerializeToString(), *_field(_PUSH, push)])


def _field(number: int, parts: Parts) -> Parts:
    size = sum(map(len, parts))
    return [_varint(number << 3 | _LENGTH_DELIMITED) + _varint(size), *parts]


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
