"""Runs the queries of a pipeline until they end, and reports their progress."""

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JNetworkError

import quivermq
from quivermq.errors import QuiverError
from quivermq.moments import format_moment
from quivermq.pipelines.loading import PipelineFile
from quivermq.pipelines.progress import PipelineProgress, SinkProgress
from quivermq.pipelines.queries import PipelineFailed, SinkQuery
from quivermq.pipelines.reports import HEARTBEAT_SECONDS, Report, Reporter, RunListener
from quivermq.pipelines.sinks import PreparedSink
from quivermq.spark import failure, has_ended

_POLL_SECONDS: Final = 0.2
_REPORT_SECONDS: Final = 5.0
_STOP_SECONDS: Final = 120.0
_ENDS_SECONDS: Final = 2.0
_FIRST_ENDS_SECONDS: Final = 0.2
_START_SECONDS: Final = 20.0
"""The longest delay between the starts of two queries. They start one after the other: each starts
a process, and Spark waits only 10 seconds for it."""


class PipelineLoop:
    """Runs all queries of a pipeline."""

    def __init__(
        self,
        file: PipelineFile,
        prepared_sinks: Sequence[PreparedSink],
        connection: Mapping[str, str],
        reporter: Reporter,
        ends: "TopicEnds",
        listener: RunListener,
        *,
        once: bool,
        prepare_again: Callable[[], Sequence[PreparedSink]],
    ) -> None:
        """`prepare_again` makes the sinks again, over the present files of tables."""
        sinks = {each.name: SinkProgress(each.name, each.sink.target) for each in prepared_sinks}
        self._progress = PipelineProgress(file.name, _identity(file), sinks)
        self._queries = [
            SinkQuery(
                prepared,
                file,
                connection,
                sinks[prepared.name],
                once=once,
                prepare_again=prepare_again,
            )
            for prepared in prepared_sinks
        ]
        self._spark = prepared_sinks[0].frame.sparkSession
        self._reporter = reporter
        self._ends = ends
        self._listener = listener
        self._shown = 0.0
        self._published = 0.0
        self._signs: object = None

    def run_to_end(self) -> Report:
        with self._report_end():
            self._publish()
            for query in self._queries:
                query.start()
                self._wait_until(query.is_under_way, _START_SECONDS)
            self._progress.state = "running"
            self._publish()
            while not all(query.is_done for query in self._queries):
                if self._listener.stop.count:
                    self._stop()
                    break
                for query in self._queries:
                    query.restart_if_failed()
                self._poll()
                time.sleep(_POLL_SECONDS)
            self._collect_progress()
            if self._listener.failure:
                raise PipelineFailed(self._listener.failure)
            self._progress.state = "stopped" if self._listener.stop.count else "finished"
        return self._report()

    @contextmanager
    def _report_end(self) -> Iterator[None]:
        try:
            yield
        except (Py4JError, OSError) as error:
            if not isinstance(error, Py4JNetworkError) and not has_ended(self._spark):
                self._fail(failure(str(error)) or type(error).__name__)
                raise PipelineFailed(self._progress.failure) from error
            # A service manager may stop Spark together with this process.
            self._progress.state = "stopped" if self._listener.stop.count else "failed"
            if not self._listener.stop.count:
                self._progress.failure = "Spark has ended unexpectedly: was it killed?"
                raise PipelineFailed(self._progress.failure) from error
        except BaseException as error:
            self._fail(str(error) or type(error).__name__)
            raise
        finally:
            self._publish()

    def _fail(self, why: str) -> None:
        self._progress.failure = why
        with suppress(Py4JError, OSError):
            self._stop()
        self._progress.state = "failed"

    def _poll(self) -> None:
        """Collect progress, show it, and publish it when a report is due."""
        self._collect_progress()
        now = time.monotonic()
        signs = [(each.batch, each.rows) for each in self._progress.sinks.values()]
        due = _REPORT_SECONDS if signs != self._signs else HEARTBEAT_SECONDS
        if now - self._published >= due:
            self._signs = signs
            self._publish()
        else:
            self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown >= self._listener.interval:
            self._shown = now
            self._listener.show(self._report())

    def _collect_progress(self) -> None:
        for query in self._queries:
            query.collect_progress()
        self._ends.topics = {
            topic for sink in self._progress.sinks.values() for topic in sink.topics
        }
        self._progress.ends = self._ends.known
        failures = [query.last_failure for query in self._queries]
        self._progress.troubles = [each for each in (*failures, self._reporter.trouble) if each]

    def _stop(self) -> None:
        """Finish the batches under way, and stop before the next."""
        self._progress.state = "stopping"
        self._publish()
        for query in self._queries:
            query.ask_to_stop()
        asked = max(1, self._listener.stop.count)
        deadline = time.monotonic() + _STOP_SECONDS
        left = self._queries
        while left := [query for query in left if not query.stop_between_batches()]:
            if time.monotonic() > deadline or self._listener.stop.count > asked:
                break
            self._poll()
            time.sleep(_POLL_SECONDS / 4)
        for query in self._queries:
            query.end()

    def _wait_until(self, is_so: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_so() and time.monotonic() < deadline and not self._listener.stop.count:
            self._poll()
            time.sleep(_POLL_SECONDS / 4)

    def _report(self) -> Report:
        return self._progress.report(_now(), time.monotonic())

    def _publish(self) -> None:
        report = self._report()
        self._published = self._shown = time.monotonic()
        self._reporter.publish(report)
        self._listener.show(report)


class TopicEnds:
    """Asks for the ends of `topics` in the background; `known` is replaced as a whole."""

    def __init__(self, client: quivermq.Client) -> None:
        self.topics: Set[str] = frozenset()
        self.known: Mapping[str, Mapping[str, int]] = {}
        self._client = client
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pipeline-ends", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(_ENDS_SECONDS)

    def _run(self) -> None:
        while not self._closing.wait(_ENDS_SECONDS if self.known else _FIRST_ENDS_SECONDS):
            seen: dict[str, dict[str, int]] = {}
            try:
                for topic in sorted(self.topics):
                    held = self._client.offsets(topic).partitions
                    seen[topic] = {str(number): place.end for number, place in held.items()}
            except QuiverError:
                continue  # keep the last known ends
            self.known = seen


def _identity(file: PipelineFile) -> dict[str, Any]:
    return {
        "run": uuid.uuid4().hex[:12],
        "started_at": _now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "file": str(file.path),
    }


def _now() -> str:
    return format_moment(datetime.now(UTC))
