"""What an Arrow IPC message says of itself, read before Arrow is allowed to believe it.

pyarrow checks that buffers lie inside the message, but it allocates what a compressed buffer
claims to decompress to: 16 MiB of zstd can become hundreds of gigabytes; and it lets buffers
overlap, so that a body stands for more than its size. So the few numbers that matter are read
here first, out of the message's flatbuffer metadata. Layout, from Arrow's columnar format
(Message.fbs, Schema.fbs):

    0xFFFFFFFF | int32 metadata size | metadata: flatbuffer `Message` | body: the buffers

A flatbuffer table starts with an int32 distance back to its vtable; the vtable lists, per field,
a uint16 distance from the table's start (0: the field is absent).
"""

import struct
from enum import IntEnum
from struct import Struct
from typing import Final

from quivermq.batches.header import Buffer
from quivermq.errors import Corrupt

_PREFIX: Final = Struct("<II")
_U16: Final = Struct("<H")
_I32: Final = Struct("<i")
_U32: Final = Struct("<I")
_I64: Final = Struct("<q")
_BUFFER: Final = Struct("<qq")

_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3

# Field numbers in the flatbuffer tables.
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER = 1, 2
_BATCH_LENGTH, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 2, 3
_COMPRESSION_CODEC: Final = 0

# A compressed buffer starts with its decompressed size; this one says "stored as it is".
_STORED: Final = -1


class Codec(IntEnum):
    """Arrow's numbers of the codecs; the first is what an absent field means."""

    LZ4 = 0
    ZSTD = 1


def check_envelope(body: Buffer, *, count: int, codec: Codec | None, decoded_bytes: int) -> None:
    """Raise `Corrupt` unless `body` is a record batch of `count` rows within `decoded_bytes`."""
    try:
        _check(body, count, codec, decoded_bytes)
    except (struct.error, IndexError) as error:
        raise Corrupt(f"the Arrow message's metadata points outside it: {error}") from error


def _check(body: Buffer, count: int, codec: Codec | None, decoded_bytes: int) -> None:
    continuation, size = _PREFIX.unpack_from(body)
    data_start = _PREFIX.size + size
    if continuation != _CONTINUATION or data_start > len(body):
        raise Corrupt("the body does not start with an Arrow message")
    metadata = memoryview(body)[_PREFIX.size : data_start]
    message = _follow(metadata, 0)
    header_type = _field(metadata, message, _MESSAGE_HEADER_TYPE)
    if not header_type or metadata[header_type] != _RECORD_BATCH:
        raise Corrupt("the Arrow message is not a record batch")
    batch = _follow(metadata, _required(metadata, message, _MESSAGE_HEADER))
    rows = _I64.unpack_from(metadata, _required(metadata, batch, _BATCH_LENGTH))[0]
    if rows != count:
        raise Corrupt(f"the header counts {count} messages, the Arrow message {rows}")
    if _codec(metadata, batch) != codec:
        raise Corrupt("header and Arrow message disagree about compression")
    buffers = _buffers(metadata, batch)
    _check_places(buffers, len(body) - data_start)
    if codec is not None:
        _check_decoded(memoryview(body)[data_start:], buffers, decoded_bytes)


def _codec(metadata: memoryview, batch: int) -> int | None:
    at = _field(metadata, batch, _BATCH_COMPRESSION)
    if not at:
        return None
    codec = _field(metadata, _follow(metadata, at), _COMPRESSION_CODEC)
    return metadata[codec] if codec else Codec.LZ4


def _buffers(metadata: memoryview, batch: int) -> list[tuple[int, int]]:
    """Start and size of each buffer, as the message claims."""
    vector = _follow(metadata, _required(metadata, batch, _BATCH_BUFFERS))
    length = _U32.unpack_from(metadata, vector)[0]
    first = vector + _U32.size
    if length > (len(metadata) - first) // _BUFFER.size:
        raise Corrupt(f"the Arrow message claims {length} buffers")
    return list(_BUFFER.iter_unpack(metadata[first : first + length * _BUFFER.size]))


def _check_places(buffers: list[tuple[int, int]], data_bytes: int) -> None:
    """Raise unless the buffers follow each other inside the body.

    Arrow lets them overlap: keys, values and headers that all point at the same bytes would make
    messages several times as large as the body that the limits were applied to.
    """
    end = 0
    for start, size in buffers:
        if start < end or size < 0:
            raise Corrupt(f"a buffer of {size} bytes at {start} overlaps the one before it")
        end = start + size
    if end > data_bytes:
        raise Corrupt(f"the buffers end at {end}, the body at {data_bytes}")


def _check_decoded(data: memoryview, buffers: list[tuple[int, int]], most: int) -> None:
    """Add up what the compressed buffers claim to become."""
    total = 0
    for start, size in buffers:
        if size == 0:
            continue
        if size < _I64.size:
            raise Corrupt(f"a compressed buffer of {size} bytes cannot say what it becomes")
        decoded = _I64.unpack_from(data, start)[0]
        if decoded < _STORED:
            raise Corrupt(f"a compressed buffer claims {decoded} bytes")
        total += size - _I64.size if decoded == _STORED else decoded
    if total > most:
        raise Corrupt(f"the body decompresses to more than the {most:,} bytes it declares")


def _follow(metadata: memoryview, at: int) -> int:
    """Where the relative reference at `at` leads."""
    return at + int(_U32.unpack_from(metadata, at)[0])


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Where field `number` of `table` is stored; 0 if it is absent."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:
        # struct counts a negative position from the end, which would read other bytes.
        raise IndexError("a table's layout lies before the message")
    slot = 4 + 2 * number
    if slot >= _U16.unpack_from(metadata, vtable)[0]:
        return 0
    distance = int(_U16.unpack_from(metadata, vtable + slot)[0])
    return table + distance if distance else 0


def _required(metadata: memoryview, table: int, number: int) -> int:
    at = _field(metadata, table, number)
    if not at:
        raise Corrupt("the Arrow message lacks a field that every record batch has")
    return at
