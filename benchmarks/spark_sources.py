"""What the format `quiver` is measured beside: sources that make rows up, a writer that drops them.

Spark hands these classes to its workers by value: see `register_by_value`.
"""

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "priority int"
)
PARTITIONS = 2
BATCH_BYTES = 1_000_000
_WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def rows_per_batch(size: int) -> int:
    """As many as a producer puts into a batch, and no more than Spark likes."""
    return min(10_000, BATCH_BYTES // size)


def made_up_batch(size: int, partition: int) -> Any:
    """A batch as a topic's would be: no keys, random values."""
    rows = rows_per_batch(size)
    values = os.urandom(rows * size)
    arrow = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("priority", pa.int32()),
        ]
    )
    columns = [
        pa.nulls(rows, pa.binary()),
        pa.array([values[at : at + size] for at in range(0, len(values), size)], pa.binary()),
        pa.repeat("made-up", rows),
        pa.repeat(pa.scalar(partition, pa.int32()), rows),
        pa.array(range(rows), pa.int64()),
        pa.repeat(pa.scalar(_WHEN, pa.timestamp("us", tz="UTC")), rows),
        pa.repeat(pa.scalar(0, pa.int32()), rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow)


class _MadeUpReader(DataSourceReader):
    def __init__(self, options: Any, *, tuples: bool) -> None:
        self._rows = int(options["rows"])
        self._size = int(options["size"])
        self._tuples = tuples

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        batch = made_up_batch(self._size, partition.value)
        repeats = self._rows // PARTITIONS // batch.num_rows
        if not self._tuples:
            for _ in range(repeats):
                yield batch
            return
        value = bytes(self._size)
        for offset in range(repeats * batch.num_rows):
            yield (None, value, "made-up", partition.value, offset, _WHEN, 0)


class MadeUpArrow(DataSource):
    """Arrow batches that were laid out once, over and over."""

    @classmethod
    def name(cls) -> str:
        return "made_up_arrow"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  (it is ours)
        return _MadeUpReader(self.options, tuples=False)


class MadeUpTuples(DataSource):
    """The same rows one by one, as most Python sources do."""

    @classmethod
    def name(cls) -> str:
        return "made_up_tuples"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  (it is ours)
        return _MadeUpReader(self.options, tuples=True)


class _DroppingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Dropping(DataSource):
    """A sink that takes Arrow batches and drops them."""

    @classmethod
    def name(cls) -> str:
        return "dropping"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001
        return _DroppingWriter()


def register_by_value(spark: SparkSession) -> None:
    """Workers need not find this folder."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    for each in (MadeUpArrow, MadeUpTuples, Dropping):
        spark.dataSource.register(each)
