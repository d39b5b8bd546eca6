"""Reads a range of a partition in a task, as Arrow batches of a size that suits Spark."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.types import StructType

from quivermq.client import ReadChunk
from quivermq.errors import BrokenInvariant, OffsetOutOfRange, TopicNotFound
from quivermq.spark.connections import client_of
from quivermq.spark.source.archived_ranges import ArchivedRange, archived_batches, archived_fallback
from quivermq.spark.source.columns import BatchShaper
from quivermq.spark.source.filters import ALWAYS, TimeBounds
from quivermq.spark.source.options import ReadOptions
from quivermq.spark.source.planning import report_deleted, report_missing, report_removed
from quivermq.spark.source.ranges import TopicRange

ROWS_MAX: Final = 10_000
BYTES_MAX: Final = 2 << 20
"""A batch is cut before it has more than this; one message may have more."""

ROWS_ENOUGH: Final = 5_000
BYTES_ENOUGH: Final = 256 << 10
"""Stored batches below both are joined: every batch has a fixed cost in Spark."""


def read_batches(
    wanted: TopicRange, options: ReadOptions, schema: StructType, times: TimeBounds = ALWAYS
) -> Iterator[Any]:
    """Read every message of the range once, in order. Stored batches entirely outside `times` are
    skipped."""
    shaper = BatchShaper(schema, wanted.topic, wanted.partition)
    todo = [wanted]
    while todo:
        part = todo.pop()
        if isinstance(part, ArchivedRange):
            for batch in archived_batches(part, schema):
                yield from _cut(batch)
            continue
        pieces = (piece for piece in _read_pieces(part, options, todo) if times.may_hold(piece))
        for group in _gather(pieces):
            yield from _cut(shaper.shape(group))


def _read_pieces(
    wanted: TopicRange, options: ReadOptions, todo: list[TopicRange]
) -> Iterator[ReadChunk]:
    """Read stored batches. Messages that retention removes meanwhile are read from the archive, or
    reported as lost.

    If the archive has them, they and the rest are put on `todo`, in reverse order.
    """
    client = client_of(options.connection)
    position = wanted.start
    while position < wanted.stop:
        reader = client.read_range(
            wanted.topic,
            wanted.partition,
            position,
            wanted.stop,
            topic_id=wanted.topic_id,
            follower_ok=options.follower_ok,
        )
        try:
            for piece in reader.pieces():
                if piece.offset != position:
                    raise BrokenInvariant(f"{wanted}: after {position} came {piece.offset}")
                position += piece.rows
                yield piece
        except TopicNotFound:
            report_deleted(options, wanted.topic)
            return
        except OffsetOutOfRange as error:
            left = replace(wanted, start=position)
            if error.earliest <= position:
                report_missing(options, left, error.end)
                return
            found = (
                archived_fallback(options.archive, left, error.earliest)
                if options.archive
                else None
            )
            if found is not None:
                todo += [replace(left, start=found.stop), found]
                return
            report_removed(options, left, error.earliest, error.end)
            position = min(error.earliest, wanted.stop)


def _gather(pieces: Iterator[ReadChunk]) -> Iterator[list[ReadChunk]]:
    """Group small adjacent pieces; large ones stay alone, since joining copies them."""
    few: list[ReadChunk] = []
    rows = size = behind = 0
    for piece in pieces:
        first, piece_rows = piece.offset, piece.rows
        piece_bytes = piece.frame.header.decoded_bytes
        is_large = piece_rows >= ROWS_ENOUGH or piece_bytes >= BYTES_ENOUGH
        is_over = rows + piece_rows > ROWS_MAX or size + piece_bytes > BYTES_MAX
        if few and (is_large or is_over or first != behind):
            yield few
            few, rows, size = [], 0, 0
        few.append(piece)
        rows, size, behind = rows + piece_rows, size + piece_bytes, first + piece_rows
        if is_large:
            yield few
            few, rows, size = [], 0, 0
    if few:
        yield few


def _cut(batch: Any) -> Iterator[Any]:
    """Cut a batch into parts of the right size, by halves, since messages differ in size."""
    if batch.num_rows > ROWS_MAX:
        for start in range(0, batch.num_rows, ROWS_MAX):
            yield from _cut(batch.slice(start, ROWS_MAX))
    elif batch.nbytes > BYTES_MAX and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from _cut(batch.slice(0, half))
        yield from _cut(batch.slice(half))
    else:
        yield batch
