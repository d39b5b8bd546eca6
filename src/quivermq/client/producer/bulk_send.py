"""The messages of one `send_many` on their way into an accumulator: by batches, never one by one.

Lists of bytes join the batches that single messages are gathered in, as slices. Everything else,
as Arrow, headers and timestamps, is laid out as batches here, as `produce_many` does it, and these
go behind what was gathered before. No I/O.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import accumulate
from operator import add
from typing import Any, Final

from quivermq import batches
from quivermq.batches import Frame, Limits
from quivermq.client.producer.bulk import BulkColumns, Layout, bulk_frames
from quivermq.client.producer.delivery import BatchDelivery, BatchSlice
from quivermq.client.producer.partitioner import check_partition, rows_by_partition

ENTRY_BYTES: Final = 4
"""The size of a value or key beside its bytes: its place in Arrow's offsets."""
_BATCH_SLACK_BYTES: Final = 1024
"""Room for what Arrow adds to a batch of a single message."""
_ANYWHERE: Final = -1


class PlainRows:
    """Values, and maybe keys, for one partition, or for whichever comes next."""

    def __init__(
        self, values: list[bytes], keys: list[bytes | None] | None, partition: int | None
    ) -> None:
        self.partition = partition
        self._values = values
        self._keys = keys
        self._at = 0
        sizes = map(ENTRY_BYTES.__add__, map(len, values))
        if keys is not None:
            sizes = map(add, sizes, (len(key or b"") + ENTRY_BYTES for key in keys))
        self._ends = list(accumulate(sizes, initial=0))
        """Bytes before each row, and of all."""

    @property
    def next_size(self) -> int:
        """The bytes of the next row."""
        return self._ends[self._at + 1] - self._ends[self._at]

    @property
    def is_taken(self) -> bool:
        """No row is left."""
        return self._at == len(self._values)

    def take(self, room: int) -> tuple[list[bytes], list[bytes | None] | None, int]:
        """The next rows that fit, one at least; with their keys and their size."""
        at = self._at
        stop = max(at + 1, bisect_right(self._ends, self._ends[at] + room, at) - 1)
        self._at = stop
        keys = None if self._keys is None else self._keys[at:stop]
        return self._values[at:stop], keys, self._ends[stop] - self._ends[at]


class BulkSend:
    """The rest of one call, and where the first part of it went."""

    def __init__(
        self,
        topic: str,
        columns: BulkColumns,
        layout: Layout,
        limits: Limits,
        *,
        partitions: int,
        partition: int | None,
        context: Mapping[str, bytes] | None = None,
    ) -> None:
        self.topic = topic
        self.priority = layout.priority
        self.due_ms = layout.not_before_ms
        self.context: list[Mapping[str, bytes] | None] | None = [context] if context else None
        """The trace context that batches which are laid out carry in all their messages."""
        self.frame: tuple[int, Frame] | None = None
        """The batch to take next, and its partition; negative: whichever comes next."""
        self._frames: Iterator[tuple[int, Frame]] = iter(())
        self._rows: deque[PlainRows] = deque()
        self._segments: list[BatchSlice] = []
        if partition is not None:
            check_partition(topic, partition, partitions)
        if _are_plain(columns, limits):
            batches.Origin(priority=layout.priority, not_before_ms=layout.not_before_ms).check()
            self._rows.extend(_plain_rows(columns.values, columns.keys, partitions, partition))
        else:
            self._frames = bulk_frames(
                columns,
                layout,
                limits,
                partitions=partitions,
                partition=partition,
                next_partition=lambda: _ANYWHERE,
            )

    @property
    def rows(self) -> PlainRows | None:
        """The rows to take next."""
        return self._rows[0] if self._rows else None

    def prepare(self) -> bool:
        """Lay the next batch out, if that is to be done; False if nothing is left."""
        if self.frame is None and not self._rows:
            self.frame = next(self._frames, None)
        return self.frame is not None or bool(self._rows)

    @property
    def count(self) -> int:
        """Messages that were taken."""
        return sum(each.count for each in self._segments)

    def took(self, segment: BatchSlice) -> None:
        """Messages went into a pending batch."""
        self._segments.append(segment)
        self.frame = None
        if self._rows and self._rows[0].is_taken:
            self._rows.popleft()

    def delivery(self) -> BatchDelivery:
        """The future of all that was taken."""
        return BatchDelivery(self._segments)


def _are_plain(columns: BulkColumns, limits: Limits) -> bool:
    """Whether these are lists of bytes, surely within the limits, that need no other check."""
    values, keys, headers, timestamps = columns
    if not (headers is None and timestamps is None and type(values) is list):
        return False
    if set(map(type, values)) - {bytes}:
        return False
    largest = max(map(len, values), default=0)
    if keys is not None:
        kinds = set(map(type, keys)) if type(keys) is list else {object}
        if kinds - {bytes, type(None)} or len(keys) != len(values):
            return False
        largest += max((len(key) for key in keys if key is not None), default=0)
    return largest + _BATCH_SLACK_BYTES <= min(limits.message_bytes_max, limits.batch_bytes_max)


def _plain_rows(
    values: list[bytes], keys: list[bytes | None] | None, partitions: int, partition: int | None
) -> list[PlainRows]:
    if not values:
        return []
    if keys is None or partition is not None or partitions == 1:
        return [PlainRows(values, keys, _number(partition, keys, partitions))]
    return [
        PlainRows(
            [values[row] for row in rows],
            None if number < 0 else [keys[row] for row in rows],
            None if number < 0 else number,
        )
        for number, rows in rows_by_partition(keys, partitions).items()
    ]


def _number(partition: int | None, keys: Any, partitions: int) -> int | None:
    """With keys and a single partition, that one."""
    return 0 if partition is None and keys is not None and partitions == 1 else partition
