"""Prepares the sinks of a pipeline, and starts their queries.

Each sink is one streaming query with a checkpoint of its own, so that one can be added, or fail,
without the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as all of Spark's documentation has it)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import BinaryType, DataType, StringType

from quivermq.errors import InvalidRequest
from quivermq.pipelines.loading import PipelineFile, Problem, suggest
from quivermq.pipelines.model import SinkConfig
from quivermq.pipelines.views import Views, option_text, plain_message


@dataclass(frozen=True, slots=True)
class PreparedSink:
    """A sink that is ready to be started."""

    name: str
    sink: SinkConfig
    frame: DataFrame


def prepare_sinks(spark: SparkSession, file: PipelineFile, views: Views) -> list[PreparedSink]:
    """Prepare the sinks whose views exist; problems are added to those of the views."""
    prepared_sinks = []
    for name, sink in file.pipeline.sinks.items():
        view = views.find(sink.from_)
        if view is None:
            continue
        problems = list(_problems(spark, file, name, sink, view))
        views.problems += problems
        if not problems:
            frame = _as_messages(view, sink) if sink.topic else view
            prepared_sinks.append(PreparedSink(name, sink, frame))
    return prepared_sinks


def start(
    prepared: PreparedSink, file: PipelineFile, connection: Mapping[str, str], *, once: bool
) -> StreamingQuery:
    """Start the query of a sink; with `once` it ends after the existing messages."""
    sink = prepared.sink
    writer: DataStreamWriter = (
        prepared.frame.writeStream.queryName(prepared.name)
        .outputMode(sink.mode)
        .option("checkpointLocation", f"{file.checkpoint}/{prepared.name}")
    )
    options = {key: option_text(value) for key, value in sink.options.items()}
    if sink.topic:
        options = {**connection, "topic": sink.topic, **options}
    else:
        options = {"path": file.place(str(sink.table)), **options}
    if sink.mode == "update":
        writer = writer.foreachBatch(_BatchWriter(options))
    else:
        writer = writer.format("quiver" if sink.topic else "quiver_table").options(**options)
    if once:
        return writer.trigger(availableNow=True).start()
    trigger_ms = file.pipeline.pipeline.trigger if sink.trigger is None else sink.trigger
    return writer.trigger(processingTime=f"{trigger_ms} milliseconds").start()


@dataclass(frozen=True, slots=True)
class _BatchWriter:
    """Writes the batches of a query in mode `update`, which Spark lacks for Python sinks.

    Each batch is a write with the query's id and the batch's number, so that a repeat after a crash
    is recognised.
    """

    options: Mapping[str, str]

    def __call__(self, frame: DataFrame, batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise InvalidRequest("Spark does not say which query this is: nothing is written")
        writer = frame.write.format("quiver").mode("append").options(**self.options)
        writer.option("txnAppId", query).option("txnVersion", str(batch)).save()


def _as_messages(view: DataFrame, sink: SinkConfig) -> DataFrame:
    """Select `value`, and `key` if the sink has one."""
    if sink.value:
        value = F.col(f"`{sink.value}`")
    else:
        # Nulls are written, so that every message has the same names.
        everything = F.struct(*[F.col(f"`{column}`") for column in view.columns])
        value = F.to_json(everything, {"ignoreNullFields": "false"})
    columns = [value.alias("value")]
    if sink.key:
        kind = _kind(view, sink.key)
        key = F.col(f"`{sink.key}`")
        columns.append((key if isinstance(kind, BinaryType) else key.cast("string")).alias("key"))
    return view.select(*columns)


def _problems(
    spark: SparkSession, file: PipelineFile, name: str, sink: SinkConfig, view: DataFrame
) -> Iterator[Problem]:
    if not view.isStreaming:
        yield Problem(
            file.line("sinks", name, "from"),
            f"sinks.{name} reads {sink.from_}, which reads no topic: such rows never change, so "
            "there is nothing to run",
        )
        return
    for word in ("key", "value"):
        column = getattr(sink, word)
        if column and _kind(view, column) is None:
            yield Problem(
                file.line("sinks", name, word),
                f"sinks.{name}: {sink.from_} has no column {column}: "
                + suggest(column, view.columns),
            )
    kind = _kind(view, sink.value) if sink.value else None
    if kind is not None and not isinstance(kind, BinaryType | StringType):
        yield Problem(
            file.line("sinks", name, "value"),
            f"sinks.{name}: column {sink.value} is {kind.simpleString()}, and a message is text or "
            "bytes; leave value out to send all columns as JSON",
        )
    if message := _find_unsupported(spark, view, sink.mode):
        path = "mode" if file.line("sinks", name, "mode") != file.line("sinks", name) else "from"
        yield Problem(file.line("sinks", name, path), f"sinks.{name}: {message}")


def _kind(view: DataFrame, column: str) -> DataType | None:
    wanted = column.lower()
    return next((each.dataType for each in view.schema.fields if each.name.lower() == wanted), None)


def _find_unsupported(spark: SparkSession, view: DataFrame, mode: str) -> str:
    """The reason why Spark refuses to stream this view in this mode; empty if it does not.

    A query would fail only when it starts, when others may run already. Not over Spark Connect."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return ""
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    plan = view._jdf.queryExecution().analyzed()  # noqa: SLF001  (there is no public way)
    try:
        checker.checkForStreaming(plan, getattr(modes, mode.title())())
    except PySparkException as error:
        message = plain_message(error)
        if mode == "append" and "watermark" in message:
            message += ' Give the source a watermark = { column = "...", delay = "..." }, and group'
            message += ' by a window of that column; or use mode = "update".'
        return message
    return ""
