"""Messages into frames: from Python sequences and from Arrow, laid out once.

A frame has one priority, one not-before time and one producer, so that a broker can treat it as
one interval; callers split what differs. What is too large for one frame is split here, by rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from quivermq.batches.columns import Values, record_batches_of
from quivermq.batches.decode import check_sizes
from quivermq.batches.frame import Frame
from quivermq.batches.header import Flag, Header, Kind
from quivermq.batches.limits import (
    COUNTER_MAX,
    DEFAULT_LIMITS,
    PRIORITY_MAX,
    TIMESTAMP_MS_MAX,
    Limits,
)
from quivermq.batches.schema import OPTIONAL_COLUMNS
from quivermq.errors import InvalidRequest, TooLarge

Compression = Literal["lz4", "zstd"] | None

_COMPRESSION_FLAGS: Final = {None: 0, "lz4": int(Flag.LZ4), "zstd": int(Flag.ZSTD)}
_EPOCH_MAX: Final = (1 << 32) - 1


class Origin(NamedTuple):
    """What a producer says of its batch, the same for all messages in it."""

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
            if not isinstance(value, int) or not 0 <= value <= most:
                raise InvalidRequest(f"{name} must be a whole number from 0 to {most}: {value!r}")


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
    frame to frame.
    """
    origin.check()
    if compression not in _COMPRESSION_FLAGS:
        raise InvalidRequest(f"compression must be None, 'lz4' or 'zstd', not {compression!r}")
    target = min(frame_bytes or limits.batch_bytes_max, limits.batch_bytes_max)
    for batch in record_batches_of(values, keys, headers, timestamps):
        size = batch.nbytes
        check_sizes(batch, size, limits)
        for part in _parts(batch, size, target, limits):
            yield _frame(part, compression, origin, limits)
            origin = origin._replace(sequence=origin.sequence + part.num_rows)


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
    frames = list(
        encode_batches(
            values,
            keys=keys,
            headers=headers,
            timestamps=timestamps,
            compression=compression,
            origin=origin,
            limits=limits,
        )
    )
    if not frames:
        raise InvalidRequest("a batch needs at least one message")
    if len(frames) > 1:
        raise TooLarge(
            f"the messages do not fit into one batch of {limits.batch_bytes_max:,} bytes "
            "(batch_bytes_max): split them"
        )
    return frames[0]


def _parts(batch: Any, size: int, target: int, limits: Limits) -> Iterator[Any]:
    """Halve `batch` by rows until each part fits; slices share the memory of the whole."""
    if size > target // 2:
        size = pa.ipc.get_record_batch_size(batch)
        if size > target and batch.num_rows > 1:
            half = batch.num_rows // 2
            for part in (batch.slice(0, half), batch.slice(half)):
                yield from _parts(part, part.nbytes, target, limits)
            return
        if size > limits.batch_bytes_max:
            raise TooLarge(
                f"a message that takes {size:,} bytes as a batch is above the limit of "
                f"{limits.batch_bytes_max:,} (batch_bytes_max)"
            )
    if batch.num_rows:
        yield batch


def _frame(batch: Any, compression: Compression, origin: Origin, limits: Limits) -> Frame:
    if compression is None:
        buffer = batch.serialize()
        decoded_bytes = buffer.size
    else:
        buffer = _compressed(batch, compression)
        decoded_bytes = pa.ipc.get_record_batch_size(batch)
    body = memoryview(buffer).cast("B")
    if len(body) > limits.batch_bytes_max:
        raise TooLarge(
            f"a batch of {len(body):,} bytes is above the limit of {limits.batch_bytes_max:,} "
            "(batch_bytes_max)"
        )
    names = batch.schema.names
    columns = sum(int(flag) for flag, field in OPTIONAL_COLUMNS if field.name in names)
    header = Header(
        kind=Kind.DATA,
        flags=columns | _COMPRESSION_FLAGS[compression],
        priority=origin.priority,
        body_bytes=len(body),
        body_crc=crc32c(body),
        producer_id=origin.producer_id,
        sequence=origin.sequence,
        not_before_ms=origin.not_before_ms,
        producer_epoch=origin.producer_epoch,
        count=batch.num_rows,
        decoded_bytes=decoded_bytes,
    )
    return Frame(header, body)


def _compressed(batch: Any, compression: str) -> Any:
    """The encapsulated message alone, out of a stream that starts with its schema."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
        end = sink.tell()
    start = batch.schema.serialize().size
    return sink.getvalue().slice(start, end - start)
