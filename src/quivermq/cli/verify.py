"""`quiver verify DATA_DIR`: checks every byte of a broker's logs, and prints what they hold."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from quivermq.cli.options import AsJson
from quivermq.cli.output import (
    count,
    print_json,
    print_table,
    stderr_console,
    stdout_console,
    table,
)
from quivermq.errors import InvalidRequest
from quivermq.log import Finding, ReadOnlyDisk, Report, Verification, find_logs, log_bytes
from quivermq.node import SET_ASIDE, damaged_files
from quivermq.quantities import format_size

app = typer.Typer(add_completion=False)
_DIRECTORY = "."
_STYLES = {"damage": "bold red", "newer": "bold red", "torn": "yellow", "note": "cyan"}


@app.command()
def verify(
    data_dir: Annotated[
        Path, typer.Argument(help="A broker's data directory, or any folder inside it.")
    ],
    deep: Annotated[
        bool, typer.Option("--deep", help="Also decode every batch, as a consumer would.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every frame, index, checkpoint and vote in DATA_DIR, and print a summary.

    It only reads: nothing is repaired or cut. The exit code is 0 if all durable data is intact, 1
    if any is damaged, or written by a release that this one cannot read.
    """
    if not data_dir.is_dir():
        raise InvalidRequest(f"{data_dir} is not a folder: name a broker's data directory")
    disk = ReadOnlyDisk(data_dir)
    found = list(find_logs(disk))
    folders = [folder for folder in found if not folder.startswith(SET_ASIDE)]
    if not folders:
        raise InvalidRequest(f"{data_dir} holds no logs: name a broker's data directory")
    reports = [
        *_check_directory(disk, [folder for folder in found if folder not in folders]),
        *_check(disk, folders, deep=deep, quiet=as_json),
    ]
    if as_json:
        print_json([_as_dict(report) for report in reports])
    else:
        _print(reports)
    if any(report.is_damaged or report.is_of_another_release for report in reports):
        raise typer.Exit(1)


def _check_directory(disk: ReadOnlyDisk, set_aside: list[str]) -> list[Report]:
    """Check the files that are not logs, and list logs that are not in use."""
    report = Report(_DIRECTORY)
    for file, severity, problems in damaged_files(disk):
        for problem in problems:
            text = f"{problem}; its other copy is intact" if severity == "note" else problem
            report.findings.append(Finding(severity, file, 0, text))
    for folder in set_aside:
        text = "a broker set this log aside, as it is not in use: delete it if you do not need it"
        report.findings.append(Finding("note", folder, 0, text))
    return [report] if report.findings else []


def _check(disk: ReadOnlyDisk, folders: list[str], *, deep: bool, quiet: bool) -> list[Report]:
    """Verify each log, with a bar on a terminal."""
    console = stderr_console()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    with progress:
        total = sum(log_bytes(disk, folder) for folder in folders)
        task = progress.add_task("checking", total=total)
        reports = []
        for folder in folders:
            progress.update(task, description=f"checking {escape(folder or '.')}")
            check = Verification(
                disk, folder, deep=deep, progress=lambda size: progress.advance(task, size)
            )
            reports.append(check.run())
    return reports


def _print(reports: list[Report]) -> None:
    made = table("log", "segments>", "size>", "entries>", "messages>", "offsets", "state")
    # A long name is folded before anything is cut off, least of all the state.
    for column in made.columns[1:]:
        column.no_wrap = True
    for report in _logs(reports):
        made.add_row(
            escape(report.folder or "."),
            f"{report.segments:,}",
            format_size(report.bytes),
            f"{report.entries:,}",
            f"{report.messages:,}",
            f"{report.start.next_offset:,} to {report.end.next_offset - 1:,}"
            if report.end.next_offset > report.start.next_offset
            else "none",
            _state(report),
        )
    print_table(made)
    console = stdout_console()
    for report in reports:
        for finding in report.findings:
            style = _STYLES[finding.severity]
            where = escape(f"{finding.path} at byte {finding.position:,}")
            console.print(
                f"[{style}]{finding.severity:>6}[/]  {where}: {escape(finding.text)}",
                soft_wrap=True,
            )
    console.print(_conclusion(reports))


def _state(report: Report) -> str:
    if report.is_damaged:
        return "[bold red]damaged[/]"
    if report.is_of_another_release:
        return "[bold red]of another release[/]"
    return "[green]intact[/]" if not report.findings else "[yellow]intact, see below[/]"


def _logs(reports: list[Report]) -> list[Report]:
    return [report for report in reports if report.folder != _DIRECTORY]


def _conclusion(reports: list[Report]) -> str:
    logs = _logs(reports)
    directory = [report for report in reports if report not in logs]
    if any(report.is_of_another_release for report in directory):
        return (
            "[bold red]The data directory is of another release.[/] Check it with the release that "
            "wrote it; this one leaves it alone."
        )
    if any(report.is_damaged for report in directory):
        return (
            "[bold red]The broker's identity or its list of replicas is damaged.[/] Restore a copy "
            "of it, or start with an empty data directory and run quiver cluster replace."
        )
    reports = logs
    damaged = sum(report.is_damaged for report in reports)
    entries = sum(report.entries for report in reports)
    if damaged:
        return (
            f"[bold red]{damaged} of {count(len(reports), 'log')} "
            f"{'is' if damaged == 1 else 'are'} damaged.[/] In a cluster the broker "
            "fetches the damaged entries from its peers; standalone, restore them from a copy."
        )
    other = sum(report.is_of_another_release for report in reports)
    if other:
        return (
            f"[bold red]{other} of {len(reports)} logs are of another release.[/] Check them with "
            "the release that wrote them; this one leaves them alone."
        )
    return f"[green]All {entries:,} entries in {len(reports)} logs are intact.[/]"


def _as_dict(report: Report) -> dict[str, Any]:
    """The report for JSON, with offsets by name."""
    found = asdict(report)
    for name in ("start", "end"):
        found[name] = getattr(report, name)._asdict()
    return {**found, "damaged": report.is_damaged}
