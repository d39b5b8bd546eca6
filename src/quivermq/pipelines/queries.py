"""Runs the Spark query of one sink: start, restart after failures, stop between batches."""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from quivermq.errors import QuiverError
from quivermq.pipelines.loading import PipelineFile, Problem
from quivermq.pipelines.progress import SinkProgress
from quivermq.pipelines.sinks import PreparedSink, start
from quivermq.spark import failure, may_pass

_ATTEMPTS: Final = 4
"""Failures in a row, without a finished batch between them, that end the pipeline."""
_PAUSE_SECONDS: Final = 2.0
_FAILURE_SECONDS: Final = 60.0
"""How long a failure is reported after the query was restarted."""
_MISSING_FILE: Final = re.compile(r"FILE_NOT_EXIST|FileNotFound(?:Exception|Error)")


class PipelineFailed(QuiverError):
    """A query of the pipeline ended with an error; everything up to its last batch is done."""


class SinkQuery:
    """The query of one sink, over all its restarts."""

    def __init__(
        self,
        prepared: PreparedSink,
        file: PipelineFile,
        connection: Mapping[str, str],
        progress: SinkProgress,
        *,
        once: bool,
        prepare_again: Callable[[], Sequence[PreparedSink]],
    ) -> None:
        self._prepared = prepared
        self._prepare_again = prepare_again
        self._file = file
        self._connection = connection
        self._progress = progress
        self._once = once
        self._query: StreamingQuery | None = None
        self._failures = 0
        self._rows_batch: int | None = None
        self._is_stale = False
        self._last_failure = ""
        self._failed_at = 0.0
        self._batch_when_asked: object = None

    def start(self) -> None:
        """Start the query. Raises `InvalidPipeline` if Spark refuses it."""
        self._progress.resume(last_offsets(f"{self._file.checkpoint}/{self._prepared.name}"))
        try:
            self._query = start(self._prepared, self._file, self._connection, once=self._once)
        except PySparkException as error:
            name = self._prepared.name
            line = self._file.line("sinks", name)
            raise self._file.invalid(
                Problem(line, f"sinks.{name}: {failure(str(error))}")
            ) from error

    def is_under_way(self) -> bool:
        """Whether it has initialised its sources, or has ended."""
        query = self._query
        return query is None or not query.isActive or "Initializing" not in query.status["message"]

    @property
    def is_done(self) -> bool:
        """Whether it ended without an error."""
        query = self._query
        return query is not None and not query.isActive and query.exception() is None

    @property
    def last_failure(self) -> str:
        """The last failure, if it is recent."""
        is_fresh = time.monotonic() - self._failed_at < _FAILURE_SECONDS
        return self._last_failure if is_fresh else ""

    def restart_if_failed(self) -> None:
        """Restart the query if it failed. Raises `PipelineFailed` if a retry cannot help."""
        now = time.monotonic()
        if self._query is None:
            if now - self._failed_at > _PAUSE_SECONDS * self._failures:
                self._refresh_views()
                self.start()
            return
        error = None if self._query.isActive else self._query.exception()
        if error is None:
            return
        self.collect_progress()
        if self._progress.batch != self._rows_batch:
            self._failures = 0
        self._rows_batch = self._progress.batch
        self._failures += 1
        message = f"sinks.{self._prepared.name}: {failure(str(error))}"
        if self._failures >= _ATTEMPTS or not may_pass(str(error)):
            raise PipelineFailed(message) from error
        self._is_stale = is_missing_file(str(error))
        self._last_failure = f"{message} (tried again)"
        self._failed_at = now
        self._query = None

    def _refresh_views(self) -> None:
        """Make the views again if files are missing: a view lists the files of its tables, and
        compaction replaces them."""
        if self._is_stale:
            name = self._prepared.name
            self._prepared = next(each for each in self._prepare_again() if each.name == name)
            self._is_stale = False

    def collect_progress(self) -> None:
        """Take Spark's progress of the batches since the last call."""
        if self._query is None:
            return
        last = self._query.lastProgress
        if last is None or not self._progress.is_news({"timestamp": last["timestamp"]}):
            return
        for batch in self._query.recentProgress:
            each = json.loads(batch.json)
            if self._progress.is_news(each):
                self._progress.take(each, time.monotonic())

    def ask_to_stop(self) -> None:
        self._batch_when_asked = self._batch()

    def stop_between_batches(self) -> bool:
        """Stop it if no batch is under way, or if another has begun; returns whether it ended."""
        query = self._query
        if query is None or not query.isActive:
            return True
        if query.status["isTriggerActive"] and self._batch() == self._batch_when_asked:
            return False
        self.end()
        return True

    def end(self) -> None:
        """Stop it at once; an unfinished batch is repeated after a restart."""
        if self._query is None:
            return
        try:
            self._query.stop()
        except (PySparkException, Py4JError, OSError):
            # Stopping takes too long, or Spark has ended: the query ends with the process.
            return

    def _batch(self) -> object:
        last = self._query.lastProgress if self._query else None
        return last["timestamp"] if last else None


def is_missing_file(text: str) -> bool:
    """Whether a file is missing that existed when the query was planned."""
    return _MISSING_FILE.search(text) is not None


def last_offsets(checkpoint: str) -> list[dict[str, Any]]:
    """The end offsets of the last finished batch in a checkpoint, by source; empty if unknown.

    A file of `offsets` has a version, a line of settings, and a line for each source.
    """
    folder = Path(checkpoint)
    try:
        done = [int(each.name) for each in (folder / "commits").iterdir() if each.name.isdecimal()]
        lines = (folder / "offsets" / str(max(done))).read_text().splitlines()
        found = [json.loads(line) for line in lines[2:] if line.startswith("{")]
    except (OSError, ValueError):
        return []
    return [each for each in found if isinstance(each, dict)]
