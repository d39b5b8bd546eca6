"""Reads the reports of pipelines from the topic `_pipelines`.

Any client may write there: messages that are no valid reports are skipped, and the one before
counts.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

import quivermq
from quivermq.errors import TopicNotFound
from quivermq.moments import format_moment
from quivermq.pipelines.reports import FINAL_STATES, SILENCE_SECONDS, TOPIC

Heard = tuple[datetime, bytes]
"""When a broker stored a message, by its clock; and its value."""

_SILENCE: Final = timedelta(seconds=SILENCE_SECONDS)


def _check_time(value: Any) -> Any:
    datetime.fromisoformat(value)
    return value


Rate = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _SinkShape(_Shape):
    """The fields of a sink that are shown."""

    sink: str
    target: str = ""
    batch: Count | None = None
    rows: Count = 0
    rows_per_second: Rate | None = None
    lag: Count | None = None
    batch_ms: Count = 0


class _ReportShape(_Shape):
    """The fields of a pipeline that are shown."""

    at: Annotated[str, BeforeValidator(_check_time)]
    state: str = ""
    run: str = ""
    host: str = "?"
    pid: Count | None = None
    rows: Count = 0
    rows_per_second: Rate | None = None
    lag: Count | None = None
    trouble: str = ""
    sinks: list[_SinkShape] = Field(default_factory=list)


def latest_reports(client: quivermq.Client) -> dict[str, dict[str, Any]]:
    """The last report of each pipeline, by name."""
    heard: dict[bytes, list[Heard]] = {}
    try:
        for batch in client.read(TOPIC).batches():
            columns = (batch.column(name).to_pylist() for name in ("key", "timestamp", "value"))
            for key, time, value in zip(*columns, strict=True):
                if key is not None and value is not None:
                    heard.setdefault(key, []).append((time, value))
    except TopicNotFound:
        return {}
    return reports_by_name(heard)


def reports_by_name(heard: Mapping[bytes, Sequence[Heard]]) -> dict[str, dict[str, Any]]:
    """The last report of each pipeline, from messages by key, each key's in their order."""
    found = {}
    for key, messages in sorted(heard.items()):
        name = key.decode("utf-8", "backslashreplace")
        report = latest_report(name, messages)
        if report is not None:
            found[name] = report
    return found


def latest_report(name: str, messages: Sequence[Heard]) -> dict[str, Any] | None:
    """The last report among the messages of one key, which are in their order.

    If two runs report under one name, its `trouble` says so: each hides the reports of the other.
    """
    last: dict[str, Any] | None = None
    latest = datetime.max.replace(tzinfo=UTC)
    others: dict[str, dict[str, Any]] = {}
    for heard, value in reversed(messages):
        report = _report_of(name, heard, value)
        if report is None:
            continue
        if last is None:
            last, latest = report, heard
        elif latest - heard > _SILENCE:
            break
        elif report["run"] != last["run"]:
            others.setdefault(report["run"], report)
        elif rivals := [each for each in others.values() if each["state"] not in FINAL_STATES]:
            rival = (
                f"another pipeline of this name reports too, from {rivals[0]['host']} (process "
                f"{rivals[0]['pid']}): give each a name of its own"
            )
            last["trouble"] = "; ".join(each for each in (last["trouble"], rival) if each)
            break
    return last


def _report_of(name: str, heard: datetime, value: bytes) -> dict[str, Any] | None:
    try:
        report = _ReportShape.model_validate(json.loads(value)).model_dump()
    except (ValidationError, ValueError, TypeError, RecursionError):
        return None
    return {**report, "pipeline": name, "heard_at": format_moment(heard)}
