"""Makes the Spark views of a pipeline: its sources and steps.

Spark analyses every query against the columns of its inputs. Nothing runs, and no broker is asked.
Errors of Spark become problems with their line in the file.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as all of Spark's documentation has it)
from pyspark.sql.types import StructType

from quivermq.errors import InvalidRequest
from quivermq.pipelines.loading import PipelineFile, Problem, suggest
from quivermq.pipelines.model import BAD_ROWS_SUFFIX, SourceConfig, StepConfig, Watermark
from quivermq.spark import REASON, parse_columns, with_payload

Path = tuple[str | int, ...]

_MESSAGE_COLUMNS: Final = ("key", "topic", "partition", "offset", "timestamp", "priority")
_ROW: Final = "_row"
_SCRATCH: Final = "_quiver_scratch"
_LINE: Final = re.compile(r"(?:\(line (\d+), pos(?:ition)? \d+\)|; line (\d+) pos \d+)")
_NO_COLUMN: Final = "UNRESOLVED_COLUMN.WITH_SUGGESTION"
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_MISSING: Final = "TABLE_OR_VIEW_NOT_FOUND"


@dataclass(slots=True)
class Views:
    """The views that could be made, and the problems of the others."""

    frames: dict[str, DataFrame] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def find(self, name: str) -> DataFrame | None:
        """The view of this name; SQL ignores case."""
        return next(
            (made for key, made in self.frames.items() if key.lower() == name.lower()), None
        )


def make_views(spark: SparkSession, file: PipelineFile, connection: Mapping[str, str]) -> Views:
    """Make all views; `connection` are the options that reach brokers."""
    views = Views()
    failed: set[str] = set()
    for name in (*file.pipeline.views, _SCRATCH):
        spark.catalog.dropTempView(name)  # of another file, or of an earlier version of this one
    for name, source in file.pipeline.sources.items():
        try:
            made = dict(_source_views(spark, file, name, source, connection))
        except (PySparkException, InvalidRequest) as error:
            problem = Problem(
                _line_of_source_error(spark, file, name, source, error), plain_message(error)
            )
            views.problems.append(problem)
            failed |= {name.lower(), name.lower() + BAD_ROWS_SUFFIX}
            continue
        for view, frame in made.items():
            frame.createOrReplaceTempView(view)
            views.frames[view] = frame
    for index, step in enumerate(file.pipeline.steps):
        try:
            frame = _step_view(spark, step)
        except PySparkException as error:
            if missing_view(error) not in failed:
                views.problems.append(_step_problem(file, index, error))
            failed.add(step.name.lower())
            continue
        frame.createOrReplaceTempView(step.name)
        views.frames[step.name] = frame
    spark.catalog.dropTempView(_SCRATCH)
    return views


def plain_message(error: Exception) -> str:
    """The message of an error of Spark, without codes, plans and stacks."""
    if isinstance(error, PySparkException) and error.getCondition() == _NO_COLUMN:
        named = error.getMessageParameters() or {}
        there = named.get("proposal", "").replace("`", "")
        return f"there is no column {named.get('objectName', '').replace('`', '')}; near: {there}"
    message = str(error).split("\n\nJVM stacktrace")[0].split("\n== SQL")[0]
    message = _CONDITION.sub("", message.split(";\n'")[0].split(";\n")[0].strip())
    message = _LINE.sub("", _STATE.sub("", message))
    return " ".join(message.split()).removesuffix(";")


def missing_view(error: PySparkException) -> str:
    """The missing view that a query reads, in lower case; empty for other errors."""
    if error.getCondition() != _MISSING:
        return ""
    named = (error.getMessageParameters() or {}).get("relationName", "")
    return named.replace("`", "").lower()


def _source_views(
    spark: SparkSession,
    file: PipelineFile,
    name: str,
    source: SourceConfig,
    connection: Mapping[str, str],
) -> Iterator[tuple[str, DataFrame]]:
    if source.table:
        from quivermq.spark import read_table  # noqa: PLC0415  (see `make_views`)

        yield name, read_table(spark, file.place(source.table), version=source.version)
        return
    raw = spark.readStream.format("quiver")
    for key, value in topic_options(file, source, connection).items():
        raw = raw.option(key, value)
    frame = raw.load()
    if not source.json_columns:
        if source.headers:
            frame = frame.withColumn("headers", _header_map(F.col("headers")))
        yield name, _with_watermark(frame, source.watermark)
        return
    parsed = _parse_values(frame, _row_type(spark, source.json_columns), headers=source.headers)
    is_bad = F.col(REASON).isNotNull()
    counted = parsed.observe(name, F.sum(F.when(is_bad, 1).otherwise(0)).alias("bad"))
    rest = [column for column in parsed.columns if column not in {"value", _ROW, REASON}]
    good = counted.where(~is_bad).select(f"{_ROW}.*", *rest)
    yield name, _with_watermark(good, source.watermark)
    text = F.col("value").cast("string").alias("_value")
    bad = parsed.where(is_bad).select(text, F.col(REASON).alias("_reason"), *rest)
    yield name + BAD_ROWS_SUFFIX, bad


def topic_options(
    file: PipelineFile, source: SourceConfig, connection: Mapping[str, str]
) -> dict[str, str]:
    """The options of the format `quiver` for a source of the file."""
    name, value = source.subscription
    options = {**connection, name: value}
    if source.start in {"earliest", "latest"} or source.start.lstrip().startswith("{"):
        options["startingOffsets"] = source.start
    else:
        options["startingTimestamp"] = source.start
    if source.max_rows:
        options["maxOffsetsPerTrigger"] = str(source.max_rows)
    if source.headers:
        options["includeHeaders"] = "true"
    if source.archive:
        options["archive"] = file.place(source.archive)
    return options | {key: option_text(each) for key, each in source.options.items()}


def option_text(value: Any) -> str:
    """A value as Spark reads it: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row_type(spark: SparkSession, columns: str) -> StructType:
    """Parse the columns of a source: `id LONG, at TIMESTAMP`."""
    found = StructType.fromDDL(columns)
    if not isinstance(found, StructType):
        raise InvalidRequest(f"json names no columns: write id LONG, at TIMESTAMP; not {columns}")
    taken = [each for each in found.fieldNames() if each.startswith("_")]
    if taken:
        raise InvalidRequest(f"names that begin with _ are those of the message: {taken[0]}")
    return parse_columns(spark, columns)


