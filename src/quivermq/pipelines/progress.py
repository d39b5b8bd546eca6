"""The progress of a pipeline, made of the reports that Spark gives after each batch.

Pure: it gets Spark's progress and the time, and makes reports.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Ends = Mapping[str, Mapping[str, int]]
"""By topic and partition, the offset behind the last message."""

RATE_SECONDS: Final = 15.0
"""Rows per second are those of batches that ended within this time."""


@dataclass(slots=True)
class SinkProgress:
    """The progress of one sink since the start."""

    name: str
    target: str
    batch: int | None = None
    rows: int = 0
    batch_ms: int = 0
    watermark: str | None = None
    bad_rows: dict[str, int] = field(default_factory=dict)
    _seen: str = ""
    _sources: list[Mapping[str, Any]] = field(default_factory=list)
    _recent: deque[tuple[float, float, int]] = field(default_factory=deque)

    def is_news(self, progress: Mapping[str, Any]) -> bool:
        return str(progress["timestamp"]) > self._seen

    def resume(self, vectors: Sequence[Mapping[str, Any]]) -> None:
        """Continue from the end offsets of an earlier run, by source."""
        self._sources = [{"endOffset": vector, "latestOffset": None} for vector in vectors]

    def take(self, progress: Mapping[str, Any], now: float) -> None:
        """Add Spark's progress of one batch, or of an idle trigger."""
        self._seen = str(progress["timestamp"])
        rows = int(progress.get("numInputRows") or 0)
        self.batch = int(progress["batchId"])
        self.rows += rows
        took_ms = int((progress.get("durationMs") or {}).get("triggerExecution", 0))
        if rows:
            self.batch_ms = took_ms
            self._recent.append((now - took_ms / 1_000, now, rows))
        self._sources = [
            source for source in progress.get("sources") or [] if source.get("endOffset")
        ] or self._sources
        self.watermark = (progress.get("eventTime") or {}).get("watermark") or self.watermark
        for source, counts in (progress.get("observedMetrics") or {}).items():
            found = int(counts.get("bad") or 0)
            self.bad_rows[source] = self.bad_rows.get(source, 0) + found

    def rows_per_second(self, now: float) -> float:
        while self._recent and self._recent[0][1] < now - RATE_SECONDS:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        span = max(now - self._recent[0][0], 0.001)
        return sum(rows for _, _, rows in self._recent) / span

    @property
    def topics(self) -> set[str]:
        """The topics that it reads."""
        return {topic for source in self._sources for topic in source["endOffset"]}

    def lag(self, ends: Ends) -> int | None:
        """The number of messages beyond its last batch; None if it is not known."""
        lags = [lag_of(source, ends) for source in self._sources]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if known else None

    def report(self, now: float, ends: Ends) -> dict[str, Any]:
        return {
            "sink": self.name,
            "target": self.target,
            "batch": self.batch,
            "rows": self.rows,
            "rows_per_second": round(self.rows_per_second(now), 1),
            "lag": self.lag(ends),
            "batch_ms": self.batch_ms,
            "watermark": self.watermark,
        }


@dataclass(slots=True)
class PipelineProgress:
    """The progress of all sinks of a pipeline, and its state."""

    pipeline: str
    run: Mapping[str, Any]
    sinks: dict[str, SinkProgress]
    state: str = "starting"
    troubles: list[str] = field(default_factory=list)
    failure: str = ""
    ends: Ends = field(default_factory=dict)
    """The ends of topics, newer than Spark's: a query that is stuck must not look idle."""

    def report(self, at: str, now: float) -> dict[str, Any]:
        """The report as it is published: plain JSON values."""
        sinks = [sink.report(now, self.ends) for sink in self.sinks.values()]
        lags = [sink["lag"] for sink in sinks if sink["lag"] is not None]
        return {
            "pipeline": self.pipeline,
            "state": self.state,
            "at": at,
            **self.run,
            # Each sink reads the sources by itself: the largest lag counts.
            "rows": max((sink["rows"] for sink in sinks), default=0),
            "rows_per_second": max((sink["rows_per_second"] for sink in sinks), default=0.0),
            "lag": max(lags) if lags else None,
            "bad_rows": self.bad_rows,
            "trouble": self.failure or "; ".join([*self.troubles, *self._bad_row_notes()]),
            "sinks": sinks,
        }

    @property
    def bad_rows(self) -> dict[str, int]:
        """By source, the rows that could not be parsed."""
        found: dict[str, int] = {}
        for sink in self.sinks.values():
            for source, count in sink.bad_rows.items():
                found[source] = max(found.get(source, 0), count)
        return {source: count for source, count in found.items() if count}

    def _bad_row_notes(self) -> list[str]:
        return [
            f"{count:,} rows of {source} could not be parsed (they are in the view {source}_bad)"
            for source, count in self.bad_rows.items()
        ]


def lag_of(source: Mapping[str, Any], ends: Ends) -> int | None:
    """The number of messages that a source is behind, by Spark's progress and the ends of topics.

    Both are offset vectors as Spark keeps them: `{"orders": {"0": 12, "id": "..."}}`.
    """
    latest, end = source.get("latestOffset"), source.get("endOffset")
    if not isinstance(end, Mapping) or not (isinstance(latest, Mapping) or ends):
        return None
    latest_ends = latest if isinstance(latest, Mapping) else {}
    return sum(
        _behind(latest_ends.get(topic) or {}, ends.get(topic) or {}, end.get(topic) or {})
        for topic in {*latest_ends, *end}
    )


def _behind(latest_ends: Mapping[str, Any], seen: Mapping[str, int], end: Mapping[str, Any]) -> int:
    began = latest_ends.get("began") or {}
    partitions = {each for each in (*latest_ends, *seen) if each.isdecimal()}
    return sum(
        max(0, latest_ends.get(each, 0) - done, seen.get(each, 0) - done)
        for each in partitions
        for done in [end.get(each, began.get(each, 0))]
    )
