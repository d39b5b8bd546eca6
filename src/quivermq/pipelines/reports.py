"""Reports of pipelines on the topic `_pipelines`: any tool can read how a pipeline does.

Key: the pipeline's name. Value: JSON, as `Progress.report` makes it. The last one of each name
counts; the topic keeps a week, and no more than `MESSAGES_MAX`.
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

TOPIC: Final = "_pipelines"
MESSAGES_MAX: Final = 20_000
MAX_AGE_SECONDS: Final = 7 * 24 * 3600.0
HEARTBEAT_SECONDS: Final = 5.0
"""A pipeline that runs reports at least so often."""
SILENCE_SECONDS: Final = 4 * HEARTBEAT_SECONDS
"""One that says nothing for so long is not running, whatever it said last."""
FINAL_STATES: Final = frozenset({"finished", "stopped", "failed"})
_TIMEOUT_SECONDS: Final = 5.0
_REPEAT_SECONDS: Final = 2 * HEARTBEAT_SECONDS
_PATIENCE_SECONDS: Final = 300.0
"""So long a pipeline may be busy with one thing, and be taken for alive."""


Report = Mapping[str, Any]
"""As `Progress.report` makes it."""


@dataclass(slots=True)
class StopRequest:
    """How often somebody asked to stop: once ends after the batch that is under way, twice at
    once. Both lose and double nothing."""

    count: int = 0

    def ask(self) -> None:
        self.count += 1


@dataclass(slots=True)
class RunListener:
    """Who wants to hear: `stage` of what takes a while before it runs, `report` while it runs."""

    stage: Callable[[str], None] = lambda _: None
    report: Callable[[Report], None] = lambda _: None
    ready: Callable[[], None] = lambda: None
    """Called when Spark is there: it puts signal handlers of its own in place."""
    interval: float = 0.5
    stop: StopRequest = field(default_factory=StopRequest)
    broken: OSError | None = None
    """Why reports cannot be shown any more."""

    def show(self, report: Report) -> None:
        """Show a report. If that cannot be done, as into a pipe that was closed, ask to stop: who
        looked at it is gone."""
        if self.broken is not None:
            return
        try:
            self.report(report)
        except OSError as error:
            self.broken = error
            self.stop.ask()

    @property
    def missed(self) -> str:
        """Why somebody misses reports; whoever closes a pipe has seen enough."""
        if self.broken is None or isinstance(self.broken, BrokenPipeError):
            return ""
        return f"reports cannot be written: {self.broken.strerror or self.broken}"


class Reporter:
    """Publishes reports in the background: a broker that is away holds up no pipeline.

    What is not published when the next report comes is replaced by it. The last one is repeated
    while the pipeline says nothing, as it may while Spark starts or stops a query.
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
        """Publish what waits, within a few seconds."""
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
        """The last report, as of this moment; none if it was the last word, or is too old."""
        last = self._last
        if last is None or last["state"] in FINAL_STATES:
            return None
        if time.monotonic() - self._said > _PATIENCE_SECONDS:
            return None
        return {**last, "at": datetime.now(UTC).isoformat(timespec="milliseconds")}

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
    """Its state, as far as can be told: `silent` if it should have reported and did not."""
    state = str(report.get("state", ""))
    if state not in FINAL_STATES and age_seconds(report, now) > SILENCE_SECONDS:
        return "silent"
    return state


def age_seconds(report: Mapping[str, Any], now: datetime) -> float:
    """How long ago it came, by the clock of the broker that took it; else, when it was made."""
    at = datetime.fromisoformat(report.get("heard_at") or report["at"])
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (now - at).total_seconds())
