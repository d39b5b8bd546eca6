"""`quiver doctor`: looks for trouble, and says what to do about it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from quivermq.cli.health import Finding, Level, cluster_findings
from quivermq.cli.machine_health import disk_findings, process_findings
from quivermq.cli.options import DEFAULT_SERVERS, AsJson, Servers, Timeout
from quivermq.cli.output import count, print_json, print_line, remarks, results

app = typer.Typer(add_completion=False)
_STYLES: Final[dict[Level, str]] = {"ok": "green", "warn": "yellow", "bad": "bold red"}


@app.command()
def doctor(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also measure the disk below this broker's data directory."
        ),
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = 3.0,
    as_json: AsJson = False,
) -> None:
    """Look for trouble, and say what to do about it.

    Asks every broker of the cluster, not only those in --servers. Exit code 1
    if anything is bad; warnings alone are 0.
    """
    console = remarks()
    console.quiet = as_json or not console.is_terminal
    with console.status("asking the brokers"):
        findings = [*cluster_findings(servers, timeout), *process_findings()]
        if data_dir is not None:
            findings += disk_findings(data_dir)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            _print(finding)
        _print_verdict(findings)
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    line = Text.assemble((f"{finding.level:<5}", _STYLES[finding.level]), finding.text)
    results().print(line, soft_wrap=True)
    if finding.advice:
        print_line(f"     → {finding.advice}", "dim" if finding.level == "ok" else "")


def _print_verdict(findings: list[Finding]) -> None:
    bad = sum(finding.level == "bad" for finding in findings)
    warned = sum(finding.level == "warn" for finding in findings)
    if bad:
        print_line(f"{count(bad, 'thing')} to mend, {count(warned, 'warning')}", "bold red")
    elif warned:
        print_line(f"nothing broken, {count(warned, 'warning')}", "yellow")
    else:
        print_line("all is well", "green")
