"""Decodes frames into messages, and into Arrow batches of one schema. No I/O."""

import math
import time
from functools import cache, lru_cache
from itertools import count, repeat
from typing import Any, Final

from quivermq import batches
from quivermq.batches import Flag, Frame, Header, Limits, expires_ms_of, may_expire, pa, pc
from quivermq.client.models import Message

MADE_AT_ONCE: Final = 500
"""Messages that are made when the next one is asked for: fewer than the 700 new objects that the
collector of garbage waits for."""
_KEY, _HEADERS, _TIMESTAMP = int(Flag.KEY), int(Flag.HEADERS), int(Flag.TIMESTAMP)


@cache
def schema() -> Any:
    """The schema of every batch that is read, whatever its messages have, so that batches make one
    table; it is also the name `SCHEMA` of this module."""
    return pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", batches.TIMESTAMP_TYPE, nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary(), nullable=False),
            pa.field("headers", batches.HEADERS_TYPE),
            pa.field("priority", pa.int32(), nullable=False),
        ]
    )


def __getattr__(name: str) -> Any:
    if name != "SCHEMA":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return schema()


def messages_of(
    frame: Frame,
    topic: str,
    partition: int,
    start: int,
    stop: int | None,
    limits: Limits,
    kind: type[Message] = Message,
) -> list[Message]:
    """The frame's messages with offsets in [start, stop)."""
    first, end = rows_within(frame, start, stop)
    if first >= end:
        return []
    columns = batches.decode_columns(frame, limits, first=first, stop=end)
    return _messages_of_columns(columns, frame.header, first, topic, partition, kind)


def _messages_of_columns(
    columns: Any,
    header: Header,
    first: int,
    topic: str,
    partition: int,
    kind: type[Message],
) -> list[Message]:
    timestamps, keys, values, headers = columns
    rows = zip(
        repeat(topic),
        repeat(partition),
        count(header.base_offset + first),
        keys,
        values,
        headers,
        timestamps,
        repeat(header.priority),
        strict=False,
    )
    # `tuple.__new__` skips the Python-level constructor: half the time of a whole read.
    return list(map(tuple.__new__, repeat(kind), rows))


class PackedMessages:
    """The messages of a frame with offsets in [start, stop), but for those whose time to live is
    over. They are made some at a time: a thousand stay in the caches of a processor until they are
    read, ten thousand do not, which takes longer than to make them."""

    __slots__ = ("_batch", "_end", "_first", "_kind", "_limits", "_may_expire", "_of", "frame")

    def __init__(
        self,
        frame: Frame,
        topic: str,
        partition: int,
        start: int,
        stop: int | None,
        limits: Limits,
        kind: type[Message] = Message,
    ) -> None:
        self.frame = frame
        self._of = topic, partition
        self._first, self._end = rows_within(frame, start, stop)
        self._limits = limits
        self._kind = kind
        self._may_expire = may_expire(frame)
        self._batch: Any = None
        """The frame as Arrow reads it, once some of it was taken, and not all."""

    @property
    def is_empty(self) -> bool:
        """All were taken."""
        return self._first >= self._end

    def take(self, most: int) -> list[Message]:
        """The next of them, of at most so many rows; after an error, the same ones again."""
        first, stop = self._first, min(self._end, self._first + most)
        if first >= stop:
            return []
        columns = self._columns(first, stop)
        made = _messages_of_columns(columns, self.frame.header, first, *self._of, self._kind)
        if self._may_expire:
            now_ms = time.time() * 1000
            made = [each for each in made if (expires_ms_of(each.headers) or math.inf) > now_ms]
        self._first = stop
        return made

    def _columns(self, first: int, stop: int) -> Any:
        if self._batch is None:
            if stop == self._end:
                return batches.decode_columns(self.frame, self._limits, first=first, stop=stop)
            self._batch = batches.decode_batch(self.frame, self._limits)
        return batches.columns_of(self._batch[first:stop], self.frame.header)


def record_batch_of(frame: Frame, start: int, stop: int | None, limits: Limits) -> Any:
    """The frame's messages with offsets in [start, stop) as a `pyarrow.RecordBatch` of `SCHEMA`."""
    header = frame.header
    first, end = rows_within(frame, start, stop)
    batch = batches.decode_batch(frame, limits, first=first, stop=end)
    rows, flags = end - first, header.flags
    offset = pa.scalar(header.base_offset + first, pa.int64())
    columns = [
        pc.add(_numbers(_room_for(rows)).slice(0, rows), offset),
        _timestamps(batch, header.timestamp_ms, rows, flags),
        batch.column("key") if flags & _KEY else pa.nulls(rows, pa.binary()),
        batch.column("value"),
        batch.column("headers") if flags & _HEADERS else pa.nulls(rows, batches.HEADERS_TYPE),
        pa.repeat(pa.scalar(header.priority, pa.int32()), rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema())


def rows_within(frame: Frame, start: int, stop: int | None) -> tuple[int, int]:
    """Which of the frame's rows have offsets in [start, stop): the first, and behind the last."""
    base, count = frame.header.base_offset, frame.header.count
    end = count if stop is None else max(0, min(count, stop - base))
    return min(max(0, start - base), end), end


def _timestamps(batch: Any, taken_ms: int, rows: int, flags: int) -> Any:
    taken = pa.scalar(taken_ms, batches.TIMESTAMP_TYPE)
    if not flags & _TIMESTAMP:
        return pa.repeat(taken, rows)
    return pc.fill_null(batch.column("timestamp"), taken)


def _room_for(rows: int) -> int:
    """A few sizes for all batches, so that counting is done once for many."""
    return 1 << max(10, (rows - 1).bit_length())


@lru_cache(maxsize=8)
def _numbers(count: int) -> Any:
    return pa.array(range(count), pa.int64())
