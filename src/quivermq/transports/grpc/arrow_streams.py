"""Arrow IPC streams to frames and back, without a look at the messages where that can be.

A frame's body is one encapsulated record batch without its schema, which the header's flags name.
An Arrow library reads a stream: a schema, record batches, an end. So the schema goes in front of a
body, or is taken off, and the rest stays as it is.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from quivermq.batches import (
    TIMESTAMP_TYPE,
    Buffer,
    Flag,
    Frame,
    FrameKind,
    Header,
    Limits,
    Origin,
    check_envelope,
    check_stream_schema,
    encode_batches,
    read_envelope,
    schema_of,
)
from quivermq.errors import Corrupt, InvalidRequest, TooLarge

_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_PREFIX_BYTES: Final = 8
"""In front of every message: a marker, and the size of its metadata."""
_COLUMN_FLAGS: Final = {
    "key": int(Flag.KEY),
    "headers": int(Flag.HEADERS),
    "timestamp": int(Flag.TIMESTAMP),
}
_DATA: Final = int(FrameKind.DATA)
_COLUMNS: Final = int(Flag.KEY | Flag.HEADERS | Flag.TIMESTAMP)
_BATCHES_MAX: Final = 1_024
"""Record batches in one stream."""


def stream_parts(frame: Frame) -> list[Buffer]:
    """The messages of a frame as an Arrow IPC stream, in parts: the body as it is."""
    return [_schema_message(frame.header.flags & _COLUMNS), frame.body, _END]


@cache
def _schema_message(flags: int) -> bytes:
    return bytes(schema_of(flags).serialize())


class Batch(NamedTuple):
    """A record batch of a stream."""

    rows: Any
    """A `pyarrow.RecordBatch`."""
    flags: int | None
    """Of a frame with this body; None: it cannot be stored as it is."""
    body: memoryview
    """The encapsulated message as it came."""


def batches_of(stream: bytes, limits: Limits) -> list[Batch]:
    """The record batches of a stream that have rows; raises `InvalidRequest` if it is none."""
    try:
        return list(_batches(stream, limits))
    except (pa.ArrowException, OSError, ValueError, IndexError, MemoryError, Corrupt) as error:
        raise InvalidRequest(f"`arrow` is not an Arrow IPC stream: {error}") from error


def _batches(stream: bytes, limits: Limits) -> Iterator[Batch]:
    view = memoryview(stream)
    schema = None
    flags: int | None = None
    at = number = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(stream)):
        body_bytes = 0 if message.body is None else message.body.size
        end = at + _PREFIX_BYTES + message.metadata.size + body_bytes
        if schema is None:
            # Arrow believes that it is one, and reads whatever is there.
            if message.type != "schema":
                raise InvalidRequest(f"a stream begins with its schema, not with {message.type}")
            schema = pa.ipc.read_schema(message)
            check_stream_schema(schema)
            flags = _flags_of(schema)
        elif message.type != "record batch":
            raise InvalidRequest(f"a stream may not have a {message.type}: send plain columns")
        else:
            number += 1
            if number > _BATCHES_MAX:
                raise TooLarge(f"more than {_BATCHES_MAX} record batches: send fewer at once")
            found = _batch(view[at:end], schema, flags, limits)
            if found.rows.num_rows:
                yield found
        at = end


def _batch(body: memoryview, schema: Any, flags: int | None, limits: Limits) -> Batch:
    """Checked before Arrow reads it: what is compressed may claim to become anything."""
    rows, codec = read_envelope(body)
    check_envelope(body, count=rows, codec=codec, decoded_bytes=limits.batch_bytes_max)
    found = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
    # Counting nulls of a column that is shorter than it says would read what is behind it.
    found.validate()
    if codec is not None or found.column(0).null_count or len(body) > limits.batch_bytes_max:
        flags = None
    return Batch(found, flags, body)


def _flags_of(schema: Any) -> int | None:
    """The flags of bodies with these columns, in the order of bodies; None if there are none."""
    if schema.names[:1] != ["value"] or schema.field(0).type != pa.binary():
        return None
    flags = 0
    for field in list(schema)[1:]:
        if field.name not in _COLUMN_FLAGS or not _is_of_body(field.name, field.type):
            return None
        flags |= _COLUMN_FLAGS[field.name]
    return flags if schema_of(flags).names == schema.names else None


def _is_of_body(name: str, kind: Any) -> bool:
    """Whether buffers of a column are laid out as in a body; what may be null does not matter."""
    if name == "key":
        return bool(kind == pa.binary())
    if name == "timestamp":
        return bool(kind == TIMESTAMP_TYPE)
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    pairs = [(field.name, field.type) for field in kind.value_type]
    return pairs == [("key", pa.string()), ("value", pa.binary())]


def frames_of_batch(batch: Batch, origin: Origin, limits: Limits) -> list[Frame]:
    """Frames for the messages of a batch: one with the bytes that came, if these can be stored."""
    body, flags = batch.body, batch.flags
    if flags is None:
        return list(encode_batches(batch.rows, origin=origin, limits=limits))
    origin.check()
    header = Header(
        kind=_DATA,
        flags=flags,
        priority=origin.priority,
        body_bytes=len(body),
        body_crc=crc32c(body),
        producer_id=origin.producer_id,
        sequence=origin.sequence,
        not_before_ms=origin.not_before_ms,
        producer_epoch=origin.producer_epoch,
        count=batch.rows.num_rows,
        decoded_bytes=len(body),
    )
    return [Frame(header, body)]
