"""`quiver restore`: restores a backup into a cluster."""

from typing import Annotated

import typer

from quivermq.backup import CopyThrottle, RestoreOptions, restore_backup
from quivermq.cli.backup import Rate
from quivermq.cli.copy_progress import show_progress
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Servers,
    Timeout,
    connect,
)
from quivermq.cli.output import count, print_json, print_line, remark

app = typer.Typer(add_completion=False)


@app.command()
def restore(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The folder of the backup.")],
    topic: Annotated[
        str,
        typer.Option(
            "--topic", metavar="NAME", help="Only this topic; the cluster may have others."
        ),
    ] = "",
    new_name: Annotated[
        str, typer.Option("--as", metavar="NEWNAME", help="With --topic: under another name.")
    ] = "",
    no_users: Annotated[
        bool, typer.Option("--no-users", help="Do not bring back users and their grants.")
    ] = False,
    rate: Rate = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Restore the backup in the folder FROM into a cluster without topics.

    Messages get the offsets and times that they had; groups go on where they were; users keep
    their tokens. The backup is verified first, and what was stored is read back and compared before
    clients may use it. One that was stopped goes on when you run it again. Needs admin rights.
    """
    options = RestoreOptions(topic=topic, new_name=new_name, users=not no_users)
    with connect(servers, timeout) as client, show_progress(quiet=as_json) as report_progress:
        from quivermq.client import BackupAccess  # noqa: PLC0415 - loads the whole client

        throttle = CopyThrottle(report_progress, bytes_per_second=rate or 0)
        report = restore_backup(BackupAccess(client), source, options, throttle=throttle)
    if as_json:
        print_json(
            {
                "backup": report.manifest.name,
                "topics": report.topics,
                "left": report.left,
                "messages": report.messages,
                "users": report.users,
                "users_left": report.users_left,
                "seconds": round(report.seconds, 3),
            }
        )
        return
    print_line(
        f"restored {count(len(report.topics), 'topic')} with "
        f"{count(report.messages, 'message')} and {count(len(report.users), 'user')}, read back "
        f"and compared, in {report.seconds:.1f} s"
    )
    for name in report.left:
        remark(f"topic {name} exists here and stays as it is: see --topic {name} --as", "yellow")
    for name in report.users_left:
        remark(f"user {name} exists here and stays as it is", "yellow")
