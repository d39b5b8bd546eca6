"""`quiver consume`: prints the messages of a topic on standard output."""

import asyncio
import signal
from typing import Annotated, Final

import typer

from quivermq.cli.consume_modes import (
    Ack,
    ConsumeMode,
    ConsumeRequest,
    GroupStart,
    SharedPrinter,
    SinglePrinter,
    StickyPrinter,
    Then,
)
from quivermq.cli.errors import UsageError
from quivermq.cli.message_lines import MessageLines
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Partition,
    Servers,
    Timeout,
    complete_groups,
    complete_topics,
    duration_option,
    number_option,
    parse_position,
)
from quivermq.errors import InvalidRequest, QuiverError

app = typer.Typer(add_completion=False)

_REASON: Final = "rejected by hand"
_SHARED: Final = "Shared groups"
_DRAIN_SECONDS: Final = 10.0


GroupName = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="NAME",
        help="Consume for this group; single: continue where it is.",
        autocompletion=complete_groups,
    ),
]
Mode = Annotated[
    ConsumeMode | None,
    typer.Option(
        help="shared: each message goes to one consumer of the group. sticky: each partition "
        "does, in order. single: you read all, or one --partition, and say where to start.",
        show_default="shared with --group, else single",
    ),
]
Start = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHERE",
        help="Where to start, or where a new group starts: earliest, latest; single also an "
        "offset, a time (2025-01-31T12:00) or an age (2h).",
        show_default="earliest, or where --group is",
    ),
]
Max = Annotated[int | None, number_option("Stop after so many messages.", "--max")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with messages as they come.")]
Details = Annotated[
    bool | None,
    typer.Option(
        "--details/--no-details",
        help="Also show partition, offset, time and key.",
        show_default="on a terminal",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-F",
        metavar="FORMAT",
        help="Print messages so, as '%p/%o %k: %s\\n'. %t topic, %p partition, %o offset, %k key, "
        "%s value, %h headers, %T timestamp, %D date and time, %P priority, %d delivery count, "
        "%c content type, %S length, %K key's length, %R length as 4 bytes; \\n \\t \\r \\0 "
        "\\x41. No line end is added.",
    ),
]
AckTime = Annotated[
    Ack,
    typer.Option(
        help="manual: settle once printed. auto: acknowledge before printing, so at most once.",
        rich_help_panel=_SHARED,
    ),
]
Settle = Annotated[
    Then,
    typer.Option(
        help="What happens to a printed message: it is done, failed, a dead letter, or released "
        "at the end.",
        rich_help_panel=_SHARED,
    ),
]
Reason = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Why they failed, with --then nack or reject: shown with dead letters.",
        show_default=_REASON,
        rich_help_panel=_SHARED,
    ),
]
Visibility = Annotated[
    float,
    duration_option(
        "Messages that are not settled by then go to another consumer.",
        show_default="30s",
        rich_help_panel=_SHARED,
    ),
]
Prefetch = Annotated[int, number_option("Take so many at once.", rich_help_panel=_SHARED)]


Topics = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC...", help="The topic's name, or several.", autocompletion=complete_topics
    ),
]
Pattern = Annotated[
    bool,
    typer.Option(
        "--pattern",
        help="The name is a regular expression: all topics that it matches as a whole, also those "
        "that come later.",
    ),
]


