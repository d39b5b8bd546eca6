"""`quiver pipeline`: runs pipelines from TOML files on Spark; `archive` adds more commands."""

import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from quivermq.cli.archive import archive, compact, replay
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Once,
    Servers,
    Timeout,
    connect,
    servers_option,
)
from quivermq.cli.output import print_error, print_json, print_line, print_table, remark, table
from quivermq.cli.pipeline_screen import (
    PipelineScreen,
    format_age,
    format_lag,
    format_rate,
    make_printable,
    sinks_table,
)

if TYPE_CHECKING:
    from quivermq.pipelines import CheckedPipeline, PipelineFile

File = Annotated[
    Path, typer.Argument(metavar="FILE.toml", help="The pipeline's file.", show_default=False)
]
OtherServers = Annotated[
    str | None,
    servers_option(
        "Brokers to connect to, instead of those in the file.",
        show_default=f"as in the file, else {DEFAULT_SERVERS}",
    ),
]
_STYLES = {"running": "green", "failed": "bold red", "silent": "bold red", "starting": "yellow"}


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Run pipelines on Spark; archive topics to tables, and replay them.",
)


@app.command()
def run(
    file: File,
    once: Once = False,
    servers: OtherServers = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline: sources, steps in SQL, sinks.

    The whole file is checked before anything runs. Ctrl-C ends it after the current batch; when
    run again, it continues there: nothing is lost, nothing is written twice.
    """
    loaded = _load(file)
    with PipelineScreen(loaded.name, as_json=as_json) as screen:
        report = _report_problems(lambda: _run(loaded, screen, servers, once=once))
        screen.end(report)


def _run(loaded: "PipelineFile", screen: PipelineScreen, servers: str | None, *, once: bool) -> Any:
    from quivermq import pipelines  # noqa: PLC0415  (imports Arrow)

    stop = pipelines.StopRequest()

    def ask(*_: object) -> None:
        stop.ask()
        with suppress(OSError):  # stop even if the terminal is closed
            screen.stopping(again=stop.count > 1)

    def take_signals() -> None:
        signal.signal(signal.SIGINT, ask)
        signal.signal(signal.SIGTERM, ask)

    listener = pipelines.RunListener(
        screen.stage, screen.report, take_signals, interval=screen.interval, stop=stop
    )
    return pipelines.run(loaded, servers=servers, once=once, listener=listener)


@app.command()
def check(file: File, as_json: AsJson = False) -> None:
    """Check a pipeline's file and its SQL, without running it. Needs no broker."""
    loaded = _load(file)
    with PipelineScreen(loaded.name, as_json=as_json) as screen:
        plan = _report_problems(lambda: _plan(loaded, screen))
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


def _plan(loaded: "PipelineFile", screen: PipelineScreen) -> "CheckedPipeline":
    from quivermq import pipelines  # noqa: PLC0415  (imports Arrow)

    screen.stage("starting Spark")
    with tempfile.TemporaryDirectory(prefix="quiver-") as folder, pipelines.log_to(folder):
        spark = pipelines.start_spark(loaded)
        screen.stage("checking the SQL")
        return pipelines.check(loaded, spark)


@app.command()
def status(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this pipeline.")
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show pipelines: state, rows per second, lag, problems."""
    from quivermq.pipelines import latest_reports, state_of  # noqa: PLC0415

    with connect(servers, timeout) as client:
        reports = latest_reports(client)
    now = datetime.now(UTC)
    if name is not None:
        if name not in reports:
            known = make_printable(", ".join(reports)) or "none"
            print_error(f"no pipeline {name} has reported (there are: {known})")
            raise typer.Exit(1)
        reports = {name: reports[name]}
    shown = [{**report, "state": state_of(report, now)} for report in reports.values()]
    if as_json:
        print_json(shown)
        return
    if not shown:
        remark("no pipeline has reported; try: quiver pipeline run FILE.toml")
        return
    shown = [make_printable(report) for report in shown]
    _print_pipelines(shown, now)
    if name is not None:
        print_table(sinks_table(shown[0]))
    for report in shown:
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
            "-" if is_over else format_rate(report["rows_per_second"]),
            format_lag(report["lag"]),
            f"{format_age(report, now)} ago",
            Text(f"{report['host']} ({report['pid']})"),
        )
    print_table(shown)


def _print_trouble(report: dict[str, Any], now: datetime) -> None:
    if report["state"] == "silent":
        print_error(
            f"{report['pipeline']} said nothing for {format_age(report, now)}: it was killed, "
            "hangs, or cannot reach the brokers; run it again, and it continues where it was",
            label="warning",
        )
    if report["trouble"]:
        print_error(f"{report['pipeline']}: {report['trouble']}", label="warning")


def _load(file: Path) -> "PipelineFile":
    from quivermq.pipelines import load  # noqa: PLC0415

    loaded: PipelineFile = _report_problems(lambda: load(file))
    return loaded


def _report_problems(work: Callable[[], Any]) -> Any:
    """Do the work; each problem of the file becomes an error line that editors understand."""
    from quivermq.pipelines import InvalidPipeline  # noqa: PLC0415

    try:
        return work()
    except InvalidPipeline as invalid:
        for line in invalid.lines:
            print_error(line)
        raise typer.Exit(1) from None


for _command in (archive, replay, compact):
    app.command()(_command)
