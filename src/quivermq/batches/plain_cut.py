"""Cuts rows out of a plain body without Arrow, to the bytes that Arrow would write.

A poll for a few messages of a large batch pays for a cut each time, most of it to Arrow. But a body
of values alone is three buffers, and of what Arrow writes in front of them only six numbers depend
on the rows.
"""

from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import Final

import pyarrow as pa

from quivermq.batches.envelope import checked_places, row_fields
from quivermq.batches.header import Buffer
from quivermq.batches.schema import schema_of

PLAIN_ROWS_MAX: Final = 128
"""For more rows Arrow is as fast."""

_ALIGNMENT: Final = 8
_PADDING: Final = tuple(bytes(-size % _ALIGNMENT) for size in range(_ALIGNMENT))
_END_BYTES: Final = 4
_I64: Final = Struct("<q")


def plain_part(
    body: Buffer, count: int, first: int, stop: int, message_bytes_max: int
) -> bytes | None:
    """The body of rows `first` to before `stop`, of a body of `count` values that are neither
    compressed nor have anything beside them. None if that is for Arrow to cut, or to refuse."""
    rows = stop - first
    places, data_start = checked_places(body, count)
    if rows > PLAIN_ROWS_MAX or len(places) != 3 or places[0][1]:
        return None
    (ends_at, ends_bytes), (values_at, values_bytes) = places[1:]
    if ends_bytes < (count + 1) * _END_BYTES:
        return None
    unpack = _ends(rows + 1).unpack_from
    ends = unpack(body, data_start + ends_at + first * _END_BYTES)
    low, high = ends[0], ends[-1]
    size = high - low
    is_sound = 0 <= low <= high <= values_bytes and all(a <= b for a, b in pairwise(ends))
    if not is_sound or size > message_bytes_max:
        return None
    at = data_start + values_at
    moved = _ends(rows + 1).pack(*[end - low for end in ends])
    return b"".join(
        (
            _front(rows, size),
            moved,
            _PADDING[len(moved) % _ALIGNMENT],
            memoryview(body)[at + low : at + high],
            _PADDING[size % _ALIGNMENT],
        )
    )


@lru_cache(maxsize=PLAIN_ROWS_MAX + 1)
def _ends(count: int) -> Struct:
    return Struct(f"<{count}i")


def _front(rows: int, size: int) -> bytes:
    """Everything that Arrow writes before the buffers of so many values of `size` bytes."""
    template, (body_bytes, length, node, ends, values) = _template()
    ends_bytes = (rows + 1) * _END_BYTES
    values_at = ends_bytes + -ends_bytes % _ALIGNMENT
    front = bytearray(template)
    _I64.pack_into(front, body_bytes, values_at + size + -size % _ALIGNMENT)
    _I64.pack_into(front, length, rows)
    _I64.pack_into(front, node, rows)
    _I64.pack_into(front, ends, ends_bytes)
    _I64.pack_into(front, values, values_at)
    _I64.pack_into(front, values + _I64.size, size)
    return bytes(front)


@lru_cache(maxsize=1)
def _template() -> tuple[bytes, tuple[int, int, int, int, int]]:
    """The bytes that Arrow writes in front of one value, and where in them the numbers stand."""
    ends, value = (pa.py_buffer(part) for part in (bytes(4) + b"\x01\0\0\0", b"x"))
    # Not `pa.array`: that imports pandas, where it is installed.
    array = pa.Array.from_buffers(pa.binary(), 1, [None, ends, value])
    body = pa.RecordBatch.from_arrays([array], schema=schema_of(0)).serialize().to_pybytes()
    return body[: -2 * _ALIGNMENT], row_fields(body)
