"""The options of `quiver consume`, and which of them belong to which mode."""

from datetime import datetime
from enum import Enum
from typing import Annotated, Final, Literal

import typer

from quivermq.cli.errors import UsageError
from quivermq.cli.options import duration
from quivermq.cli.quantities import parse_moment

VISIBILITY_SECONDS: Final = 30.0
PREFETCH: Final = 100
REASON: Final = "rejected by hand"
_SHARED: Final = "Shared groups"

Beginning = Literal["earliest", "latest"]
"""Where a group starts that does not exist yet."""


class Mode(Enum):
    """How messages are given out."""

    SHARED = "shared"
    STICKY = "sticky"
    SINGLE = "single"


class Ack(Enum):
    """When a message counts as done: once it is printed, or before."""

    MANUAL = "manual"
    AUTO = "auto"


class Then(Enum):
    """What becomes of a message once it is printed."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    LEAVE = "leave"


Group = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Take part in this group; single: go on where it is."),
]
ChosenMode = Annotated[
    Mode | None,
    typer.Option(
        help="shared: each message goes to one consumer of the group. sticky: each partition "
        "does, in order. single: you see all, and say where to begin.",
        show_default="shared with --group, else single",
    ),
]
Partition = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Only this partition (single).")
]
Start = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHERE",
        help="Where to begin, or where a group does that does not exist yet: earliest, latest; "
        "single also an offset, a time (2025-01-31T12:00) or an age (2h).",
        show_default="earliest, or where --group is",
    ),
]
Max = Annotated[int | None, typer.Option("--max", min=1, metavar="N", help="Stop after so many.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with messages as they come.")]
Details = Annotated[
    bool | None,
    typer.Option(
        "--details/--no-details",
        help="Show partition, offset, time and key too.",
        show_default="on a terminal",
    ),
]
ChosenAck = Annotated[
    Ack,
    typer.Option(
        help="manual: done once printed. auto: done before that, so at most once.",
        rich_help_panel=_SHARED,
    ),
]
ChosenThen = Annotated[
    Then,
    typer.Option(
        help="What becomes of a printed message: done, failed, a dead letter, or given back at "
        "the end.",
        rich_help_panel=_SHARED,
    ),
]
Reason = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="What dead letters say, with --then reject.",
        show_default=REASON,
        rich_help_panel=_SHARED,
    ),
]
Visibility = Annotated[
    float,
    typer.Option(
        metavar="DURATION",
        parser=duration,
        help="What is not settled by then goes to another consumer.",
        show_default="30s",
        rich_help_panel=_SHARED,
    ),
]
Prefetch = Annotated[
    int, typer.Option(min=1, metavar="N", help="Take so many at once.", rich_help_panel=_SHARED)
]


def chosen_mode(mode: Mode | None, group: str | None) -> Mode:
    """What was named, else what follows from the rest."""
    if mode in {Mode.SHARED, Mode.STICKY} and group is None:
        raise UsageError(f"--mode {mode.value} needs a --group")
    return mode or (Mode.SINGLE if group is None else Mode.SHARED)


def check_shared_only(mode: Mode, ack: Ack, then: Then, reason: str | None) -> None:
    """Refuse what would silently mean nothing."""
    if mode is not Mode.SHARED:
        for option, value, default in (("ack", ack, Ack.MANUAL), ("then", then, Then.ACK)):
            if value is not default:
                raise UsageError(f"--{option} is for shared groups, not for --mode {mode.value}")
    if ack is Ack.AUTO and then is not Then.ACK:
        raise UsageError(f"--ack auto is done before printing: there is nothing to {then.value}")
    if reason is not None and then is not Then.REJECT:
        raise UsageError("--reason belongs to --then reject")


def beginning_of_group(start: str | None, partition: int | None, mode: Mode) -> Beginning:
    """Where a group starts if it does not exist yet."""
    if partition is not None:
        raise UsageError(f"--partition is for --mode single: {mode.value} groups read them all")
    if start is None or start == "earliest":
        return "earliest"
    if start != "latest":
        raise UsageError(
            f"--from {start}: a group begins at earliest or latest; quiver group seek moves one"
        )
    return "latest"


def place(start: str | None) -> str | int | datetime | None:
    """Where a single reader begins; None: nothing was said."""
    if start is None or start in {"earliest", "latest"}:
        return start
    if start.isascii() and start.isdigit():
        return int(start)
    try:
        return parse_moment(start, datetime.now().astimezone())
    except ValueError as error:
        raise UsageError(f"--from: {error}; or earliest, latest or an offset") from None
