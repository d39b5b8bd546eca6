"""Checks and runs a pipeline.

    file = load("orders.toml")
    run(file, once=True)

All problems of the file are reported before anything runs: first those of the file itself, then
those of the topics, which need a broker, then those of the SQL, which need Spark.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import quivermq
from quivermq.client_file import read_client_file
from quivermq.errors import InvalidRequest, TopicExists, TopicNotFound
from quivermq.pipelines.loading import PipelineFile, Problem
from quivermq.pipelines.reports import Report, Reporter, RunListener
from quivermq.pipelines.spark_logs import log_to, silence_accumulator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quivermq.pipelines.sinks import PreparedSink
    from quivermq.pipelines.views import Views

DEFAULT_SERVERS: Final = "127.0.0.1:7600"
_LOCK_FILE: Final = "running.pid"
_SERVERS: Final = "QUIVER_SERVERS"
_TOKEN: Final = "QUIVER_TOKEN"  # noqa: S105  (the name of the variable that holds it)


@dataclass(frozen=True, slots=True)
class CheckedPipeline:
    """A pipeline that passed all checks."""

    file: PipelineFile
    views: "Views"
    sinks: "list[PreparedSink]"


def connection_of(file: PipelineFile, servers: str | None = None) -> dict[str, str]:
    """The options that reach brokers: of the caller, else of the environment, else of the file,
    else as for all clients of this user. A token in the file is for this pipeline alone, and wins
    over that of the environment."""
    settings, user = file.pipeline.pipeline, read_client_file()
    told = servers or os.environ.get(_SERVERS) or settings.servers
    token = settings.token or os.environ.get(_TOKEN) or user.token
    connection = {"servers": told or user.servers or DEFAULT_SERVERS}
    return connection | ({"token": token} if token else {})


def check(
    file: PipelineFile, spark: "SparkSession", connection: Mapping[str, str] | None = None
) -> CheckedPipeline:
    """Let Spark analyse everything. Raises `InvalidPipeline`. Asks no broker, and runs nothing."""
    from quivermq.pipelines.sinks import prepare_sinks  # noqa: PLC0415  (needs Spark)
    from quivermq.pipelines.views import make_views  # noqa: PLC0415

    views = make_views(spark, file, connection or connection_of(file))
    sinks = prepare_sinks(spark, file, views)
    if views.problems:
        raise file.invalid(*views.problems)
    return CheckedPipeline(file, views, sinks)


def check_topics(file: PipelineFile, client: quivermq.Client) -> None:
    """Raise `InvalidPipeline` if a source's topic does not exist."""
    there = {topic.name for topic in client.topics()}
    problems = []
    for name, source in file.pipeline.sources.items():
        for topic in source.named_topics:
            if topic not in there:
                key = "topic" if source.topic else "topics"
                problems.append(
                    Problem(
                        file.line("sources", name, key),
                        f"there is no topic {topic}: quiver topic create {topic}",
                    )
                )
    if problems:
        raise file.invalid(*problems)


def start_spark(file: PipelineFile) -> "SparkSession":
    """Start the session that the file asks for."""
    from quivermq.spark import session  # noqa: PLC0415  (takes a while to import)

    settings = file.pipeline.pipeline
    return session(settings.master, name=f"quiver pipeline {file.name}", config=settings.spark)


def run(
    file: PipelineFile,
    *,
    servers: str | None = None,
    once: bool = False,
    listener: RunListener | None = None,
) -> Report:
    """Run a pipeline: with `once` over the existing messages, else until it is asked to stop.

    Returns its last report. Raises `InvalidPipeline` before anything runs, or `PipelineFailed`.
    """
    listener = listener or RunListener()
    connection = connection_of(file, servers)
    listener.stage("looking at the topics")
    with ExitStack() as stack:
        client = quivermq.connect(connection["servers"], token=connection.get("token"))
        stack.enter_context(client)
        check_topics(file, client)
        stack.enter_context(lock_checkpoint(file.checkpoint, file.name))
        listener.stage("starting Spark")
        stack.enter_context(log_to(file.checkpoint))
        spark = start_spark(file)
        silence_accumulator(spark)
        listener.ready()
        listener.stage("checking the SQL")
        checked = check(file, spark, connection)
        from quivermq.pipelines.run_loop import PipelineLoop, TopicEnds  # noqa: PLC0415  (Spark)

        _create_topics(file, client)
        reporter = Reporter(connection["servers"], connection.get("token"))
        stack.callback(reporter.close)
        ends = TopicEnds(client)
        stack.callback(ends.close)
        loop = PipelineLoop(
            file,
            checked.sinks,
            connection,
            reporter,
            ends,
            listener,
            once=once,
            prepare_again=lambda: check(file, spark, connection).sinks,
        )
        return loop.run_to_end()


@contextmanager
def lock_checkpoint(checkpoint: str, name: str) -> Iterator[None]:
    """Lock a checkpoint. Raises `InvalidRequest` if another process holds it.

    Two processes would undo each other's plans. The lock ends with the process. A checkpoint in an
    object store is not locked: there Spark refuses the second process, after some batches.
    """
    if "://" in checkpoint:
        yield
        return
    folder = Path(checkpoint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _LOCK_FILE).open("a+")
    except OSError as error:
        raise InvalidRequest(f"the checkpoint {checkpoint} cannot be written: {error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            raise InvalidRequest(
                f"pipeline {name} is running already, as process {pid}: stop that first"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _create_topics(file: PipelineFile, client: quivermq.Client) -> None:
    for sink in file.pipeline.sinks.values():
        if sink.topic:
            try:
                client.topic(sink.topic)
            except TopicNotFound:
                # Another pipeline that writes there may start at the same moment.
                with suppress(TopicExists):
                    client.create_topic(sink.topic, partitions=sink.partitions)
