"""Publishes the reports of a pipeline to the topic `_pipelines`, and passes them to the caller.

Key: the pipeline's name. Value: JSON, as `PipelineProgress.report` makes it. The last one of each
name counts; the topic keeps a week, and at most `MESSAGES_MAX`.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import quivermq
from quivermq.errors import QuiverError, TopicExists, TopicNotFound
from quivermq.moments import format_moment

TOPIC: Final = "_pipelines"
MESSAGES_MAX: Final = 20_000
MAX_AGE_SECONDS: Final = 7 * 24 * 3600.0
HEARTBEAT_SECONDS: Final = 5.0
"""A running pipeline reports at least so often."""
SILENCE_SECONDS: Final = 4 * HEARTBEAT_SECONDS
"""A pipeline without a report for so long is not running."""
FINAL_STATES: Final = frozenset({"finished", "stopped", "failed"})
_TIMEOUT_SECONDS: Final = 5.0
_REPEAT_SECONDS: Final = 2 * HEARTBEAT_SECONDS
_PATIENCE_SECONDS: Final = 300.0
"""For so long the last report is repeated while the pipeline is busy."""

Report = Mapping[str, Any]
"""As `PipelineProgress.report` makes it."""


@dataclass(slots=True)
class StopRequest:
    """The number of requests to stop: one ends the run after the batch under way, two at once.
    Neither loses or repeats rows."""

    count: int = 0

    def ask(self) -> None:
        self.count += 1


@dataclass(slots=True)
class RunListener:
    """Callbacks of a run: `stage` for the steps before it runs, `report` while it runs."""

    stage: Callable[[str], None] = lambda _: None
    report: Callable[[Report], None] = lambda _: None
    ready: Callable[[], None] = lambda: None
    """Called when Spark has started: Spark sets signal handlers of its own."""
    interval: float = 0.5
    stop: StopRequest = field(default_factory=StopRequest)
    broken: OSError | None = None
    """The error that ended the reports."""

    def show(self, report: Report) -> None:
        """Show a report. If that fails, as for a closed pipe, ask the run to stop."""
        if self.broken is not None:
            return
        try:
            self.report(report)
        except OSError as error:
            self.broken = error
            self.stop.ask()

    @property
    def failure(self) -> str:
        """Why reports were not shown; empty if the reader closed the pipe."""
        if self.broken is None or isinstance(self.broken, BrokenPipeError):
            return ""
        return f"reports cannot be written: {self.broken.strerror or self.broken}"


class Reporter:
    """Publishes reports in the background: a broker that does not answer delays no pipeline.

    The next report replaces one that is not published yet. The last one is repeated while there is
    no new one, as when Spark starts or stops a query.
    """

    def __init__(
        self, servers: str, token: str | None = None, *, repeat: float = _REPEAT_SECONDS
    ) -> None:
        self.trouble = ""
        self._repeat = repeat
        self._last: Mapping[str, Any] | None = None
        self._said = 0.0
        self._servers = servers
        self._token = token
        self._waiting: Mapping[str, Any] | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="pipeline-reports", daemon=True)
        self._thread.start()

    def publish(self, report: Mapping[str, Any]) -> None:
        with self._changed:
            self._waiting = report
            self._changed.notify()

    def close(self) -> None:
        """Publish the last report, within a few seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(2 * _TIMEOUT_SECONDS)

    def _run(self) -> None:
        client: quivermq.Client | None = None
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._waiting is not None or self._closing, self._repeat
                )
                report, self._waiting = self._waiting, None
            if report is None and self._closing:
                break
            report = self._repeat_last() if report is None else self._remember(report)
            if report is None:
                continue
            try:
                if client is None:
                    client = self._connect()
                client.produce(TOPIC, json.dumps(report), key=str(report["pipeline"]))
                self.trouble = ""
            except QuiverError as error:
                self.trouble = f"progress cannot be published: {error}"
        if client is not None:
            with contextlib.suppress(QuiverError):
                client.close()

    def _remember(self, report: Mapping[str, Any]) -> Mapping[str, Any]:
        self._last, self._said = report, time.monotonic()
        return report

    def _repeat_last(self) -> Mapping[str, Any] | None:
        """The last report with the present time; None if it is final or too old."""
        last = self._last
        if last is None or last["state"] in FINAL_STATES:
            return None
        if time.monotonic() - self._said > _PATIENCE_SECONDS:
            return None
        return {**last, "at": format_moment(datetime.now(UTC))}

    def _connect(self) -> quivermq.Client:
        client = quivermq.connect(self._servers, token=self._token, timeout=_TIMEOUT_SECONDS)
        try:
            client.topic(TOPIC)
        except TopicNotFound:
            retention = quivermq.Retention(max_age=MAX_AGE_SECONDS, max_messages=MESSAGES_MAX)
            # Another pipeline may start at the same moment.
            with contextlib.suppress(TopicExists):
                client.create_topic(TOPIC, partitions=1, retention=retention)
        except QuiverError:
            client.close()
            raise
        return client


def state_of(report: Mapping[str, Any], now: datetime) -> str:
    """The state of a report; `silent` if a newer report is overdue."""
    state = str(report.get("state", ""))
    if state not in FINAL_STATES and age_seconds(report, now) > SILENCE_SECONDS:
        return "silent"
    return state


def age_seconds(report: Mapping[str, Any], now: datetime) -> float:
    """The age of a report, by the clock of the broker that stored it, else by its own."""
    at = datetime.fromisoformat(report.get("heard_at") or report["at"])
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (now - at).total_seconds())
