"""The options of `quiver pipeline archive`, `replay` and `compact`."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from quivermq.cli.errors import UsageError
from quivermq.cli.options import duration, size
from quivermq.cli.quantities import parse_moment

_FILES = "Files and commits"
_JSON = "JSON payloads"

Topic = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic.")]
To = Annotated[
    str, typer.Option("--to", metavar="PATH", help="The table's folder; made if need be.")
]
TablePath = Annotated[str, typer.Argument(metavar="PATH", help="The table's folder.")]
Once = Annotated[
    bool, typer.Option("--once", help="Archive what there is, then end; else go on until Ctrl-C.")
]
CommitSize = Annotated[
    float,
    typer.Option(
        metavar="SIZE",
        parser=size,
        help="Commit as soon as about so much has come.",
        show_default="128MB",
        rich_help_panel=_FILES,
    ),
]
CommitAge = Annotated[
    float,
    typer.Option(
        metavar="DURATION",
        parser=duration,
        help="Commit what came so long ago, however little it is.",
        show_default="60s",
        rich_help_panel=_FILES,
    ),
]
FileSize = Annotated[
    float,
    typer.Option(
        "--target-file-size",
        metavar="SIZE",
        parser=size,
        help="How large files should be.",
        show_default="128MB",
        rich_help_panel=_FILES,
    ),
]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Go on though messages were dropped before they were archived.",
        rich_help_panel=_FILES,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--json-columns",
        metavar="COLUMNS",
        help="Values are JSON: 'id BIGINT NOT NULL, amount DOUBLE', or @FILE that says so.",
        rich_help_panel=_JSON,
    ),
]
Quarantine = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="The table for values that do not fit, with the reason; default: PATH.quarantine.",
        rich_help_panel=_JSON,
    ),
]
Into = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Put all fields into one column.", rich_help_panel=_JSON),
]
Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where Spark runs: local[2], spark://HOST:7077, sc://HOST."),
]
Kept = Annotated[
    float,
    typer.Option(
        "--keep",
        metavar="DURATION",
        parser=duration,
        help="Files that no version of this time needs are removed.",
        show_default="7d",
    ),
]


From = Annotated[str, typer.Option("--from", metavar="PATH", help="The table's folder.")]
Start = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE", help="First offset, or time: 4711, 2025-01-31T12:00, 2h ago: 2h."
    ),
]
End = Annotated[
    str | None, typer.Option(metavar="WHERE", help="Behind the last one: an offset, or a time.")
]
SourcePartitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition", min=0, metavar="N", help="Only of this partition; may be given again."
    ),
]
ReplayId = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", help="What was put back under this name is not again."),
]
KeepPartitions = Annotated[
    bool, typer.Option("--keep-partitions", help="To the partition each came from, not by key.")
]
KeepTimestamps = Annotated[
    bool, typer.Option("--keep-timestamps", help="With the time they had, not that of the replay.")
]


def place(given: str | None) -> int | datetime | None:
    """An offset, or a time."""
    if given is None:
        return None
    if given.isdecimal():
        return int(given)
    try:
        return parse_moment(given, datetime.now().astimezone())
    except ValueError as error:
        raise UsageError(f"{error}; or an offset") from None


def columns_text(given: str | None) -> str | None:
    """The columns themselves, or what the file behind an @ says."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text().strip()
    except OSError as error:
        raise UsageError(f"--json-columns {given}: {error.strerror}") from None
