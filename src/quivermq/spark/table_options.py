"""The options of the format `quiver_table`, and the columns of its tables."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from quivermq.errors import InvalidRequest
from quivermq.lakehouse import TARGET_FILE_BYTES


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of one write."""

    path: str
    partition_by: tuple[str, ...] | None
    """None: as the table has them; a table that the write creates has none then."""
    target_bytes: int
    app_id: str | None
    app_version: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "TableOptions":
        app_id, version = options.get("txnAppId"), options.get("txnVersion")
        if (app_id is None) != (version is None):
            raise InvalidRequest("options txnAppId and txnVersion belong together: give both")
        columns = options.get("partitionBy")
        return cls(
            path=table_path(options),
            partition_by=None if columns is None else _names(columns),
            target_bytes=_whole("targetFileSize", options.get("targetFileSize"), 1)
            or TARGET_FILE_BYTES,
            app_id=app_id,
            app_version=_whole("txnVersion", version, 0),
        )


def table_path(options: Mapping[str, str]) -> str:
    path = options.get("path")
    if not path:
        raise InvalidRequest(
            "the format quiver_table needs the table's folder: .save(PATH), "
            '.load(PATH) or .option("path", PATH)'
        )
    return path


def table_version(options: Mapping[str, str]) -> int | None:
    return _whole("version", options.get("version"), 0)


def nullable(schema: StructType) -> StructType:
    """The same columns, all nullable, on every level."""
    return StructType(
        [StructField(field.name, _nullable(field.dataType), True) for field in schema.fields]
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns of a table for rows of this schema."""
    return to_arrow_schema(nullable(schema), timezone="UTC")


def spark_schema(schema_json: str) -> StructType:
    """A table's columns for Spark: Delta writes them as Spark does."""
    return nullable(StructType.fromJson(json.loads(schema_json)))


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return nullable(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _whole(name: str, text: str | None, least: int) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        raise InvalidRequest(f"option {name} must be a whole number of at least {least}: {text!r}")
    return int(text)
