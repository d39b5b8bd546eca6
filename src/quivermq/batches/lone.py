"""Encodes a batch of one plain message without Arrow, to the bytes that Arrow would write.

A client that sends messages one by one pays for a whole batch each, most of it to Arrow. But what
Arrow writes in front of a lone value depends on nothing but the value's size.
"""

from functools import lru_cache
from typing import Final

import pyarrow as pa

from quivermq.batches.header import Buffer, Flag, pack_lone_header
from quivermq.batches.limits import Limits
from quivermq.batches.schema import schema_of

LONE_BYTES_MAX: Final = 4096
"""Values up to this size; for larger ones Arrow's part no longer counts."""

_KEY: Final = int(Flag.KEY)
_ALIGNMENT: Final = 8
_PADDING: Final = tuple(bytes(-size % _ALIGNMENT) for size in range(_ALIGNMENT))


def lone_body(value: bytes) -> bytes:
    """The body of a batch of this one message, of at most `LONE_BYTES_MAX` bytes."""
    size = len(value)
    return b"".join((_front(size), value, _PADDING[size % _ALIGNMENT]))


def keyed_body(value: bytes, key: bytes) -> bytes:
    """The same of a message with a key; both together have at most `LONE_BYTES_MAX` bytes."""
    size, key_bytes = len(value), len(key)
    return b"".join(
        (
            _keyed_front(size, key_bytes),
            value,
            _PADDING[size % _ALIGNMENT],
            bytes(4),
            key_bytes.to_bytes(4, "little"),
            key,
            _PADDING[key_bytes % _ALIGNMENT],
        )
    )


def lone_frame(
    value: bytes,
    key: bytes | None,
    producer_id: int,
    producer_epoch: int,
    sequence: int,
    priority: int = 0,
) -> bytes:
    """The bytes of the frame that `encode_batch` makes of this one message; the same limits."""
    body = lone_body(value) if key is None else keyed_body(value, key)
    flags = 0 if key is None else _KEY
    return pack_lone_header(body, flags, producer_id, producer_epoch, sequence, priority) + body


def lone_bytes_max(limits: Limits) -> int:
    """The size of the largest value whose frame `lone_frame` can make within these limits. With a
    key it takes `KEYED_BYTES` more than both."""
    body_bytes_max = min(limits.message_bytes_max, limits.batch_bytes_max)
    # A value is padded behind.
    padded_max = (body_bytes_max - _FRONT_BYTES) // _ALIGNMENT * _ALIGNMENT
    return min(LONE_BYTES_MAX, padded_max)


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


@lru_cache(maxsize=LONE_BYTES_MAX)
def _keyed_front(size: int, key_bytes: int) -> bytes:
    """Everything that Arrow writes before a value that is followed by a key."""
    columns = []
    for each in (size, key_bytes):
        ends, content = (
            pa.py_buffer(part) for part in (bytes(4) + each.to_bytes(4, "little"), bytes(each))
        )
        columns.append(pa.Array.from_buffers(pa.binary(), 1, [None, ends, content]))
    body = pa.RecordBatch.from_arrays(columns, schema=schema_of(_KEY)).serialize().to_pybytes()
    behind = _padded(size) + 2 * 4 + _padded(key_bytes)
    return bytes(body[: len(body) - behind])


def _padded(size: int) -> int:
    return size + -size % _ALIGNMENT


_FRONT_BYTES: Final = len(_front(0))

KEYED_BYTES: Final = len(keyed_body(b"", b"")) - _FRONT_BYTES + 2 * _ALIGNMENT
"""A key adds so many bytes to a body at most, beside its own."""
