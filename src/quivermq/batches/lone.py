"""Encodes a batch of one plain message without Arrow, to the bytes that Arrow would write.

A client that sends messages one by one pays for a whole batch each, most of it to Arrow. But what
Arrow writes in front of a lone value depends on nothing but the value's size.
"""

from functools import lru_cache
from typing import Final

import pyarrow as pa

from quivermq.batches.header import Buffer
from quivermq.batches.schema import schema_of

LONE_BYTES_MAX: Final = 4096
"""Values up to this size; for larger ones Arrow's part no longer counts."""

_ALIGNMENT: Final = 8
_PADDING: Final = tuple(bytes(-size % _ALIGNMENT) for size in range(_ALIGNMENT))


def lone_body(value: bytes) -> bytes:
    """The body of a batch of this one message, of at most `LONE_BYTES_MAX` bytes."""
    size = len(value)
    return b"".join((_front(size), value, _PADDING[size % _ALIGNMENT]))


def is_lone_body(body: Buffer) -> bool:
    """Whether `body` is one that `lone_body` makes; if it is not, it may be valid all the same."""
    # The size of the value is the last that stands in front of it.
    size = int.from_bytes(body[_FRONT_BYTES - 4 : _FRONT_BYTES], "little")
    end = _FRONT_BYTES + size
    return (
        size <= LONE_BYTES_MAX
        and len(body) == end + -size % _ALIGNMENT
        and body[:_FRONT_BYTES] == _front(size)
        and body[end:] == _PADDING[size % _ALIGNMENT]
    )


def lone_value(body: Buffer) -> bytes | None:
    """The value in a body that `lone_body` made; None if it is not one."""
    if not is_lone_body(body):
        return None
    size = int.from_bytes(body[_FRONT_BYTES - 4 : _FRONT_BYTES], "little")
    return bytes(body[_FRONT_BYTES : _FRONT_BYTES + size])


@lru_cache(maxsize=LONE_BYTES_MAX + 1)
def _front(size: int) -> bytes:
    """Everything that Arrow writes before a value of so many bytes."""
    # Not `pa.array`: that imports pandas, where it is installed, which takes as long as all of our
    # own imports.
    ends, value = (
        pa.py_buffer(part) for part in (bytes(4) + size.to_bytes(4, "little"), bytes(size))
    )
    array = pa.Array.from_buffers(pa.binary(), 1, [None, ends, value])
    body = pa.RecordBatch.from_arrays([array], schema=schema_of(0)).serialize().to_pybytes()
    return bytes(body[: len(body) - size - (-size % _ALIGNMENT)])


_FRONT_BYTES: Final = len(_front(0))
