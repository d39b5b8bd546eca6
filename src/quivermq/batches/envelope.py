"""What an Arrow IPC message says of itself, read before Arrow is allowed to believe it.

pyarrow checks that buffers lie inside the message, but it allocates what a compressed buffer
claims to decompress to: 16 MiB of zstd can become hundreds of gigabytes. So the few numbers that
matter are read here first, out of the message's flatbuffer metadata. Layout, from Arrow's
columnar format (Message.fbs, Schema.fbs):

    0xFFFFFFFF | int32 metadata size | metadata: flatbuffer `Message` | body: the buffers

A flatbuffer table starts with an int32 distance back to its vtable; the vtable lists, per field,
a uint16 distance from the table's start (0: the field is absent).
"""

import struct
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

# A compressed buffer starts with its decompressed size; this one says "stored as it is".
_STORED: Final = -1


def check_envelope(body: Buffer, *, count: int, compressed: bool, decoded_bytes: int) -> None:
    """Raise `Corrupt` unless `body` is a record batch of `count` rows within `decoded_bytes`."""
    try:
        _check(body, count, compressed=compressed, decoded_bytes=decoded_bytes)
    except (struct.error, IndexError) as error:
        raise Corrupt(f"the Arrow message's metadata points outside it: {error}") from error


def _check(body: Buffer, count: int, *, compressed: bool, decoded_bytes: int) -> None:
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
    if bool(_field(metadata, batch, _BATCH_COMPRESSION)) != compressed:
        raise Corrupt("header and Arrow message disagree about compression")
    if compressed:
        buffers = _follow(metadata, _required(metadata, batch, _BATCH_BUFFERS))
        _check_decoded(memoryview(body)[data_start:], metadata, buffers, decoded_bytes)


def _check_decoded(data: memoryview, metadata: memoryview, vector: int, most: int) -> None:
    """Add up what the compressed buffers claim to become."""
    (length,) = _U32.unpack_from(metadata, vector)
    first = vector + _U32.size
    if length > (len(metadata) - first) // _BUFFER.size:
        raise Corrupt(f"the Arrow message claims {length} buffers")
    total = 0
    for number in range(length):
        start, size = _BUFFER.unpack_from(metadata, first + number * _BUFFER.size)
        if size == 0:
            continue
        if start < 0 or size < _I64.size or start + size > len(data):
            raise Corrupt(f"compressed buffer {number} lies outside the body")
        (decoded,) = _I64.unpack_from(data, start)
        if decoded < _STORED:
            raise Corrupt(f"compressed buffer {number} claims {decoded} bytes")
        total += size if decoded == _STORED else decoded
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
