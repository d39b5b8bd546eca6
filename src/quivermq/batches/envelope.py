"""Reads and checks the metadata of an Arrow IPC message before Arrow is given it.

pyarrow checks that buffers lie inside the message, but it allocates what a compressed buffer
claims to decompress to: 16 MiB of zstd can become hundreds of gigabytes; and it lets buffers
overlap, so that a body stands for more than its size. So the few numbers that matter are read
here first, out of the message's flatbuffer metadata. Layout, from Arrow's columnar format
(Message.fbs, Schema.fbs):

    0xFFFFFFFF | int32 metadata size | metadata: flatbuffer `Message` | body: the buffers

A flatbuffer table starts with an int32 distance back to its vtable; the vtable lists, per field,
a uint16 distance from the table's start (0: the field is absent). The fields are, in order:

    Message: version, header type, header, body length
    RecordBatch: length, nodes, buffers, compression
    BodyCompression: codec, method
"""

import struct
from enum import IntEnum
from struct import Struct
from typing import Final

from quivermq.batches.arrow import pa
from quivermq.batches.header import Buffer
from quivermq.errors import Corrupt

_PREFIX: Final = Struct("<II")
_VTABLE: Final = Struct("<6H")  # its own size, the table's size, the places of four fields
_I32: Final = Struct("<i")
_U32: Final = Struct("<I")
_I64: Final = Struct("<q")
_BUFFER: Final = Struct("<qq")

_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3

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


def read_envelope(body: Buffer) -> tuple[int, Codec | None]:
    """The rows and the codec of a record batch, as it claims; raises `Corrupt` if it is none."""
    try:
        rows, codec, _, _ = _read(body)
        return rows, None if codec is None else Codec(codec)
    except (struct.error, IndexError, ValueError) as error:
        raise Corrupt(f"the Arrow message's metadata points outside it: {error}") from error


def _read(body: Buffer) -> tuple[int, int | None, list[tuple[int, int]], int]:
    """Rows, codec, the places of the buffers, and where these begin."""
    continuation, size = _PREFIX.unpack_from(body)
    data_start = _PREFIX.size + size
    if continuation != _CONTINUATION or data_start > len(body):
        raise Corrupt("the body does not start with an Arrow message")
    metadata = memoryview(body)[_PREFIX.size : data_start]
    message = _U32.unpack_from(metadata)[0]
    _, header_type, header, _ = _fields(metadata, message)
    if not header_type or metadata[header_type] != _RECORD_BATCH:
        raise Corrupt("the Arrow message is not a record batch")
    length, _, buffers, compression = _fields(metadata, _follow(metadata, header))
    if not (length and buffers):
        raise Corrupt("the Arrow message lacks a field that every record batch has")
    rows = _I64.unpack_from(metadata, length)[0]
    codec = _codec(metadata, compression) if compression else None
    return rows, codec, _places(metadata, _follow(metadata, buffers)), data_start


def _check(body: Buffer, count: int, codec: Codec | None, decoded_bytes: int) -> None:
    rows, found, places, data_start = _read(body)
    if rows != count:
        raise Corrupt(f"the header counts {count} messages, the Arrow message {rows}")
    if found != codec:
        raise Corrupt("header and Arrow message disagree about compression")
    _check_places(places, len(body) - data_start)
    if codec is not None:
        _check_decoded(memoryview(body)[data_start:], places, decoded_bytes)


def checked_places(body: Buffer, count: int) -> tuple[list[tuple[int, int]], int]:
    """The places of the buffers of a record batch of `count` rows without compression, and where
    these begin; raises `Corrupt` unless it is one."""
    try:
        rows, codec, places, data_start = _read(body)
    except (struct.error, IndexError) as error:
        raise Corrupt(f"the Arrow message's metadata points outside it: {error}") from error
    if rows != count or codec is not None:
        raise Corrupt(f"the header counts {count} plain messages, the Arrow message {rows}")
    _check_places(places, len(body) - data_start)
    return places, data_start


def row_fields(body: Buffer) -> tuple[int, int, int, int, int]:
    """Where, in a record batch of one column of values, the numbers stand that depend on its rows:
    the size of all buffers, the rows, the rows of the column, the size of the second buffer, and
    place and size of the third."""
    metadata = memoryview(body)[_PREFIX.size :]
    _, _, header, body_bytes = _fields(metadata, _U32.unpack_from(metadata)[0])
    length, nodes, buffers, _ = _fields(metadata, _follow(metadata, header))
    node = _follow(metadata, nodes) + _U32.size
    second = _follow(metadata, buffers) + _U32.size + _BUFFER.size
    places = (body_bytes, length, node, second + _I64.size, second + _BUFFER.size)
    a, b, c, d, e = (_PREFIX.size + place for place in places)
    return a, b, c, d, e


def find_buffer(body: Buffer, number: int, decoded_bytes: int) -> bytes:
    """A buffer of a checked record batch by its place, decompressed; empty if there is none."""
    try:
        _, codec, places, data_start = _read(body)
        start, size = places[number] if number < len(places) else (0, 0)
        found = memoryview(body)[data_start + start : data_start + start + size]
        if codec is None or not found:
            return bytes(found)
        decoded = _I64.unpack_from(found)[0]
    except (struct.error, IndexError) as error:
        raise Corrupt(f"the Arrow message's metadata points outside it: {error}") from error
    if decoded == _STORED:
        return bytes(found[_I64.size :])
    if not 0 <= decoded <= decoded_bytes:
        raise Corrupt(f"a compressed buffer claims {decoded} bytes")
    try:
        name = Codec(codec).name.lower()
        return bytes(pa.decompress(found[_I64.size :], decoded, codec=name, asbytes=True))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Corrupt(f"a compressed buffer cannot be read: {error}") from error


def is_plain(metadata: Buffer) -> bool:
    """Whether the metadata of an Arrow message is that of a record batch without compression."""
    view = memoryview(metadata)
    try:
        _, header_type, header, _ = _fields(view, _U32.unpack_from(view)[0])
        if not header_type or view[header_type] != _RECORD_BATCH:
            return False
        *_, compression = _fields(view, _follow(view, header))
    except (struct.error, IndexError) as error:
        raise Corrupt(f"the Arrow message's metadata points outside it: {error}") from error
    return not compression


def _follow(metadata: memoryview, at: int) -> int:
    """Where the relative reference at `at` leads; a field that is absent leads nowhere."""
    if not at:
        raise IndexError("a table is missing")
    return at + int(_U32.unpack_from(metadata, at)[0])


def _fields(metadata: memoryview, table: int) -> tuple[int, int, int, int]:
    """Where the first four fields of `table` are stored; 0 for those that are absent."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:
        # struct counts a negative position from the end, which would read other bytes.
        raise IndexError("a table's layout lies before the message")
    size, _, a, b, c, d = _VTABLE.unpack_from(metadata, vtable)
    if size < _VTABLE.size:
        # What lies behind a short vtable is something else.
        a, b, c, d = (slot if 4 + 2 * n < size else 0 for n, slot in enumerate((a, b, c, d)))
    return a and table + a, b and table + b, c and table + c, d and table + d


def _codec(metadata: memoryview, compression: int) -> int:
    codec = _fields(metadata, _follow(metadata, compression))[0]
    return metadata[codec] if codec else Codec.LZ4


def _places(metadata: memoryview, vector: int) -> list[tuple[int, int]]:
    """Start and size of each buffer, as the message claims."""
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
