"""A pipeline while it runs: its queries, and what is told of them."""

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from quivermq.pipelines.ends import TopicEnds
from quivermq.pipelines.loading import PipelineFile
from quivermq.pipelines.progress import Progress, SinkProgress
from quivermq.pipelines.queries import PipelineFailed, SinkQuery
from quivermq.pipelines.reports import HEARTBEAT_SECONDS, Reporter
from quivermq.pipelines.sinks import Outlet
from quivermq.pipelines.watching import Report, Watching
from quivermq.spark.failures import failure

_LOOK_SECONDS: Final = 0.2
_REPORT_SECONDS: Final = 5.0
_STOP_SECONDS: Final = 120.0
_START_SECONDS: Final = 20.0
"""Queries begin one after the other, since each starts a process for which Spark waits 10 seconds
and no longer; so long one may hold up the next."""


class Running:
    """All queries of a pipeline, watched until they end."""

    def __init__(
        self,
        file: PipelineFile,
        outlets: Sequence[Outlet],
        connection: Mapping[str, str],
        reporter: Reporter,
        ends: TopicEnds,
        watching: Watching,
        *,
        once: bool,
        again: Callable[[], Sequence[Outlet]],
    ) -> None:
        """`again` makes the outlets anew, of what tables hold at that moment."""
        sinks = {each.name: SinkProgress(each.name, each.sink.target) for each in outlets}
        self._progress = Progress(file.name, _identity(file), sinks)
        self._queries = [
            SinkQuery(outlet, file, connection, sinks[outlet.name], once=once, again=again)
            for outlet in outlets
        ]
        self._spark = outlets[0].frame.sparkSession
        self._reporter = reporter
        self._ends = ends
        self._watching = watching
        self._shown = 0.0
        self._published = 0.0
        self._signs: object = None

    def to_their_end(self) -> Report:
        with self._told_how_it_ends():
            self._tell()
            for query in self._queries:
                query.start()
                self._wait_until(query.is_under_way, _START_SECONDS)
            self._progress.state = "running"
            self._tell()
            while not all(query.is_done for query in self._queries):
                if self._watching.stop.count:
                    self._stop()
                    break
                for query in self._queries:
                    query.go_on()
                self._look()
                time.sleep(_LOOK_SECONDS)
            self._gather()
            if self._watching.missed:
                raise PipelineFailed(self._watching.missed)
            self._progress.state = "stopped" if self._watching.stop.count else "finished"
        return self._report()

    @contextmanager
    def _told_how_it_ends(self) -> Iterator[None]:
        try:
            yield
        except (Py4JError, OSError) as error:
            if not isinstance(error, Py4JNetworkError) and not is_gone(self._spark):
                self._fail(failure(str(error)) or type(error).__name__)
                raise PipelineFailed(self._progress.failure) from error
            # Whoever stops a service may stop Spark with it, before it could be asked.
            self._progress.state = "stopped" if self._watching.stop.count else "failed"
            if not self._watching.stop.count:
                self._progress.failure = "Spark has ended, and not by itself: was it killed?"
                raise PipelineFailed(self._progress.failure) from error
        except BaseException as error:
            self._fail(str(error) or type(error).__name__)
            raise
        finally:
            self._tell()

    def _fail(self, why: str) -> None:
        self._progress.failure = why
        with suppress(Py4JError, OSError):
            self._stop()
        self._progress.state = "failed"

    def _look(self) -> None:
        """Take what is told of finished batches; show it, and publish it now and then."""
        self._gather()
        now = time.monotonic()
        signs = [(each.batch, each.rows) for each in self._progress.sinks.values()]
        due = _REPORT_SECONDS if signs != self._signs else HEARTBEAT_SECONDS
        if now - self._published >= due:
            self._signs = signs
            self._tell()
        else:
            self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown >= self._watching.interval:
            self._shown = now
            self._watching.tell(self._report())

    def _gather(self) -> None:
        for query in self._queries:
            query.gather()
        self._ends.topics = {
            topic for sink in self._progress.sinks.values() for topic in sink.topics
        }
        self._progress.ends = self._ends.known
        setbacks = [query.setback for query in self._queries]
        self._progress.troubles = [each for each in (*setbacks, self._reporter.trouble) if each]

    def _stop(self) -> None:
        """Let the batches under way end, and stop before the next."""
        self._progress.state = "stopping"
        self._tell()
        for query in self._queries:
            query.ask_to_stop()
        asked = max(1, self._watching.stop.count)
        deadline = time.monotonic() + _STOP_SECONDS
        left = self._queries
        while left := [query for query in left if not query.stops_between_batches()]:
            if time.monotonic() > deadline or self._watching.stop.count > asked:
                break
            self._look()
            time.sleep(_LOOK_SECONDS / 4)
        for query in self._queries:
            query.end()

    def _wait_until(self, is_so: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_so() and time.monotonic() < deadline and not self._watching.stop.count:
            self._look()
            time.sleep(_LOOK_SECONDS / 4)

    def _report(self) -> Report:
        return self._progress.report(_now(), time.monotonic())

    def _tell(self) -> None:
        report = self._report()
        self._published = self._shown = time.monotonic()
        self._reporter.publish(report)
        self._watching.tell(report)


def is_gone(spark: SparkSession) -> bool:
    """Whether its Java has ended, or its context: by itself, or killed."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return False
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())  # noqa: SLF001  (no public way)
    except (Py4JError, OSError, AttributeError):  # of a context that was stopped here
        return True


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