@app.command()
def consume(
    topics: Topics,
    group: GroupName = None,
    mode: Mode = None,
    start: Start = None,
    partition: Partition = None,
    max_: Max = None,
    follow: Follow = False,
    details: Details = None,
    form: Format = None,
    ack: AckTime = Ack.MANUAL,
    then: Settle = Then.ACK,
    reason: Reason = None,
    visibility: Visibility = 30.0,
    prefetch: Prefetch = 100,
    pattern: Pattern = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic, or of several, one a line.

    In a pipe, a line is the value and nothing else; with --json it is an object
    with everything. Without --follow it ends when no message is waiting.
    """
    _check_format(form, is_other=as_json or details is not None)
    mode = _choose_mode(mode, group)
    _check_shared_only(mode, ack, then, reason)
    _check_topics(topics, pattern=pattern)
    is_several = pattern or len(topics) > 1
    lines = MessageLines(as_json=as_json, details=details, with_topics=is_several, form=form)
    request = ConsumeRequest(tuple(topics), group or "", max_ or 0, follow=follow, pattern=pattern)
    printer: SharedPrinter | StickyPrinter | SinglePrinter
    if mode is ConsumeMode.SINGLE:
        printer = SinglePrinter(lines, request, partition, parse_position(start, "--from"))
    elif mode is ConsumeMode.STICKY:
        printer = StickyPrinter(lines, request, _group_start(start, partition, mode))
    else:
        printer = SharedPrinter(
            lines,
            request,
            _group_start(start, partition, mode),
            ack=ack,
            then=then,
            reason=reason or (_REASON if then is Then.REJECT else None),
            visibility=visibility,
            prefetch=prefetch,
        )
    try:
        asyncio.run(_run(printer, servers, timeout))
    except (QuiverError, KeyboardInterrupt):
        lines.flush()
        if printer.printed and not as_json:
            printer.remark_on_end()
        raise
    finally:
        lines.flush()
    if not as_json:
        printer.remark_on_end()


async def _run(
    printer: SharedPrinter | StickyPrinter | SinglePrinter, servers: str, seconds: float
) -> None:
    """Run it until it ends, or the process is told to: what is in hand is finished first."""
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(printer.run(servers, seconds))
    is_late = False

    def cancel() -> None:
        nonlocal is_late
        is_late = True
        running.cancel()

    def stop() -> None:
        printer.stop()
        loop.call_later(_DRAIN_SECONDS, cancel)

    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        await running
    except asyncio.CancelledError:
        if not is_late:
            running.cancel()
            await asyncio.wait([running])
            raise


def _choose_mode(mode: ConsumeMode | None, group: str | None) -> ConsumeMode:
    if mode is None:
        return ConsumeMode.SINGLE if group is None else ConsumeMode.SHARED
    if group is None and mode is not ConsumeMode.SINGLE:
        raise UsageError(f"--mode {mode.value} needs a --group")
    return mode


def _check_format(form: str | None, *, is_other: bool) -> None:
    if form is not None and is_other:
        raise UsageError("--format says all of how messages look: leave --json and --details out")
    if form == "":
        raise UsageError("--format: give what to print, as '%s\\n'")


def _check_topics(topics: list[str], *, pattern: bool) -> None:
    from quivermq.client import TopicChoice  # noqa: PLC0415  (help and completion need no client)

    if pattern and len(topics) > 1:
        raise UsageError("--pattern takes one regular expression, as 'orders|returns'")
    try:
        TopicChoice.of(topics[0] if pattern else topics, pattern=pattern)
    except InvalidRequest as error:
        raise UsageError(str(error)) from error


def _check_shared_only(mode: ConsumeMode, ack: Ack, then: Then, reason: str | None) -> None:
    """Refuse options that would have no effect."""
    if mode is not ConsumeMode.SHARED:
        for option, value, default in (("ack", ack, Ack.MANUAL), ("then", then, Then.ACK)):
            if value is not default:
                raise UsageError(f"--{option} is for shared groups, not for --mode {mode.value}")
    if ack is Ack.AUTO and then is not Then.ACK:
        raise UsageError(f"--ack auto acknowledges before printing: nothing to {then.value}")
    if reason is not None and then not in {Then.NACK, Then.REJECT}:
        raise UsageError("--reason needs --then nack or reject")


def _group_start(start: str | None, partition: int | None, mode: ConsumeMode) -> GroupStart:
    """Where a group that does not exist yet starts."""
    if partition is not None:
        raise UsageError(f"--partition is for --mode single: {mode.value} groups read all of them")
    if start is None or start == "earliest":
        return "earliest"
    if start != "latest":
        raise UsageError(
            f"--from {start}: a group starts at earliest or latest; quiver group seek moves it"
        )
    return "latest"
