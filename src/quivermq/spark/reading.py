"""In the task: a range of a partition as Arrow batches of the size that Spark likes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from quivermq.errors import OffsetOutOfRange, TopicNotFound
from quivermq.spark.columns import Shape
from quivermq.spark.connections import client_of
from quivermq.spark.options import ReadOptions
from quivermq.spark.planning import lose, lose_end, lose_topic
from quivermq.spark.ranges import TopicRange

ROWS_MAX: Final = 10_000
BYTES_MAX: Final = 2 << 20
"""A batch is cut before it has more than this; one message may have more."""

ROWS_FEW: Final = 2_000
BYTES_FEW: Final = 512 << 10
"""Batches below both are gathered: Spark pays for each batch, however small."""


def batches_of(wanted: TopicRange, options: ReadOptions, schema: StructType) -> Iterator[Any]:
    """Every message of the range once, in order."""
    shape = Shape(schema, wanted.topic, wanted.partition)
    for batch in _gathered(_kept(wanted, options)):
        for part in _cut(batch):
            yield shape.shaped(part)


def _kept(wanted: TopicRange, options: ReadOptions) -> Iterator[Any]:
    """Batches as the client reads them. What retention removes meanwhile is told, or refused."""
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
            for batch in reader.batches():
                position += batch.num_rows
                yield batch
        except TopicNotFound:
            lose_topic(options, wanted.topic)
            return
        except OffsetOutOfRange as error:
            left = replace(wanted, start=position)
            if error.earliest <= position:
                lose_end(options, left, error.end)
                return
            lose(options, left, error.earliest, error.end)
            position = error.earliest


def _gathered(batches: Iterator[Any]) -> Iterator[Any]:
    """Small batches put together."""
    few: list[Any] = []
    rows = size = 0
    for batch in batches:
        batch_rows, batch_bytes = batch.num_rows, batch.nbytes
        if not few and (batch_rows >= ROWS_FEW or batch_bytes >= BYTES_FEW):
            yield batch
            continue
        if few and (rows + batch_rows > ROWS_MAX or size + batch_bytes > BYTES_MAX):
            yield _joined(few)
            few, rows, size = [], 0, 0
        few.append(batch)
        rows, size = rows + batch_rows, size + batch_bytes
    if few:
        yield _joined(few)


def _joined(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _cut(batch: Any) -> Iterator[Any]:
    """A batch in parts of the right size; halved, since messages differ in size."""
    if batch.num_rows > ROWS_MAX:
        for start in range(0, batch.num_rows, ROWS_MAX):
            yield from _cut(batch.slice(start, ROWS_MAX))
    elif batch.nbytes > BYTES_MAX and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from _cut(batch.slice(0, half))
        yield from _cut(batch.slice(half))
    else:
        yield batch
