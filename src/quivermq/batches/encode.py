"""Encodes messages into frames: from Python sequences and from Arrow, laid out once.

A frame has one priority, one not-before time and one producer, so that a broker can treat it as
one interval; callers split what differs. What is too large for one frame is split here, by rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from quivermq.batches.columns import Batches, Values, record_batches_of
from quivermq.batches.decode import check_sizes
from quivermq.batches.frame import Frame
from quivermq.batches.header import Buffer, Compression, Flag, FrameKind, Header
from quivermq.batches.limits import (
    COUNTER_MAX,
    DEFAULT_LIMITS,
    PRIORITY_MAX,
    TIMESTAMP_MS_MAX,
    Limits,
)
from quivermq.batches.lone import LONE_BYTES_MAX, lone_body
from quivermq.errors import InvalidRequest, TooLarge

_CODECS: Final = {"lz4": int(Flag.LZ4), "zstd": int(Flag.ZSTD)}
_EPOCH_MAX: Final = (1 << 32) - 1
_DATA: Final = int(FrameKind.DATA)


class Origin(NamedTuple):
    """The producer's fields of a batch, the same for all messages in it."""

    producer_id: int = 0
    producer_epoch: int = 0
    sequence: int = 0
    priority: int = 0
    not_before_ms: int = 0

    def check(self) -> None:
        """Raise `InvalidRequest` unless the header can carry it."""
        for name, value, most in (
            ("producer_id", self.producer_id, COUNTER_MAX),
            ("producer_epoch", self.producer_epoch, _EPOCH_MAX),
            ("sequence", self.sequence, COUNTER_MAX >> 1),
            ("priority", self.priority, PRIORITY_MAX),
            ("not_before_ms", self.not_before_ms, TIMESTAMP_MS_MAX),
        ):
            # `type`, not `isinstance`: True is an int too.
            if type(value) is not int or not 0 <= value <= most:
                raise InvalidRequest(
                    f"{name} must be a whole number from 0 to {most}: {_shown(value)}"
                )


