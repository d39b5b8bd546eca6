"""Many messages at once, laid out as frames for their partitions, for `produce_many`. No I/O.

Everything is checked before the first frame comes out, so that no bad message is found after half
of them are gone; but frames are laid out one by one, while those before them are under way.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from quivermq import batches
from quivermq.batches import Compression, Frame, Limits, pa, repeat_headers
from quivermq.client.checks import as_bytes
from quivermq.client.producer.capsules import as_arrow, is_arrow
from quivermq.client.producer.partitioner import rows_by_partition
from quivermq.errors import InvalidRequest

FRAME_BYTES: Final = 1_000_000
"""Enough that fixed costs vanish, little enough that several are under way at a time."""


class BulkColumns(NamedTuple):
    """Messages as they came: sequences of Python values, or Arrow."""

    values: Any
    keys: Any = None
    headers: Mapping[str, bytes] | Sequence[Mapping[str, bytes] | None] | Any = None
    """One mapping: the same for all."""
    timestamps: Sequence[int | None] | Any = None

    @classmethod
    def of(cls, *columns: Any) -> Self:
        """Of what a user passed, which may be Arrow data of another library."""
        return cls(*map(as_arrow, columns))


class Layout(NamedTuple):
    """How to lay them out."""

    priority: int = 0
    not_before_ms: int = 0
    compression: Compression = None
    frame_bytes: int = FRAME_BYTES


def bulk_frames(
    columns: BulkColumns,
    layout: Layout,
    limits: Limits,
    *,
    partitions: int,
    partition: int | None,
    next_partition: Callable[[], int],
) -> Iterator[tuple[int, Frame]]:
    """Frames in order, each with its partition: the given one, or that of the key, or whatever
    comes next."""
    if isinstance(columns.headers, Mapping):
        columns = _with_shared_headers(columns, columns.headers)
    keys = _keys(columns) if partition is None and partitions > 1 else None
    if keys is None:
        # One after the other, so every batch without keys may go to another partition.
        frames = _frames(columns, layout, limits)
        return ((next_partition() if partition is None else partition, each) for each in frames)
    groups = [
        (number, _frames(_select(columns, rows), layout, limits))
        for number, rows in rows_by_partition(keys, partitions).items()
    ]
    return _in_turns(groups, next_partition)


def _with_shared_headers(columns: BulkColumns, headers: Mapping[str, bytes]) -> BulkColumns:
    values = columns.values if hasattr(columns.values, "__len__") else list(columns.values)
    try:
        return columns._replace(values=values, headers=repeat_headers(headers, len(values)))
    except (pa.ArrowException, TypeError) as error:
        raise InvalidRequest(f"headers: pass a mapping of names to bytes: {error}") from error


def _in_turns(
    groups: list[tuple[int, Iterator[Frame]]], next_partition: Callable[[], int]
) -> Iterator[tuple[int, Frame]]:
    """A frame for each partition in turn, so that all leaders have work."""
    waiting = deque(groups)
    while waiting:
        number, frames = waiting.popleft()
        frame = next(frames, None)
        if frame is not None:
            yield (next_partition() if number < 0 else number), frame
            waiting.append((number, frames))


def _keys(columns: BulkColumns) -> list[bytes | None] | None:
    """The keys as Python values; None: there are none."""
    keys = columns.keys
    if (
        isinstance(columns.values, (pa.RecordBatch, pa.Table))
        and "key" in columns.values.schema.names
    ):
        keys = columns.values.column("key")
    if keys is None:
        return None
    found = keys.to_pylist() if is_arrow(keys) else list(keys)
    return [None if key is None else as_bytes("key", key) for key in found]


def _select(columns: BulkColumns, rows: list[int]) -> BulkColumns:
    return BulkColumns(*(None if column is None else _rows_of(column, rows) for column in columns))


def _rows_of(column: Any, rows: list[int]) -> Any:
    if is_arrow(column):
        return column.take(pa.array(rows, pa.int64()))
    try:
        return [column[row] for row in rows]
    except (IndexError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"pass as many values, headers and timestamps as keys, in sequences: {error}"
        ) from error


def _frames(columns: BulkColumns, layout: Layout, limits: Limits) -> Iterator[Frame]:
    rows = _plain_rows(columns, layout, limits)
    if rows:
        return _plain_frames(columns, rows, layout, limits)
    return _encode(columns, layout, limits)


def _plain_rows(columns: BulkColumns, layout: Layout, limits: Limits) -> int:
    """How many rows of lists of bytes make a frame, if these need no other check: all of them are
    surely within the limits. 0 if that is not so."""
    values, keys, headers, timestamps = columns
    if not (headers is None and timestamps is None and type(values) is list and values):
        return 0
    if keys is not None and (type(keys) is not list or len(keys) != len(values)):
        return 0
    largest = total = 0
    for column in (values,) if keys is None else (values, keys):
        if set(map(type, column)) != {bytes}:
            return 0
        sizes = list(map(len, column))
        largest += max(sizes)
        total += sum(sizes) + 5 * len(sizes)
    # Room for what Arrow adds to a batch of a single message.
    if largest + 1024 > min(limits.message_bytes_max, limits.batch_bytes_max):
        return 0
    return max(1, int(0.95 * layout.frame_bytes * len(values) / total))


def _plain_frames(
    columns: BulkColumns, rows: int, layout: Layout, limits: Limits
) -> Iterator[Frame]:
    """A list is cut into pieces first: small ones are laid out in memory that is still warm."""
    values, keys = columns.values, columns.keys
    for at in range(0, len(values), rows):
        piece = BulkColumns(values[at : at + rows], None if keys is None else keys[at : at + rows])
        yield from _encode(piece, layout, limits)


def _encode(columns: BulkColumns, layout: Layout, limits: Limits) -> Iterator[Frame]:
    return batches.encode_batches(
        columns.values,
        keys=columns.keys,
        headers=columns.headers,
        timestamps=columns.timestamps,
        compression=layout.compression,
        origin=batches.Origin(priority=layout.priority, not_before_ms=layout.not_before_ms),
        frame_bytes=layout.frame_bytes,
        limits=limits,
    )
