"""Reads Delta tables: by Spark's own Parquet reader, or as the format `quiver_table`."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from quivermq.spark.table_options import spark_schema, table_path, table_version

_BATCH_ROWS: Final = 8_192
_TASK_BYTES: Final = 64 << 20
# Other characters have a meaning in the paths of Spark's readers, or depend on Java's locale.
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_ ./=@~-]+")


def read_table(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """A table as it is, or as it was at a version; later commits do not change the result.

    Spark reads the files itself, and skips columns and days that a query does not use.
    """
    from quivermq.lakehouse import Table  # noqa: PLC0415

    table = Table.open(path, version)
    schema = spark_schema(table.schema_json)
    files = table.file_paths()
    if not files:
        return spark.createDataFrame([], schema)
    if not _PLAIN_PATH.fullmatch(str(table.root)) or any(
        not (value or "").isascii()
        for _, _, values in file_values(table)
        for value in values.values()
    ):
        # Spark would misread such folders: the format takes their values from the table's log.
        pinned = spark.read.format("quiver_table").option("version", table.version)
        return pinned.load(str(table.root))
    reader = spark.read.schema(schema).option("basePath", str(table.root))
    return reader.parquet(*files).select(*(f"`{name}`" for name in schema.names))


@dataclass
class TableFiles(InputPartition):
    """The files of one task, each with its values of the partition columns."""

    files: list[tuple[str, dict[str, str | None]]]


class TableReader(DataSourceReader):
    """Reads a table by the format `quiver_table`, for callers that can only name a format."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        from quivermq.lakehouse import Table  # noqa: PLC0415

        table = Table.open(table_path(options), table_version(options))
        self._schema = schema
        self._tasks = _tasks(table)

    def partitions(self) -> list[InputPartition]:
        # Spark replaces an empty list by a partition of its own.
        return list(self._tasks) or [TableFiles([])]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        for path, values in partition.files:
            file = pq.ParquetFile(path)
            for batch in file.iter_batches(_BATCH_ROWS):
                yield with_values(batch, values, wanted)


def table_schema(options: Mapping[str, str]) -> StructType:
    """The columns of the table that the options name."""
    from quivermq.lakehouse import Table  # noqa: PLC0415

    return spark_schema(Table.open(table_path(options), table_version(options)).schema_json)


def with_values(
    batch: pa.RecordBatch, values: Mapping[str, str | None], schema: pa.Schema
) -> pa.RecordBatch:
    """A batch of a file with the columns that its folder's name holds."""
    columns = []
    for field in schema:
        if field.name in values:
            text = pa.scalar(values[field.name], pa.string())
            constant = pa.repeat(text, batch.num_rows)
            columns.append(pc.cast(constant, field.type))
        elif field.name in batch.schema.names:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.record_batch(columns, schema=schema)


def file_values(table: Any) -> list[tuple[str, int, dict[str, str | None]]]:
    """Absolute path, size and partition values of each file of a table's version."""
    found = []
    names = table.partition_by
    facts = table.file_facts("size_bytes", *(f"partition.{name}" for name in names))
    for path, row in zip(table.file_paths(), facts, strict=True):
        values = {name: _text(row[f"partition.{name}"]) for name in names}
        found.append((path, row["size_bytes"], values))
    return found


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return json.dumps(value)
    return None if value is None else str(value)


def _tasks(table: Any) -> list[TableFiles]:
    tasks: list[TableFiles] = []
    room = 0
    for path, size, values in file_values(table):
        if not tasks or room < size:
            tasks.append(TableFiles([]))
            room = _TASK_BYTES
        tasks[-1].files.append((path, values))
        room -= size
    return tasks
