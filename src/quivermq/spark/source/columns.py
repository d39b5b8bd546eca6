"""The columns of a topic in Spark, and the conversion of stored batches to them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quivermq.batches import schema_of
from quivermq.client import ReadChunk
from quivermq.errors import InvalidRequest
from quivermq.spark.source.options import flag

MESSAGE_COLUMNS: Final = (
    "key", "value", "topic", "partition", "offset", "timestamp", "priority", "headers"
)  # fmt: skip
_HEADERS: Final = "headers"


def column_types() -> dict[str, DataType]:
    """All columns, in their order."""
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    return {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        "priority": IntegerType(),
        _HEADERS: ArrayType(header),
    }


def spark_schema(options: Mapping[str, str]) -> StructType:
    """The columns that the options `columns` and `includeHeaders` ask for."""
    types = column_types()
    with_headers = flag(options, "includeHeaders", default=False)
    names = [name for name in types if with_headers or name != _HEADERS]
    chosen = (options.get("columns") or "").strip()
    if chosen:
        names = [name.strip() for name in chosen.split(",") if name.strip()]
        unknown = [name for name in names if name not in types]
        if unknown or len(set(names)) < len(names):
            raise InvalidRequest(
                f"option columns must name each column once, of {', '.join(types)}: {chosen!r}"
            )
        if with_headers and _HEADERS not in names:
            names.append(_HEADERS)
    return StructType([StructField(name, types[name]) for name in names])


def check_schema(schema: StructType) -> StructType:
    """Check that a schema of the user's own has only our columns."""
    types = column_types()
    for each in schema.fields:
        if each.name not in types or each.dataType != types[each.name]:
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
            asked = f"{each.name} {each.dataType.simpleString()}"
            raise InvalidRequest(f"a topic has no column {asked}: it has {columns}")
    return schema


class BatchShaper:
    """Converts stored batches of one partition to Spark's schema.

    Only the wanted columns are made, and none row by row: Arrow repeats values that all rows of a
    stored batch share.
    """

    def __init__(self, schema: StructType, topic: str, partition: int) -> None:
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        self._topic = topic
        self._partition = partition

    def shape(self, pieces: Sequence[ReadChunk]) -> Any:
        """Convert pieces with consecutive offsets to one batch of Spark's schema."""
        bodies = _join(list(_bodies(pieces)))
        columns = [self._column(pieces, bodies, each) for each in self._arrow]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def _column(self, pieces: Sequence[ReadChunk], bodies: Any, wanted: Any) -> Any:
        rows = bodies.num_rows
        match wanted.name:
            case "topic":
                return _repeat(self._topic, wanted.type, _cache_size(rows)).slice(0, rows)
            case "partition":
                return _repeat(self._partition, wanted.type, _cache_size(rows)).slice(0, rows)
            case "offset":
                first = pa.scalar(pieces[0].offset, wanted.type)
                return pc.add(_numbers(_cache_size(rows)).slice(0, rows), first)
            case "priority":
                return _by_piece(pieces, [each.frame.header.priority for each in pieces], wanted)
            case "timestamp":
                return _timestamps(pieces, bodies, wanted)
        if wanted.name not in bodies.schema.names:
            return pa.nulls(rows, wanted.type)
        column = bodies.column(wanted.name)
        return column if column.type.equals(wanted.type) else column.cast(wanted.type)


def _bodies(pieces: Sequence[ReadChunk]) -> Iterator[Any]:
    """The columns of pieces. Batches of a single message are joined without decoding each."""
    lone: list[bytes] = []
    for piece in pieces:
        value = piece.lone_value
        if value is not None:
            lone.append(value)
            continue
        if lone:
            yield _value_batch(lone)
            lone = []
        yield piece.decoded()
    if lone:
        yield _value_batch(lone)


def _value_batch(values: list[bytes]) -> Any:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=schema_of(0))


def _join(bodies: list[Any]) -> Any:
    """Join bodies; columns that some of them lack are null."""
    if len(bodies) == 1:
        return bodies[0]
    runs = [
        pa.Table.from_batches(list(run)) for _, run in groupby(bodies, lambda body: body.schema)
    ]
    table = runs[0] if len(runs) == 1 else pa.concat_tables(runs, promote_options="default")
    return table.combine_chunks().to_batches()[0]


def _timestamps(pieces: Sequence[ReadChunk], bodies: Any, wanted: Any) -> Any:
    """The producer's timestamp, or else when the leader stored the batch."""
    taken = _by_piece(pieces, [each.frame.header.timestamp_ms * 1000 for each in pieces], wanted)
    if "timestamp" not in bodies.schema.names:
        return taken
    return pc.coalesce(bodies.column("timestamp").cast(wanted.type), taken)


def _by_piece(pieces: Sequence[ReadChunk], values: list[int], wanted: Any) -> Any:
    """A value for each piece, repeated for its rows."""
    if values.count(values[0]) == len(values):
        rows = sum(each.rows for each in pieces)
        return pa.repeat(pa.scalar(values[0], wanted.type), rows)
    ends = pa.array(accumulate(each.rows for each in pieces), pa.int32())
    runs = pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, wanted.type))
    return pc.run_end_decode(runs)


def _cache_size(rows: int) -> int:
    """Round up to a few sizes, so that many batches share a cached column."""
    return 1 << max(10, (rows - 1).bit_length())


@lru_cache(maxsize=32)
def _repeat(value: str | int, kind: Any, count: int) -> Any:
    return pa.repeat(pa.scalar(value, kind), count)


@lru_cache(maxsize=8)
def _numbers(count: int) -> Any:
    return pa.array(range(count), pa.int64())
