"""A pipeline from its file to its end: checked, started, watched, stopped.

    file = load("orders.toml")
    run(file, once=True)

Everything that can be wrong with the file is said before anything runs: what the file says by
itself, then the topics, which takes a moment, then the SQL, which needs Spark.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import quivermq
from quivermq.errors import TopicExists, TopicNotFound
from quivermq.pipelines.ends import TopicEnds
from quivermq.pipelines.loading import PipelineFile
from quivermq.pipelines.locks import one_at_a_time
from quivermq.pipelines.problems import Problem
from quivermq.pipelines.reports import Reporter
from quivermq.pipelines.spark_logs import hush, log_to
from quivermq.pipelines.watching import Report, Watching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quivermq.pipelines.sinks import Outlet
    from quivermq.pipelines.views import Views

DEFAULT_SERVERS: Final = "127.0.0.1:7600"
_TOKEN: Final = "QUIVER_TOKEN"  # noqa: S105  (the name of the variable that holds it)


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline that passed all checks."""

    file: PipelineFile
    views: "Views"
    outlets: "list[Outlet]"


def connection_of(file: PipelineFile, servers: str | None = None) -> dict[str, str]:
    """How brokers are reached: what the caller says, else the file, else the usual place."""
    settings = file.pipeline.pipeline
    connection = {"servers": servers or settings.servers or DEFAULT_SERVERS}
    token = settings.token or os.environ.get(_TOKEN)
    return connection | ({"token": token} if token else {})


def check(
    file: PipelineFile, spark: "SparkSession", connection: Mapping[str, str] | None = None
) -> Plan:
    """Analyse everything by Spark; raises `InvalidPipeline`. Asks no broker, and runs nothing."""
    from quivermq.pipelines.sinks import make_outlets  # noqa: PLC0415  (needs Spark)
    from quivermq.pipelines.views import make_views  # noqa: PLC0415

    views = make_views(spark, file, connection or connection_of(file))
    outlets = make_outlets(spark, file, views)
    if views.problems:
        raise file.invalid(*views.problems)
    return Plan(file, views, outlets)


def check_topics(file: PipelineFile, client: quivermq.Client) -> None:
    """Raises `InvalidPipeline` if a topic that is read does not exist."""
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


def spark_of(file: PipelineFile) -> "SparkSession":
    """The session that the file asks for."""
    from quivermq.spark import session  # noqa: PLC0415  (takes a while to import)

    settings = file.pipeline.pipeline
    config = {key: _setting(value) for key, value in settings.spark.items()}
    return session(settings.master, name=f"quiver pipeline {file.name}", config=config)


def run(
    file: PipelineFile,
    *,
    servers: str | None = None,
    once: bool = False,
    watching: Watching | None = None,
) -> Report:
    """Run a pipeline to its end: with `once` all that is there, else until it is asked to stop.

    Returns its last report. Raises `InvalidPipeline` before anything runs, or `PipelineFailed`.
    """
    watching = watching or Watching()
    connection = connection_of(file, servers)
    watching.stage("looking at the topics")
    with ExitStack() as stack:
        client = quivermq.connect(connection["servers"], token=connection.get("token"))
        stack.enter_context(client)
        check_topics(file, client)
        stack.enter_context(one_at_a_time(file.checkpoint, file.name))
        watching.stage("starting Spark")
        stack.enter_context(log_to(file.checkpoint))
        spark = spark_of(file)
        hush(spark)
        watching.ready()
        watching.stage("checking the SQL")
        plan = check(file, spark, connection)
        from quivermq.pipelines.running import Running  # noqa: PLC0415  (needs Spark)

        _create_topics(file, client)
        reporter = Reporter(connection["servers"], connection.get("token"))
        stack.callback(reporter.close)
        ends = TopicEnds(client)
        stack.callback(ends.close)
        queries = Running(
            file,
            plan.outlets,
            connection,
            reporter,
            ends,
            watching,
            once=once,
            again=lambda: check(file, spark, connection).outlets,
        )
        return queries.to_their_end()


def _create_topics(file: PipelineFile, client: quivermq.Client) -> None:
    for sink in file.pipeline.sinks.values():
        if sink.topic:
            try:
                client.topic(sink.topic)
            except TopicNotFound:
                # Another pipeline that writes there may start at the same moment.
                with suppress(TopicExists):
                    client.create_topic(sink.topic, partitions=sink.partitions)


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
