"""The messages of one `send_many` on their way into an accumulator: never one by one.

Lists of bytes are cut into pieces, each of which joins a batch that single messages are gathered in
as a whole. A piece is small: what is looked at for every message, its type and its length, is
looked at while the processor has it at hand, and no other thread waits long for the interpreter.
Everything else, as Arrow, headers and timestamps, is laid out as batches here, as `produce_many`
does it, and these go behind what was gathered before. No I/O.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, Final, NamedTuple

from quivermq import batches
from quivermq.batches import Frame, Limits
from quivermq.client.producer.bulk import BulkColumns, Layout, bulk_frames
from quivermq.client.producer.delivery import BatchDelivery, BatchSlice, PendingBatch
from quivermq.client.producer.partitioner import check_partition, rows_by_partition

ENTRY_BYTES: Final = 4
"""The size of a value or key beside its bytes: its place in Arrow's offsets."""
PIECE_ROWS: Final = 1_000
"""Few enough that the memory of small messages is still warm when it is looked at again."""
PIECES_A_BATCH: Final = 8
"""At least so many fill one: a batch that the next piece does not fit into is nearly full."""
_BATCH_SLACK_BYTES: Final = 1024
"""Room for what Arrow adds to a batch of a single message."""
_ANYWHERE: Final = -1


class Piece(NamedTuple):
    """Values, and maybe keys, that join one pending batch together."""

    partition: int | None
    """None: whichever comes next."""
    values: list[bytes]
    keys: list[bytes | None] | None
    size: int


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
        self._pieces: deque[Piece] = deque()
        self._segments: list[BatchSlice] = []
        if partition is not None:
            check_partition(topic, partition, partitions)
        pieces = _plain_pieces(columns, layout, limits, partitions, partition)
        if pieces is not None:
            batches.Origin(priority=layout.priority, not_before_ms=layout.not_before_ms).check()
            self._pieces.extend(pieces)
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
    def piece(self) -> Piece | None:
        """The piece to take next."""
        return self._pieces[0] if self._pieces else None

    def prepare(self) -> bool:
        """Lay the next batch out, if that is to be done; False if nothing is left."""
        if self.frame is None and not self._pieces:
            self.frame = next(self._frames, None)
        return self.frame is not None or bool(self._pieces)

    @property
    def count(self) -> int:
        """Messages that were taken."""
        return sum(each.count for each in self._segments)

    def took_frame(self, pending_batch: PendingBatch, count: int) -> None:
        """The batch to take next is a pending batch."""
        self.frame = None
        self._segments.append(BatchSlice(pending_batch, 0, count))

    def took_piece(self, pending_batch: PendingBatch, place: int) -> None:
        """The piece to take next is in a pending batch, from this place on."""
        count = len(self._pieces.popleft().values)
        last = self._segments[-1] if self._segments else None
        if last is not None and last.ends_at(pending_batch, place):
            place, count = last.place, last.count + count
            self._segments.pop()
        self._segments.append(BatchSlice(pending_batch, place, count))

    def delivery(self) -> BatchDelivery:
        """The future of all that was taken."""
        return BatchDelivery(self._segments)


def _plain_pieces(
    columns: BulkColumns, layout: Layout, limits: Limits, partitions: int, partition: int | None
) -> list[Piece] | None:
    """Lists of bytes as pieces, if all messages are surely within the limits, and need no other
    check. None if that is not so."""
    values, keys, headers, timestamps = columns
    if not (headers is None and timestamps is None and type(values) is list):
        return None
    if keys is not None and not (_are_keys(keys) and len(keys) == len(values)):
        return None
    message_bytes_max = min(limits.message_bytes_max, limits.batch_bytes_max) - _BATCH_SLACK_BYTES
    piece_bytes = min(layout.frame_bytes // PIECES_A_BATCH, message_bytes_max)
    found: list[Piece] = []
    for number, some_values, some_keys in _by_partition(values, keys, partitions, partition):
        for piece in _cut(number, some_values, some_keys, piece_bytes):
            if piece is None or piece.size > message_bytes_max:
                return None
            found.append(piece)
    return found


def _are_keys(keys: object) -> bool:
    return type(keys) is list and set(map(type, keys)) <= {bytes, NoneType}


def _by_partition(
    values: list[Any], keys: list[bytes | None] | None, partitions: int, partition: int | None
) -> Iterator[tuple[int | None, list[Any], list[bytes | None] | None]]:
    """Rows with the partition that they go to; None: whichever comes next."""
    if keys is None or partition is not None:
        yield partition, values, keys
    elif partitions == 1:
        yield 0, values, keys
    else:
        for number, rows in rows_by_partition(keys, partitions).items():
            some = [values[row] for row in rows]
            if number < 0:
                yield None, some, None
            else:
                yield number, some, [keys[row] for row in rows]


def _cut(
    partition: int | None,
    values: list[Any],
    keys: list[bytes | None] | None,
    piece_bytes: int,
    rows: int = PIECE_ROWS,
) -> Iterator[Piece | None]:
    """Pieces of at most so many rows and bytes; a larger message is a piece of its own. None: not
    all of the values are bytes."""
    for at in range(0, len(values), rows):
        some_values = values[at : at + rows]
        some_keys = None if keys is None else keys[at : at + rows]
        size = _size_of(some_values, some_keys)
        if size > piece_bytes and rows > 1:
            yield from _cut(partition, some_values, some_keys, piece_bytes, rows // 2)
        else:
            yield Piece(partition, some_values, some_keys, size) if size else None


def _size_of(values: list[Any], keys: list[bytes | None] | None) -> int:
    """What messages take; 0: not all of the values are bytes, or there are none."""
    if {*map(type, values)} != {bytes}:
        return 0
    size = sum(map(len, values)) + ENTRY_BYTES * len(values)
    if keys is not None:
        size += sum(len(key) for key in keys if key is not None) + ENTRY_BYTES * len(keys)
    return size
