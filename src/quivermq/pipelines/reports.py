"""Reports of pipelines on the topic `_pipelines`: any tool can read how a pipeline does.

Key: the pipeline's name. Value: JSON, as `Progress.report` makes it. The last one of each name
counts; the topic keeps a week, and no more than `MESSAGES_MAX`.
"""

import contextlib
import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import quivermq
from quivermq.errors import QuiverError, TopicNotFound

TOPIC: Final = "_pipelines"
MESSAGES_MAX: Final = 20_000
MAX_AGE_SECONDS: Final = 7 * 24 * 3600.0
HEARTBEAT_SECONDS: Final = 5.0
"""A pipeline that runs reports at least so often."""
SILENCE_SECONDS: Final = 4 * HEARTBEAT_SECONDS
"""One that says nothing for so long is not running, whatever it said last."""
FINAL_STATES: Final = frozenset({"finished", "stopped", "failed"})
_TIMEOUT_SECONDS: Final = 5.0


class Reporter:
    """Publishes reports in the background: a broker that is away holds up no pipeline.

    What is not published when the next report comes is replaced by it.
    """

    def __init__(self, servers: str, token: str | None = None) -> None:
        self.trouble = ""
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
                self._changed.wait_for(lambda: self._waiting is not None or self._closing)
                report, self._waiting = self._waiting, None
            if report is None:
                break
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

    def _connect(self) -> quivermq.Client:
        client = quivermq.connect(self._servers, token=self._token, timeout=_TIMEOUT_SECONDS)
        try:
            client.topic(TOPIC)
        except TopicNotFound:
            retention = quivermq.Retention(max_age=MAX_AGE_SECONDS, max_messages=MESSAGES_MAX)
            client.create_topic(TOPIC, partitions=1, retention=retention)
        return client


def latest_reports(client: quivermq.Client) -> dict[str, dict[str, Any]]:
    """The last report of each pipeline, by name; none if none ever ran."""
    found: dict[str, dict[str, Any]] = {}
    try:
        for batch in client.read(TOPIC).batches():
            names, values = batch.column("key").to_pylist(), batch.column("value")
            last = {name: row for row, name in enumerate(names) if name is not None}
            for name, row in last.items():
                # Anybody may write to the topic: what is no report is none.
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    report = json.loads(values[row].as_py())
                    datetime.fromisoformat(report["at"])
                    found[name.decode()] = report
    except TopicNotFound:
        return {}
    return dict(sorted(found.items()))


def state_of(report: Mapping[str, Any], now: datetime) -> str:
    """Its state, as far as can be told: `silent` if it should have reported and did not."""
    state = str(report.get("state", ""))
    if state not in FINAL_STATES and age_seconds(report, now) > SILENCE_SECONDS:
        return "silent"
    return state


def age_seconds(report: Mapping[str, Any], now: datetime) -> float:
    at = datetime.fromisoformat(report["at"])
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (now - at).total_seconds())
