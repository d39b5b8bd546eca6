"""`quiver backup`: backs a running cluster up into a folder, and verifies backups."""

from typing import Annotated, Any

import typer

from quivermq.backup import (
    BackupFolder,
    CopyThrottle,
    Manifest,
    VerifyReport,
    take_backup,
    verify_backup,
)
from quivermq.cli.copy_progress import show_progress
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Servers,
    Timeout,
    connect,
    size_option,
)
from quivermq.cli.output import count, print_json, print_line, print_table, remark, table
from quivermq.quantities import format_size

app = typer.Typer(add_completion=False)

Rate = Annotated[int | None, size_option("Copy at most so many bytes a second.", "--rate")]


@app.command()
def backup(
    to: Annotated[str, typer.Argument(metavar="TO", help="The folder of the backup.")],
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Take no backup: check every byte of the one in TO."),
    ] = False,
    rate: Rate = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Back a running cluster up into the folder TO: messages, groups, topics, users.

    A later backup into the same folder copies what is new, and takes the place of the former one.
    One that was stopped goes on where it was when you run it again. Needs admin rights.
    Restore it with `quiver restore TO`.
    """
    if verify:
        _verify(to, as_json=as_json)
        return
    with connect(servers, timeout) as client, show_progress(quiet=as_json) as report_progress:
        from quivermq.client import BackupAccess  # noqa: PLC0415 - loads the whole client

        throttle = CopyThrottle(report_progress, bytes_per_second=rate or 0)
        report = take_backup(BackupAccess(client), to, throttle=throttle)
    manifest = report.manifest
    if as_json:
        print_json(
            {
                **summary(manifest),
                "new_messages": report.messages_new,
                "new_bytes": report.bytes_new,
                "seconds": round(report.seconds, 3),
            }
        )
        return
    print_line(
        f"backup {manifest.serial} in {to}: {count(len(manifest.topics), 'topic')}, "
        f"{count(manifest.messages, 'message')}; copied {count(report.messages_new, 'message')}, "
        f"{format_size(report.bytes_new)}, in {report.seconds:.1f} s"
    )
    remark(f"try: quiver backup {to} --verify")


def _verify(folder: str, *, as_json: bool) -> None:
    with show_progress(quiet=as_json) as report_progress:
        report = verify_backup(BackupFolder(folder), throttle=CopyThrottle(report_progress))
    if as_json:
        damages = [
            {"topic": each.topic, "partition": each.partition, "file": each.file, "what": each.what}
            for each in report.damages
        ]
        print_json({**summary(report.manifest), "damages": damages, "usable": report.usable})
    else:
        _show_verified(folder, report)
    if report.damages:
        raise typer.Exit(1)


def _show_verified(folder: str, report: VerifyReport) -> None:
    if not report.damages:
        print_line(f"the backup in {folder} is intact: {count(report.messages, 'message')}")
        return
    made = table("topic", "partition>", "file", "what is wrong")
    for damage in report.damages:
        made.add_row(damage.topic, str(damage.partition), damage.file, damage.what)
    print_table(made)
    usable = ", ".join(report.usable) or "none"
    remark(f"topics that are whole, and can be restored with --topic: {usable}", "yellow")


def summary(manifest: Manifest) -> dict[str, Any]:
    """A backup, as JSON shows it."""
    return {
        "backup": manifest.name,
        "serial": manifest.serial,
        "cluster_id": manifest.cluster_id,
        "began_ms": manifest.began_ms,
        "finished_ms": manifest.finished_ms,
        "messages": manifest.messages,
        "topics": {
            topic.name: [
                {"partition": number, "start": partition.start, "end": partition.end}
                for number, partition in enumerate(topic.partitions)
            ]
            for topic in manifest.topics
        },
        "users": sorted(manifest.catalog["users"]),
    }
