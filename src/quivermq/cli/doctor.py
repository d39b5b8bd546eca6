"""`quiver doctor`: checks the cluster, and says how to fix what is wrong."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from quivermq.cli.cluster_checks import CheckResult, Level, check_cluster
from quivermq.cli.machine_checks import check_disk, check_process
from quivermq.cli.options import DEFAULT_SERVERS, AsJson, Servers, Timeout
from quivermq.cli.output import count, print_json, print_line, results, show_status

app = typer.Typer(add_completion=False)
_STYLES: Final[dict[Level, str]] = {"ok": "green", "warn": "yellow", "bad": "bold red"}


@app.command()
def doctor(
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also check the disk of this data directory."),
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = 3.0,
    as_json: AsJson = False,
) -> None:
    """Check the cluster, and say how to fix what is wrong.

    Asks every broker of the cluster, not only those in --servers. The exit
    code is 1 if anything is bad; 0 if there are only warnings.
    """
    with show_status("asking the brokers", quiet=as_json):
        checked = [*check_cluster(servers, timeout), *check_process()]
        if data_dir is not None:
            checked += check_disk(data_dir)
    if as_json:
        print_json([asdict(result) for result in checked])
    else:
        for result in checked:
            _print(result)
        _print_summary(checked)
    if any(result.level == "bad" for result in checked):
        raise typer.Exit(1)


def _print(result: CheckResult) -> None:
    line = Text.assemble((f"{result.level:<5}", _STYLES[result.level]), result.text)
    results().print(line, soft_wrap=True)
    if result.advice:
        print_line(f"     → {result.advice}", "dim" if result.level == "ok" else "")


def _print_summary(checked: list[CheckResult]) -> None:
    bad = sum(result.level == "bad" for result in checked)
    warned = sum(result.level == "warn" for result in checked)
    if bad:
        print_line(f"{count(bad, 'problem')} to fix, {count(warned, 'warning')}", "bold red")
    elif warned:
        print_line(f"no problems, {count(warned, 'warning')}", "yellow")
    else:
        print_line("all is well", "green")
