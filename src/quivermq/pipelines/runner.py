"""A pipeline from its file to its end: checked, started, watched, stopped.

    file = load("orders.toml")
    run(file, once=True)

Everything that can be wrong with the file is said before anything runs: what the file says by
itself, then the topics, which takes a moment, then the SQL, which needs Spark.
"""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import quivermq
from quivermq.errors import QuiverError, TopicNotFound
from quivermq.pipelines.loading import PipelineFile
from quivermq.pipelines.locks import one_at_a_time
from quivermq.pipelines.problems import Problem
from quivermq.pipelines.progress import Progress, SinkProgress
from quivermq.pipelines.reports import HEARTBEAT_SECONDS, Reporter
from quivermq.pipelines.spark_logs import log_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from quivermq.pipelines.sinks import Outlet
    from quivermq.pipelines.views import Views

DEFAULT_SERVERS: Final = "127.0.0.1:7600"
_LOOK_SECONDS: Final = 0.2
_REPORT_SECONDS: Final = 5.0
_STOP_SECONDS: Final = 120.0

Report = Mapping[str, Any]


class PipelineFailed(QuiverError):
    """A query of the pipeline ended with an error; everything up to its last batch is done."""


@dataclass(slots=True)
class StopRequest:
    """How often somebody asked to stop: once ends after the batch that is under way, twice at
    once. Both lose and double nothing."""

    count: int = 0

    def ask(self) -> None:
        self.count += 1


@dataclass(slots=True)
class Watching:
    """Who wants to hear: `stage` of what takes a while before it runs, `report` while it runs."""

    stage: Callable[[str], None] = lambda _: None
    report: Callable[[Report], None] = lambda _: None
    ready: Callable[[], None] = lambda: None
    """Called when Spark is there: it puts signal handlers of its own in place."""
    interval: float = 0.5
    stop: StopRequest = field(default_factory=StopRequest)


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
    return connection | ({"token": settings.token} if settings.token else {})


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
        watching.ready()
        watching.stage("checking the SQL")
        plan = check(file, spark, connection)
        _create_topics(file, client)
        reporter = Reporter(connection["servers"], connection.get("token"))
        stack.callback(reporter.close)
        return _Run(plan, connection, reporter, watching, once=once).to_its_end()


def _create_topics(file: PipelineFile, client: quivermq.Client) -> None:
    for sink in file.pipeline.sinks.values():
        if sink.topic:
            try:
                client.topic(sink.topic)
            except TopicNotFound:
                client.create_topic(sink.topic, partitions=sink.partitions)


class _Run:
    """The queries while they run."""

    def __init__(
        self,
        plan: Plan,
        connection: Mapping[str, str],
        reporter: Reporter,
        watching: Watching,
        *,
        once: bool,
    ) -> None:
        self._plan = plan
        self._connection = connection
        self._reporter = reporter
        self._watching = watching
        self._once = once
        self._queries: dict[str, StreamingQuery] = {}
        sinks = {each.name: SinkProgress(each.name, each.sink.target) for each in plan.outlets}
        self._progress = Progress(plan.file.name, _identity(plan.file), sinks)
        self._shown = 0.0
        self._published = 0.0
        self._signs: object = None

    def to_its_end(self) -> Report:
        with self._told_how_it_ends():
            self._tell()
            self._start()
            self._progress.state = "running"
            self._tell()
            while any(query.isActive for query in self._queries.values()):
                if self._watching.stop.count:
                    self._stop()
                    break
                self._look()
                if any(query.exception() for query in self._queries.values()):
                    self._stop()
                    break
                time.sleep(_LOOK_SECONDS)
            self._gather()
            self._raise_failure()
            self._progress.state = "stopped" if self._watching.stop.count else "finished"
        return self._report()

    @contextmanager
    def _told_how_it_ends(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            for query in self._queries.values():
                _end(query)
            self._progress.state = "failed"
            self._progress.trouble = str(error) or type(error).__name__
            raise
        finally:
            self._tell()

    def _start(self) -> None:
        from pyspark.errors import PySparkException  # noqa: PLC0415  (needs Spark)

        from quivermq.pipelines.failures import failure  # noqa: PLC0415
        from quivermq.pipelines.sinks import start  # noqa: PLC0415

        file = self._plan.file
        for outlet in self._plan.outlets:
            try:
                query = start(outlet, file, self._connection, once=self._once)
            except PySparkException as error:
                line = file.line("sinks", outlet.name)
                raise file.invalid(
                    Problem(line, f"sinks.{outlet.name}: {failure(str(error))}")
                ) from error
            self._queries[outlet.name] = query

    def _look(self) -> None:
        """Take what is told of finished batches; show it, and publish it now and then."""
        self._gather()
        now = time.monotonic()
        signs = [(each.batch, each.lag) for each in self._progress.sinks.values()]
        due = _REPORT_SECONDS if signs != self._signs else HEARTBEAT_SECONDS
        if now - self._published >= due:
            self._signs = signs
            self._tell()
        elif now - self._shown >= self._watching.interval:
            self._shown = now
            self._watching.report(self._report())

    def _gather(self) -> None:
        for name, query in self._queries.items():
            sink = self._progress.sinks[name]
            last = query.lastProgress
            if last is None or not sink.is_news({"timestamp": last["timestamp"]}):
                continue
            for told in query.recentProgress:
                each = json.loads(told.json)
                if sink.is_news(each):
                    sink.take(each, time.monotonic())
        self._progress.trouble = self._reporter.trouble

    def _stop(self) -> None:
        """Let the batch under way end, and stop before the next."""
        self._progress.state = "stopping"
        self._tell()
        deadline = time.monotonic() + _STOP_SECONDS
        waiting = {name: query for name, query in self._queries.items() if query.isActive}
        batches = {name: _batch_of(query) for name, query in waiting.items()}
        asked = self._watching.stop.count
        while (
            waiting and time.monotonic() < deadline and self._watching.stop.count <= max(asked, 1)
        ):
            for name, query in list(waiting.items()):
                is_between = not query.status["isTriggerActive"]
                if is_between or _batch_of(query) != batches[name] or not query.isActive:
                    _end(query)
                    del waiting[name]
            self._gather()
            self._watching.report(self._report())
            time.sleep(_LOOK_SECONDS / 4)
        for query in waiting.values():
            _end(query)

    def _raise_failure(self) -> None:
        from quivermq.pipelines.failures import failure  # noqa: PLC0415  (needs Spark)

        for name, query in self._queries.items():
            error = query.exception()
            # Whoever stops a service may stop Spark with it, before it could be asked.
            if error is not None and not self._watching.stop.count:
                raise PipelineFailed(f"sinks.{name}: {failure(str(error))}") from error

    def _report(self) -> Report:
        return self._progress.report(_now(), time.monotonic())

    def _tell(self) -> None:
        report = self._report()
        self._published = self._shown = time.monotonic()
        self._reporter.publish(report)
        self._watching.report(report)


def _batch_of(query: "StreamingQuery") -> object:
    last = query.lastProgress
    return last["batchId"] if last else None


def _end(query: "StreamingQuery") -> None:
    from py4j.protocol import Py4JError  # noqa: PLC0415  (needs Spark)
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        query.stop()
    except (PySparkException, Py4JError, OSError):
        # It takes longer than Spark waits, or Spark itself is gone: it ends with the process.
        return


def _identity(file: PipelineFile) -> dict[str, Any]:
    return {
        "run": uuid.uuid4().hex[:12],
        "started_at": _now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "file": str(file.path),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