def _shown(value: object) -> str:
    """`value` for an error message; Python refuses to print integers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return repr(value)


NO_ORIGIN: Final = Origin()


def encode_batches(
    values: Values,
    *,
    keys: Values | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | Any = None,
    timestamps: Sequence[int | None] | Any = None,
    compression: Compression = None,
    origin: Origin = NO_ORIGIN,
    frame_bytes: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Iterator[Frame]:
    """Frames that hold `values` in order, each of at most `frame_bytes` (default: the limit).

    `values` is a sequence of bytes, a pyarrow array, or a pyarrow record batch or table with a
    `value` column and optionally `key`, `headers` and `timestamp`. Sequence numbers run on from
    frame to frame. A message that takes more than `frame_bytes` alone has a frame for itself.

    Arguments and messages are all checked before this returns: who sends frames as they come
    out never finds a bad message after half of them are gone.
    """
    if frame_bytes is None:
        frame_bytes = limits.batch_bytes_max
    elif type(frame_bytes) is not int or frame_bytes < 1:
        raise InvalidRequest(
            f"frame_bytes must be a whole number of at least 1: {_shown(frame_bytes)}"
        )
    target_bytes = min(frame_bytes, limits.batch_bytes_max)
    layout = _checked_layout(compression, origin, target_bytes, limits)
    batches = _checked_batches((values, keys, headers, timestamps), limits)
    return _frames(batches, layout)


def encode_batch(
    values: Values,
    *,
    keys: Values | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | Any = None,
    timestamps: Sequence[int | None] | Any = None,
    compression: Compression = None,
    origin: Origin = NO_ORIGIN,
    limits: Limits = DEFAULT_LIMITS,
) -> Frame:
    """One frame with all of `values`, or `TooLarge`, or `InvalidRequest` for none at all."""
    layout = _checked_layout(compression, origin, limits.batch_bytes_max, limits)
    if keys is headers is timestamps is compression is None:
        lone = _lone_frame(values, layout)
        if lone is not None:
            return lone
    batches = _checked_batches((values, keys, headers, timestamps), limits)
    only = _only_frame(batches, layout)
    if only is not None:
        return only
    # The second frame is proof enough: the rest of a large table need not be laid out.
    frames = list(islice(_frames(batches, layout), 2))
    if not frames:
        raise InvalidRequest("a batch needs at least one message")
    if len(frames) > 1:
        raise TooLarge(
            f"the messages do not fit into one batch of {limits.batch_bytes_max:,} bytes "
            "(batch_bytes_max): split them"
        )
    return frames[0]


class _Layout(NamedTuple):
    """The parameters that all frames of one call share."""

    compression: Compression
    origin: Origin
    target_bytes: int
    limits: Limits


def _checked_layout(
    compression: Compression, origin: Origin, target_bytes: int, limits: Limits
) -> _Layout:
    if origin is not NO_ORIGIN:
        if not isinstance(origin, Origin):
            raise InvalidRequest(f"origin must be an Origin, not {type(origin).__name__}")
        origin.check()
    if not (compression is None or (isinstance(compression, str) and compression in _CODECS)):
        raise InvalidRequest(f"compression must be None, 'lz4' or 'zstd', not {compression!r}")
    return _Layout(compression, origin, target_bytes, limits)


def _checked_batches(columns: tuple[Any, Any, Any, Any], limits: Limits) -> Batches:
    """The columns as record batches, once no message in them is refused."""
    batches = record_batches_of(*columns)
    for batch in batches.record_batches:
        check_sizes(batch, _serialized_bytes(batch), limits)
    return batches


def _lone_frame(values: Values, layout: _Layout) -> Frame | None:
    """The frame of a single small message, which is cheap."""
    if type(values) is not list or len(values) != 1:
        return None
    (value,) = values
    if type(value) is not bytes or len(value) > LONE_BYTES_MAX:
        return None
    body = lone_body(value)
    if len(body) > min(layout.limits.message_bytes_max, layout.target_bytes):
        return None
    return _framed(body, 0, 1, len(body), layout.origin.sequence, layout.origin)


def _only_frame(batches: Batches, layout: _Layout) -> Frame | None:
    """The frame of what is one fresh batch and fits: nearly always so, and then it is cheap."""
    flags, record_batches, fresh = batches
    if not fresh or len(record_batches) != 1:
        return None
    (batch,) = record_batches
    if _serialized_bytes(batch) > layout.target_bytes:
        return None
    return _frame(batch, flags, layout.origin.sequence, layout)


def _frames(batches: Batches, layout: _Layout) -> Iterator[Frame]:
    flags, record_batches, fresh = batches
    sequence = layout.origin.sequence
    several = len(record_batches) > 1
    for batch in _joined(record_batches, layout.target_bytes) if several else record_batches:
        for part in _parts(batch, layout):
            whole = part if fresh and part is batch else without_surroundings(part)
            yield _frame(whole, flags, sequence, layout)
            sequence += part.num_rows


def _joined(batches: list[Any], target: int) -> Iterator[Any]:
    """Neighbours as one batch while they fit: a table of many small chunks is not many frames."""
    group: list[Any] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        if group and size > target:
            yield _one(group)
            group, size = [], batch.nbytes
        group.append(batch)
    if group:
        yield _one(group)


def _one(group: list[Any]) -> Any:
    if len(group) == 1:
        return group[0]
    return pa.Table.from_batches(group).combine_chunks().to_batches()[0]


def _parts(batch: Any, layout: _Layout) -> Iterator[Any]:
    """Halve `batch` by rows until each part fits; slices share the memory of the whole."""
    size = _serialized_bytes(batch)
    if size > layout.target_bytes and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from _parts(batch.slice(0, half), layout)
        yield from _parts(batch.slice(half), layout)
    elif size > layout.limits.batch_bytes_max:
        raise TooLarge(
            f"a message that takes {size:,} bytes as a batch is above the limit of "
            f"{layout.limits.batch_bytes_max:,} (batch_bytes_max)"
        )
    else:
        yield batch


def without_surroundings(batch: Any) -> Any:
    """A copy of `batch` if it is a slice, else itself.

    Arrow pads a slice's buffers to 64 bytes with whatever lies behind the slice: bytes of rows
    that the caller did not pass, and that may belong to another user.
    """
    if batch.get_total_buffer_size() <= batch.nbytes:
        return batch
    # Concatenating copies; with a single array Arrow would return that array.
    columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _frame(batch: Any, flags: int, sequence: int, layout: _Layout) -> Frame:
    buffer, compression_flag, decoded_bytes = _body(batch, layout.compression)
    body = memoryview(buffer).cast("B")
    flags |= compression_flag
    return _framed(body, flags, batch.num_rows, decoded_bytes, sequence, layout.origin)


def _framed(
    body: Buffer, flags: int, count: int, decoded_bytes: int, sequence: int, origin: Origin
) -> Frame:
    header = Header(
        kind=_DATA,
        flags=flags,
        priority=origin.priority,
        body_bytes=len(body),
        body_crc=crc32c(body),
        producer_id=origin.producer_id,
        sequence=sequence,
        not_before_ms=origin.not_before_ms,
        producer_epoch=origin.producer_epoch,
        count=count,
        decoded_bytes=decoded_bytes,
    )
    return Frame(header, body)


def _body(batch: Any, compression: Compression) -> tuple[Any, int, int]:
    """The body, its compression flag, and what it decodes to.

    What compression does not make smaller stays plain: cheaper for every reader, and a batch
    that fits its limit plain cannot outgrow it.
    """
    if compression is not None:
        plain_bytes = _serialized_bytes(batch)
        packed = _compressed(batch, compression)
        if packed.size < plain_bytes:
            return packed, _CODECS[compression], plain_bytes
    plain = batch.serialize()
    return plain, 0, plain.size


def _compressed(batch: Any, compression: str) -> Any:
    """The encapsulated message alone, out of a stream that starts with its schema."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
        end = sink.tell()
    start = batch.schema.serialize().size
    return sink.getvalue().slice(start, end - start)


def _serialized_bytes(batch: Any) -> int:
    """The exact size of the plain body, without making it: also more than any message in it."""
    return int(pa.ipc.get_record_batch_size(batch))
