"""Decodes bodies into Arrow and into Python messages. It validates first: a lying body raises.

Arrow columns are views of the received buffer; only decompression and Python objects cost memory.
"""

from collections.abc import Iterable, Mapping
from itertools import count, islice, repeat
from typing import Any, Final, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from quivermq.batches.envelope import Codec, check_envelope
from quivermq.batches.frame import Frame
from quivermq.batches.header import COMPRESSED, Flag, FrameKind, Header, Offset
from quivermq.batches.limits import DEFAULT_LIMITS, TIMESTAMP_MS_MAX, Limits
from quivermq.batches.lone import is_lone_body, lone_value
from quivermq.batches.schema import schema_of
from quivermq.errors import Corrupt, TooLarge

# Plain integers: `&` with a member of an IntFlag costs as much as validating a small batch.
_KEY, _HEADERS, _TIMESTAMP = int(Flag.KEY), int(Flag.HEADERS), int(Flag.TIMESTAMP)
_DATA: Final = int(FrameKind.DATA)
_CODECS: Final = {0: None, int(Flag.LZ4): Codec.LZ4, int(Flag.ZSTD): Codec.ZSTD}


class _NoHeaders(dict[str, bytes]):
    """The headers of every message that has none: one for all, so it refuses to change."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a message's headers cannot be changed; make a dict of them first")

    __setitem__ = setdefault = update = __ior__ = _refuse


NO_HEADERS: Final[Mapping[str, bytes]] = _NoHeaders()


class Message(NamedTuple):
    """One message as Python values."""

    offset: Offset
    timestamp: int
    """Milliseconds since 1970, UTC: the producer's own, else when the leader took the batch."""
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    priority: int


def decode_batch(
    frame: Frame, limits: Limits = DEFAULT_LIMITS, *, first: int = 0, stop: int | None = None
) -> Any:
    """The frame's messages, from the `first` up to before `stop`, as a validated
    `pyarrow.RecordBatch`, without copying the body. Of the others is known only that they exist.

    Raises `Corrupt` for a body that is not what the header says, `TooLarge` for a message past
    the limits. Checksums are `Frame.parse`'s business and are not computed again.
    """
    header = frame.header
    if header.kind != FrameKind.DATA:
        raise Corrupt(f"a frame of kind {FrameKind(header.kind).name.lower()} holds no messages")
    check_envelope(
        frame.body,
        count=header.count,
        codec=_CODECS[header.flags & COMPRESSED],
        decoded_bytes=header.decoded_bytes,
    )
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(frame.body), schema_of(header.flags))
        if first or (stop is not None and stop < header.count):
            # Arrow gives up the process if a column turns out to be shorter than a slice.
            batch.validate()
            batch = batch[first:stop]
        batch.validate(full=True)
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise Corrupt(f"the body is not a valid Arrow batch: {error}") from error
    _check_columns(batch, header.flags)
    check_sizes(batch, header.decoded_bytes, limits)
    return batch


