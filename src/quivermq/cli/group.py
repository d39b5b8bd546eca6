"""`quiver group`: lists, describes, moves and deletes consumer groups."""

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from quivermq.cli.errors import UsageError
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Group,
    Partition,
    Servers,
    Timeout,
    Topic,
    Yes,
    complete_topics,
    confirm,
    connect,
    parse_position,
)
from quivermq.cli.output import (
    count,
    numbers,
    print_json,
    print_line,
    print_table,
    remark,
    table,
)
from quivermq.quantities import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quivermq.client import GroupInfo, GroupPartitionInfo, InFlightInfo

    _Counted = GroupInfo | GroupPartitionInfo

app = typer.Typer(add_completion=False, no_args_is_help=True)

_LEASED_LISTED = 10
_COUNTS = ("lag", "in_flight", "delayed", "done", "dead", "lost", "redelivered")


@app.command("list")
def list_(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]", help="Only groups of this topic.", autocompletion=complete_topics
        ),
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """List groups: messages waiting, in flight, done and dead."""
    with connect(servers, timeout) as client:
        topics = [each.name for each in client.topics()] if topic is None else [topic]
        groups = [group for name in topics for group in client.groups(name)]
    if as_json:
        print_json([_as_dict(group) for group in groups])
        return
    if not groups:
        remark("no groups; try: quiver consume TOPIC --group workers")
        return
    # One table per topic: a column for the topic would leave too little of 80 columns.
    for name, mine in groupby(groups, key=lambda group: group.topic):
        if topic is None:
            print_line(name, "bold")
        print_groups(list(mine))


@app.command()
def describe(
    topic: Topic,
    name: Group,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show a group's partitions and members, and what has been leased for longest."""
    with connect(servers, timeout) as client:
        group = client.group(topic, name)
        leased = client.in_flight(topic, name, _LEASED_LISTED) if group.in_flight else []
    if as_json:
        print_json({**_as_dict(group), "leased": [asdict(each) for each in leased]})
        return
    print_line(_summary(group), "bold")
    _print_partitions(group)
    _print_members(group)
    _print_in_flight(group, leased)


@app.command()
def seek(
    topic: Topic,
    name: Group,
    to: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="earliest, latest, an offset, a time (2025-01-31T12:00) or an age (2h).",
        ),
    ],
    partition: Partition = None,
    create: Annotated[bool, typer.Option("--create", help="Create the group if needed.")] = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Move a group to another position.

    All messages from there on are delivered, again or for the first time; none before it.
    """
    position = parse_position(to, "--to")
    with connect(servers, timeout) as client:
        if (
            isinstance(position, int)
            and partition is None
            and len(client.topic(topic).partitions) > 1
        ):
            raise UsageError("an offset counts within one partition: name it by --partition")
        groups = [] if create else [group.name for group in client.groups(topic)]
        if not create and name not in groups:
            known = ", ".join(groups) or "none"
            raise UsageError(
                f"{topic} has no group {name!r}, only: {known}. With --create it gets one"
            )
        offsets = client.seek(topic, name, position, partition)
    if as_json:
        print_json({"topic": topic, "group": name, "offsets": offsets})
        return
    for number, offset in sorted(offsets.items()):
        print_line(f"{name} continues at offset {offset:,} of {topic} partition {number}")


@app.command()
def delete(
    topic: Topic,
    name: Group,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Delete a group and its progress; the messages stay."""
    with connect(servers, timeout) as client:
        group = client.group(topic, name)
        question = f"Delete group {name} of {topic}, with {count(len(group.members), 'member')}?"
        confirm(question, yes=yes)
        client.delete_group(topic, name)
    if as_json:
        print_json({"topic": topic, "deleted": name})
    else:
        print_line(f"group {name} of {topic} is deleted")


def _summary(group: "GroupInfo") -> str:
    members = count(len(group.members), "member")
    generation = f", generation {group.generation}" if group.generation else ""
    return f"{group.name} of {group.topic}: {group.mode}, {members}{generation}"


def print_groups(groups: list["GroupInfo"]) -> None:
    """Print groups of one topic as a table."""
    made = table("group", "mode", "members>", *_columns(groups))
    for group in groups:
        made.add_row(group.name, group.mode, str(len(group.members)), *_cells(group, groups))
    print_table(made)


def _print_partitions(group: "GroupInfo") -> None:
    if group.mode == "shared":
        made = table("partition>", "done below>", *_columns(group.partitions))
        for each in group.partitions:
            made.add_row(str(each.partition), f"{each.floor:,}", *_cells(each, group.partitions))
    else:
        made = table("partition>", "committed>", "end>", "lag>")
        for each in group.partitions:
            committed = "-" if each.committed is None else f"{each.committed:,}"
            made.add_row(str(each.partition), committed, f"{each.end_offset:,}", f"{each.lag:,}")
    print_table(made)


def _print_members(group: "GroupInfo") -> None:
    if not group.members:
        remark("no member consumes at the moment")
        return
    last = "partitions" if group.mode == "sticky" else "in flight>"
    made = table("member", last)
    for member in group.members:
        holds = numbers(member.partitions) if group.mode == "sticky" else f"{member.in_flight:,}"
        made.add_row(escape(member.name or member.id), holds)
    print_table(made)


def _print_in_flight(group: "GroupInfo", leased: list["InFlightInfo"]) -> None:
    if not leased:
        return
    made = table("leased to", "partition>", "offset>", "messages>", "delivery>", "held>", "left>")
    for each in leased:
        made.add_row(
            escape(each.program or each.member),
            str(each.partition),
            f"{each.offset:,}",
            f"{each.count:,}",
            str(each.deliveries),
            format_duration(round(each.held)),
            format_duration(round(each.left)),
        )
    print_table(made)
    listed = sum(each.count for each in leased)
    if listed < group.in_flight:
        remark(f"{group.in_flight - listed:,} more in flight")


def _columns(rows: "Sequence[_Counted]") -> list[str]:
    """The columns; `lost` only if there is any, since 80 columns are few."""
    lost = ["lost>"] if any(each.lost for each in rows) else []
    return ["lag>", "in flight>", "delayed>", "done>", "dead>", *lost]


def _cells(of: "_Counted", rows: "Sequence[_Counted]") -> list[str]:
    """The cells of these columns."""
    dead = f"[yellow]{of.dead:,}[/]" if of.dead else "0"
    lost = [f"[red]{of.lost:,}[/]"] if any(each.lost for each in rows) else []
    return [f"{of.lag:,}", f"{of.in_flight:,}", f"{of.delayed:,}", f"{of.done:,}", dead, *lost]


def _as_dict(group: "GroupInfo") -> dict[str, Any]:
    return {**asdict(group), **{name: getattr(group, name) for name in _COUNTS}}
