"""Shows a running pipeline: a live table on a terminal, otherwise a line every ten seconds.

With `--json`, one JSON document a line for each report.
"""

import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from quivermq.cli.output import print_error, print_line, printable, remark, stderr_console, table
from quivermq.quantities import format_duration

_LINE_SECONDS: Final = 10.0


class PipelineScreen:
    """Shows one pipeline."""

    def __init__(self, name: str, *, as_json: bool) -> None:
        self._name = name
        self._as_json = as_json
        self._console = stderr_console()
        self._started = time.monotonic()
        self._is_live = self._console.is_terminal and not as_json
        self._live = Live(console=self._console, transient=True, refresh_per_second=8)
        self._last_line = 0.0
        self._last_state = ""
        self._trouble = ""

    @property
    def interval(self) -> float:
        return 0.5 if self._is_live else 1.0

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def stage(self, what: str) -> None:
        """Show a step that takes a while before the pipeline runs."""
        if self._is_live:
            self._live.update(Spinner("dots", Text(f" {self._name}: {what} …", style="dim")))
        elif not self._as_json:
            remark(f"{self._name}: {what}")

    def stopping(self, *, again: bool) -> None:
        text = "stopping at once" if again else "stopping after this batch; Ctrl-C again: at once"
        if not self._as_json:
            self._live.console.print(Text(f"{self._name}: {text}", style="yellow"))

    def report(self, report: Mapping[str, Any]) -> None:
        """Show the progress."""
        if self._as_json:
            sys.stdout.write(json.dumps(report) + "\n")
            sys.stdout.flush()
        elif self._is_live:
            self._live.update(self._picture(make_printable(report)))
        else:
            self._line(make_printable(report))

    def end(self, report: Mapping[str, Any]) -> None:
        """Print the last report, which stays on the screen."""
        self._live.stop()
        if self._as_json:
            return
        report = make_printable(report)
        for sink in report["sinks"]:
            print_line(_sentence(sink))
        took = format_duration(round(time.monotonic() - self._started))
        print_line(f"{self._name} {report['state']} after {took}", "bold")
        if report["trouble"]:
            print_error(report["trouble"], label="warning")

    def _picture(self, report: Mapping[str, Any]) -> Group:
        lasted = format_duration(round(time.monotonic() - self._started))
        head = Text.assemble(
            (self._name, "bold"),
            "  ",
            (report["state"], "green"),
            f" for {lasted}, Ctrl-C stops it",
        )
        parts: list[Text | Table] = [head, sinks_table(report)]
        if report["trouble"]:
            parts.append(Text(f"warning: {report['trouble']}", style="yellow"))
        return Group(*parts)

    def _line(self, report: Mapping[str, Any]) -> None:
        now = time.monotonic()
        # The reason of a failure comes at the end, as the error.
        is_open = report["state"] in {"starting", "running"}
        if is_open and report["trouble"] and report["trouble"] != self._trouble:
            self._trouble = report["trouble"]
            print_error(self._trouble, label="warning")
        is_news = report["state"] != self._last_state
        if not is_news and now - self._last_line < _LINE_SECONDS:
            return
        self._last_line, self._last_state = now, report["state"]
        text = f"{self._name} {report['state']}"
        if report["state"] == "running":
            lag = format_lag(report["lag"])
            text += (
                f": {report['rows']:,} rows, {format_rate(report['rows_per_second'])}/s, lag {lag}"
            )
        remark(text)


def make_printable(value: Any) -> Any:
    """The report with each text on one line, without control characters: it holds users' data."""
    if isinstance(value, str):
        return printable(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping):
        return {key: make_printable(each) for key, each in value.items()}
    return [make_printable(each) for each in value] if isinstance(value, list) else value


def format_rate(rows_per_second: float | None) -> str:
    return "-" if rows_per_second is None else f"{rows_per_second:,.0f}"


def format_lag(lag: int | None) -> str:
    return "-" if lag is None else f"{lag:,}"


def format_age(report: Mapping[str, Any], now: datetime | None = None) -> str:
    """The time since the report: `3s`, `2m10s`, `4d`."""
    from quivermq.pipelines import age_seconds  # noqa: PLC0415  (imports Arrow)

    seconds = age_seconds(report, now or datetime.now(UTC))
    return format_duration(round(seconds) if seconds < 3600 else round(seconds / 60) * 60)


def sinks_table(report: Mapping[str, Any]) -> Table:
    """A table of the sinks and their progress."""
    rows = table("sink", "writes to", "batch>", "rows read>", "rows/s>", "lag>", "batch took>")
    for sink in report["sinks"]:
        rows.add_row(
            Text(sink["sink"]),
            Text(sink["target"]),
            "-" if sink["batch"] is None else f"{sink['batch']:,}",
            f"{sink['rows']:,}",
            format_rate(sink["rows_per_second"]),
            format_lag(sink["lag"]),
            f"{sink['batch_ms'] / 1000:.1f} s",
        )
    return rows


def _sentence(sink: Mapping[str, Any]) -> str:
    behind = "" if not sink["lag"] else f", {sink['lag']:,} left to read"
    return f"{sink['sink']} → {sink['target']}: {sink['rows']:,} rows read{behind}"
