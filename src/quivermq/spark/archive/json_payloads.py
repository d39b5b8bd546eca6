"""Parses JSON payloads into columns, and gives the reason for each that does not fit."""

import re
from collections.abc import Sequence
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from quivermq.errors import InvalidRequest
from quivermq.spark.archive.writer import REASON

_CORRUPT: Final = "__unfit"
_PARSED: Final = "__parsed"
_VARIANT: Final = "__variant"
_SHOWN: Final = 100
_MACHINE_TALK: Final = re.compile(r"^\[[A-Z0-9_.]+\] | SQLSTATE: \w+.*$")


def parse_columns(spark: SparkSession, ddl: str) -> StructType:
    """The columns that a text such as `id BIGINT NOT NULL, amount DOUBLE` names."""
    del spark  # the text is parsed by the session's JVM
    try:
        schema = StructType.fromDDL(ddl)
    except PySparkException as error:
        line = _MACHINE_TALK.sub("", str(error).strip().splitlines()[0])
        raise InvalidRequest(
            f"{ddl!r} names no columns: write them as 'id BIGINT, amount DOUBLE' ({line})"
        ) from None
    if not isinstance(schema, StructType) or not schema.fields:
        raise InvalidRequest("a schema needs at least one column")
    _check_names(schema)
    return schema


def _check_names(schema: StructType) -> None:
    seen: set[str] = set()
    for name in schema.names:
        if '"' in name or "\\" in name:
            raise InvalidRequest(f"a column's name cannot have quotes or backslashes: {name!r}")
        if name.lower() in seen:
            raise InvalidRequest(f"two columns have the name {name!r}")
        seen.add(name.lower())


def with_payload(
    frame: DataFrame, schema: StructType, into: str | None, taken: Sequence[str]
) -> DataFrame:
    """Add the columns of the JSON in `value`, or one struct column `into`; and the reason if a row
    does not fit.

    A column that is NOT NULL must be there; others may be missing or null. Fields that the schema
    does not name are left out.
    """
    names = [into] if into else schema.names
    clash = sorted({name.lower() for name in names} & {name.lower() for name in (*taken, REASON)})
    if clash:
        raise InvalidRequest(
            f"the JSON has fields with names of the table's own columns: {', '.join(clash)}. Put "
            "the fields into one column: --into payload"
        )
    text = f.col("value").cast("string")
    corrupt = StructField(_CORRUPT, StringType())
    wanted = StructType([StructField(n.name, n.dataType, True) for n in schema.fields] + [corrupt])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    frame = frame.withColumn(_PARSED, f.from_json(text, wanted, options))
    frame = frame.withColumn(_VARIANT, _whole_variant(text))
    frame = frame.withColumn(REASON, _reason(schema))
    fields = [f.col(_PARSED)[name].alias(name) for name in schema.names]
    added = [f.struct(*fields).alias(into)] if into else fields
    kept = [f.col(name) for name in frame.columns if name not in {_PARSED, _VARIANT, REASON}]
    return frame.select(*kept, *added, f.col(REASON))


def _whole_variant(text: Column) -> Column:
    """The text as a variant; null unless all of it is one JSON value.

    Spark's parsers stop behind the first value and ignore the rest. Within brackets a rest is
    ignored only if it begins with `]`, within braces only with `}`: none does both.
    """
    listed = f.try_parse_json(f.concat(f.lit("["), text, f.lit("]")))
    boxed = f.try_parse_json(f.concat(f.lit('{"":'), text, f.lit("}")))
    items = f.try_variant_get(listed, "$", "array<variant>")
    return f.when(boxed.isNotNull() & (f.size(items) == 1), items[0])


def _reason(schema: StructType) -> Column:
    value, variant, parsed = f.col("value"), f.col(_VARIANT), f.col(_PARSED)
    shown = f.substring(value.cast("string"), 1, _SHOWN)
    reason = (
        f.when(value.isNull(), f.lit("no value"))
        .when(~f.expr("is_valid_utf8(cast(value as string))"), f.lit("not UTF-8"))
        .when(variant.isNull(), f.concat(f.lit("not JSON: "), shown))
        .when(
            ~f.coalesce(f.schema_of_variant(variant).startswith("OBJECT"), f.lit(False)),
            f.concat(f.lit("not a JSON object: "), shown),
        )
    )
    for field in schema.fields:
        found = f.try_variant_get(variant, f'$["{field.name}"]', "string")
        kind = field.dataType.simpleString().upper()
        reason = reason.when(
            parsed[_CORRUPT].isNotNull() & parsed[field.name].isNull() & found.isNotNull(),
            f.concat(f.lit(f"field {field.name} is no {kind}: "), f.substring(found, 1, _SHOWN)),
        )
    reason = reason.when(
        parsed.isNull() | parsed[_CORRUPT].isNotNull(),
        f.concat(f.lit("does not fit the schema: "), shown),
    )
    for field in schema.fields:
        if not field.nullable:
            reason = reason.when(
                parsed[field.name].isNull(), f.lit(f"field {field.name} is missing")
            )
    return reason