def check_batch(frame: Frame, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise what `decode_batch` would, for less where there is a single plain message."""
    if not (_is_plain_one(frame, limits) and is_lone_body(frame.body)):
        decode_batch(frame, limits)


def _is_plain_one(frame: Frame, limits: Limits) -> bool:
    """The header is that of one plain message within the limits."""
    header = frame.header
    return (
        header.count == 1
        and header.kind == _DATA
        and not header.flags
        and header.body_bytes <= limits.message_bytes_max
    )


def decode_lone(frame: Frame, limits: Limits = DEFAULT_LIMITS) -> bytes | None:
    """The value of the frame's only message, if that is plain and can be had without Arrow: it has
    no key, no headers and no timestamp of its own."""
    return lone_value(frame.body) if _is_plain_one(frame, limits) else None


class Columns(NamedTuple):
    """Messages column by column; what is the same for all of them never ends."""

    timestamps: Iterable[int]
    keys: Iterable[bytes | None]
    values: list[bytes]
    headers: Iterable[Mapping[str, bytes]]


def decode_columns(
    frame: Frame, limits: Limits = DEFAULT_LIMITS, *, first: int = 0, stop: int | None = None
) -> Columns:
    """The frame's messages, from the `first` up to before `stop`, as Python values."""
    value = decode_lone(frame, limits)
    if value is not None:
        taken_ms = frame.header.timestamp_ms
        return Columns(repeat(taken_ms), repeat(None), [value][first:stop], repeat(NO_HEADERS))
    return columns_of(decode_batch(frame, limits, first=first, stop=stop), frame.header)


def columns_of(batch: Any, header: Header) -> Columns:
    """Messages of a batch with this header, decoded before, or of a slice of it."""
    flags, taken_ms = header.flags, header.timestamp_ms
    return Columns(
        _timestamps(batch, taken_ms) if flags & _TIMESTAMP else repeat(taken_ms),
        batch.column("key").to_pylist() if flags & _KEY else repeat(None),
        batch.column("value").to_pylist(),
        _headers(batch.column("headers")) if flags & _HEADERS else repeat(NO_HEADERS),
    )


def decode_messages(frame: Frame, limits: Limits = DEFAULT_LIMITS) -> list[Message]:
    """The frame's messages as Python objects: for those who want objects, at their price."""
    header = frame.header
    columns = zip(
        count(header.base_offset),
        *decode_columns(frame, limits),
        repeat(header.priority),
        strict=False,
    )
    # `tuple.__new__` skips the Python-level constructor: half the time of a whole decode.
    return list(map(tuple.__new__, repeat(Message), columns))


def check_sizes(batch: Any, batch_bytes: int, limits: Limits) -> None:
    """Raise `TooLarge` if one message is past its limits.

    No message is larger than `batch_bytes`, the size of all of them: so this is free for every
    batch that is itself smaller than the limit of one message.
    """
    if batch_bytes > limits.message_bytes_max:
        largest = pc.max(_row_bytes(batch)).as_py()
        if largest > limits.message_bytes_max:
            raise TooLarge(
                f"a message of {largest:,} bytes is above the limit of "
                f"{limits.message_bytes_max:,} (message_bytes_max)"
            )
    if batch_bytes > limits.headers_bytes_max and "headers" in batch.schema.names:
        largest = pc.max(_header_bytes(batch.column("headers"))).as_py()
        if largest > limits.headers_bytes_max:
            raise TooLarge(
                f"the headers of a message take {largest:,} bytes, above the limit of "
                f"{limits.headers_bytes_max:,} (headers_bytes_max)"
            )


def _check_columns(batch: Any, flags: int) -> None:
    """Check what Arrow's validation leaves open: forbidden nulls, and times out of range."""
    if batch.column(0).null_count:
        raise Corrupt("a message has no value")
    if flags & _HEADERS:
        pairs = batch.column("headers").flatten()
        if pairs.null_count or any(column.null_count for column in pairs.flatten()):
            raise Corrupt("a header has no name or no value")
    if flags & _TIMESTAMP:
        low, high = _bounds(batch.column("timestamp"))
        if low < 0 or high > TIMESTAMP_MS_MAX:
            raise Corrupt(f"message timestamps from {low} to {high} ms are outside 1970 to 9999")


def _bounds(timestamps: Any) -> tuple[int, int]:
    bounds = pc.min_max(timestamps.cast(pa.int64()))
    return bounds["min"].as_py() or 0, bounds["max"].as_py() or 0


def _timestamps(batch: Any, default: int) -> list[int]:
    column = batch.column("timestamp").cast(pa.int64())
    return column.fill_null(default).to_pylist()  # type: ignore[no-any-return]


def _headers(column: Any) -> Iterable[Mapping[str, bytes]]:
    names, values = column.flatten().flatten()
    pairs = zip(names.to_pylist(), values.to_pylist(), strict=True)
    for length in pc.list_value_length(column).to_pylist():
        yield dict(islice(pairs, length)) if length else NO_HEADERS


def _row_bytes(batch: Any) -> Any:
    """Bytes per message, as Arrow sees them: value, key and headers."""
    total = pc.binary_length(batch.column("value")).cast(pa.int64())
    for name in batch.schema.names:
        if name == "key":
            total = pc.add(total, pc.fill_null(pc.binary_length(batch.column(name)), 0))
        elif name == "headers":
            total = pc.add(total, _header_bytes(batch.column(name)))
    return total


def _header_bytes(headers: Any) -> Any:
    """Bytes of each message's header names and values, by the running totals of all pairs."""
    names, values = headers.flatten().flatten()
    sizes = pc.add(pc.binary_length(names), pc.binary_length(values)).cast(pa.int64())
    before = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(sizes)])
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(headers), 0))
    totals = before.take(ends)
    starts = pa.concat_arrays([before.slice(0, 1), totals.slice(0, len(totals) - 1)])
    return pc.subtract(totals, starts)