def _parse_values(frame: DataFrame, schema: StructType, *, headers: bool) -> DataFrame:
    """Parse the JSON by the rules of archives: its columns or the reason why it is refused; and
    `value` and the message's own columns."""
    own = [F.col(column).alias(f"_{column}") for column in _MESSAGE_COLUMNS]
    if headers:
        own.append(_header_map(F.col("headers")).alias("_headers"))
    messages = frame.select("value", *own)
    return with_payload(messages, schema, _ROW, messages.columns)


def _header_map(headers: Any) -> Any:
    """Headers by name: `headers['reason']` in SQL. Names are unique within a message."""
    entries = F.transform(headers, lambda each: F.struct(each["key"], each["value"].cast("string")))
    return F.map_from_entries(entries)


def _with_watermark(frame: DataFrame, watermark: Watermark | None) -> DataFrame:
    if watermark is None:
        return frame
    return frame.withWatermark(watermark.column, f"{watermark.delay} milliseconds")


def _step_view(spark: SparkSession, step: StepConfig) -> DataFrame:
    # Here the grammar accepts only a query, and runs nothing; `spark.sql` alone would run a DROP or
    # INSERT at once. The line break keeps the column numbers of the SQL.
    sql = step.sql.rstrip()
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {_SCRATCH} AS\n{sql}")
    return _with_watermark(spark.sql(sql), step.watermark)


def _step_problem(file: PipelineFile, index: int, error: PySparkException) -> Problem:
    step = file.pipeline.steps[index]
    message = plain_message(error)
    place = _LINE.search(str(error))
    # The first line is ours: see `_step_view`.
    line = file.sql_line(index, int(place[1] or place[2]) - 1 if place else 1)
    if missing := missing_view(error):
        later = {each.name.lower() for each in file.pipeline.steps[index:]}
        message = f"{missing} is no source and no earlier step: "
        if missing in later:
            message += "put that step before this one"
        else:
            message += suggest(missing, file.pipeline.views)
    elif step.watermark and place is None and "watermark" in str(error).lower():
        line = file.line("steps", index, "watermark")
    return Problem(line, f"step {step.name}: {message}")


def _line_of_source_error(
    spark: SparkSession, file: PipelineFile, name: str, source: SourceConfig, error: Exception
) -> int:
    """The line of the key that caused an error of Spark, which does not name it."""
    path: Path = ("sources", name)
    if source.table:
        return file.line(*path, "table")
    try:
        if source.json_columns:
            _row_type(spark, source.json_columns)
    except (PySparkException, InvalidRequest):
        return file.line(*path, "json")
    is_watermark = source.watermark and source.watermark.column in str(error)
    return file.line(*path, "watermark") if is_watermark else file.line(*path)
