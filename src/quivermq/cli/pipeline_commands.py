"""`quiver pipeline run`, `check` and `status`: pipelines from a TOML file."""

import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Servers,
    Timeout,
    connect,
)
from quivermq.cli.output import print_error, print_json, print_line, print_table, remark, table
from quivermq.cli.pipeline_screen import Screen, age, harmless, rate, shown_lag, sinks_table

if TYPE_CHECKING:
    from quivermq.pipelines import CheckedPipeline, PipelineFile

File = Annotated[
    Path, typer.Argument(metavar="FILE.toml", help="The pipeline.", show_default=False)
]
OtherServers = Annotated[
    str | None,
    typer.Option(
        "--servers",
        envvar="QUIVER_SERVERS",
        metavar="HOST:PORT,...",
        help="Brokers to connect to, instead of those that the file names.",
        rich_help_panel="Connection",
        show_default="as the file says, else 127.0.0.1:7600",
    ),
]
_STYLES = {"running": "green", "failed": "bold red", "silent": "bold red", "starting": "yellow"}


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(run)
    app.command()(check)
    app.command()(status)


def run(
    file: File,
    once: Annotated[
        bool, typer.Option("--once", help="Do all that is there, then end; else until Ctrl-C.")
    ] = False,
    servers: OtherServers = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline: sources, steps in SQL, sinks.

    The whole file is checked before anything runs. Ctrl-C ends it after the batch under way; run
    it again, and it goes on where it was: nothing is lost, nothing written twice.
    """
    loaded = _loaded(file)
    with Screen(loaded.name, as_json=as_json) as screen:
        report = _checked(lambda: _run(loaded, screen, servers, once=once))
        screen.end(report)


def _run(loaded: "PipelineFile", screen: Screen, servers: str | None, *, once: bool) -> Any:
    from quivermq import pipelines  # noqa: PLC0415  (imports Arrow)

    stop = pipelines.StopRequest()

    def ask(*_: object) -> None:
        stop.ask()
        with suppress(OSError):  # a terminal that was closed is no reason not to stop
            screen.stopping(again=stop.count > 1)

    def take_signals() -> None:
        signal.signal(signal.SIGINT, ask)
        signal.signal(signal.SIGTERM, ask)

    listener = pipelines.RunListener(
        screen.stage, screen.report, take_signals, interval=screen.interval, stop=stop
    )
    return pipelines.run(loaded, servers=servers, once=once, listener=listener)


def check(file: File, as_json: AsJson = False) -> None:
    """Check a pipeline's file, its SQL too, and run nothing. Needs no broker."""
    loaded = _loaded(file)
    with Screen(loaded.name, as_json=as_json) as screen:
        plan = _checked(lambda: _plan(loaded, screen))
    columns = {
        name: [[each.name, each.dataType.simpleString()] for each in frame.schema.fields]
        for name, frame in plan.views.frames.items()
    }
    if as_json:
        print_json({"pipeline": loaded.name, "views": columns})
        return
    shown = table("view", "columns")
    for name, pairs in columns.items():
        shown.add_row(name, ", ".join(f"{column} {kind}" for column, kind in pairs))
    print_table(shown)
    targets = [f"{sink.from_} → {sink.target}" for sink in loaded.pipeline.sinks.values()]
    print_line(f"{file}: all is well: {'; '.join(targets)}", "green")


def _plan(loaded: "PipelineFile", screen: Screen) -> "CheckedPipeline":
    from quivermq import pipelines  # noqa: PLC0415  (imports Arrow)

    screen.stage("starting Spark")
    with tempfile.TemporaryDirectory(prefix="quiver-") as folder, pipelines.log_to(folder):
        spark = pipelines.start_spark(loaded)
        screen.stage("checking the SQL")
        return pipelines.check(loaded, spark)


def status(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this pipeline.")
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show how pipelines do: state, rows per second, how far behind, trouble."""
    from quivermq.pipelines import latest_reports, state_of  # noqa: PLC0415  (imports Arrow)

    with connect(servers, timeout) as client:
        reports = latest_reports(client)
    now = datetime.now(UTC)
    if name is not None:
        if name not in reports:
            known = harmless(", ".join(reports)) or "none"
            print_error(f"no pipeline {name} has reported (there are: {known})")
            raise typer.Exit(1)
        reports = {name: reports[name]}
    told = [{**report, "state": state_of(report, now)} for report in reports.values()]
    if as_json:
        print_json(told)
        return
    if not told:
        remark("no pipeline has reported; try: quiver pipeline run FILE.toml")
        return
    told = [harmless(report) for report in told]
    _print_pipelines(told, now)
    if name is not None:
        print_table(sinks_table(told[0]))
    for report in told:
        _print_trouble(report, now)


def _print_pipelines(reports: list[dict[str, Any]], now: datetime) -> None:
    shown = table("pipeline", "state", "rows>", "rows/s>", "lag>", "heard>", "host")
    for report in reports:
        state = report["state"]
        style = _STYLES.get(state, "")
        is_over = state in {"stopped", "finished", "failed", "silent"}
        shown.add_row(
            Text(report["pipeline"]),
            Text(state, style=style),
            f"{report['rows']:,}",
            "-" if is_over else rate(report["rows_per_second"]),
            shown_lag(report["lag"]),
            f"{age(report, now)} ago",
            Text(f"{report['host']} ({report['pid']})"),
        )
    print_table(shown)


def _print_trouble(report: dict[str, Any], now: datetime) -> None:
    if report["state"] == "silent":
        print_error(
            f"{report['pipeline']} said nothing for {age(report, now)}: it was killed, hangs, or "
            "cannot reach the brokers; run it again, and it goes on where it was",
            label="warning",
        )
    if report["trouble"]:
        print_error(f"{report['pipeline']}: {report['trouble']}", label="warning")


def _loaded(file: Path) -> "PipelineFile":
    from quivermq.pipelines import load  # noqa: PLC0415

    loaded: PipelineFile = _checked(lambda: load(file))
    return loaded


def _checked(work: Callable[[], Any]) -> Any:
    """Do it; each problem of the file becomes a line of its own, as editors understand them."""
    from quivermq.pipelines import InvalidPipeline  # noqa: PLC0415

    try:
        return work()
    except InvalidPipeline as invalid:
        for line in invalid.lines:
            print_error(line)
        raise typer.Exit(1) from None
