"""The columns of a topic as Spark sees them, and what was read in exactly that shape."""

from collections.abc import Mapping
from functools import lru_cache
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

from quivermq.errors import InvalidRequest
from quivermq.spark.options import flag

_HEADERS: Final = "headers"


def column_types() -> dict[str, DataType]:
    """All columns that there are, in their order."""
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
        strangers = [name for name in names if name not in types]
        if strangers or len(set(names)) < len(names):
            raise InvalidRequest(
                f"option columns must name each column once, of {', '.join(types)}: {chosen!r}"
            )
        if with_headers and _HEADERS not in names:
            names.append(_HEADERS)
    return StructType([StructField(name, types[name]) for name in names])


def check_schema(schema: StructType) -> StructType:
    """A schema of the user's own must be made of our columns."""
    types = column_types()
    for each in schema.fields:
        if each.name not in types or each.dataType != types[each.name]:
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
            asked = f"{each.name} {each.dataType.simpleString()}"
            raise InvalidRequest(f"a topic has no column {asked}: it has {columns}")
    return schema


class Shape:
    """Makes batches of one partition into what Spark expects, to the letter."""

    def __init__(self, schema: StructType, topic: str, partition: int) -> None:
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        self._topic = topic
        self._partition = partition

    def shaped(self, batch: Any) -> Any:
        """A batch of the client's schema in Spark's."""
        columns = [self._column(batch, each) for each in self._arrow]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def _column(self, batch: Any, wanted: Any) -> Any:
        rows = batch.num_rows
        if wanted.name == "topic":
            return _repeated(self._topic, wanted.type, _room_for(rows)).slice(0, rows)
        if wanted.name == "partition":
            return _repeated(self._partition, wanted.type, _room_for(rows)).slice(0, rows)
        column = batch.column(wanted.name)
        return column if column.type.equals(wanted.type) else pc.cast(column, wanted.type)


def _room_for(rows: int) -> int:
    """A few sizes for all batches, so that the same column serves many."""
    return 1 << max(10, (rows - 1).bit_length())


@lru_cache(maxsize=32)
def _repeated(value: str | int, kind: Any, count: int) -> Any:
    return pa.repeat(pa.scalar(value, kind), count)
