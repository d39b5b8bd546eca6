"""`quiver group`: what groups of consumers are at, and where they go on."""

from dataclasses import asdict
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from quivermq.cli.errors import UsageError
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Servers,
    Timeout,
    Yes,
    connect,
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
from quivermq.cli.quantities import parse_moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quivermq.client import GroupInfo, GroupPartitionInfo

    _Counted = GroupInfo | GroupPartitionInfo

app = typer.Typer(add_completion=False, no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that the group reads.")]
Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]
_FIGURES = ("lag", "in_flight", "delayed", "done", "dead", "lost", "redelivered")


@app.command("list")
def list_(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Only groups of this topic.")
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """List groups: what waits for each, what is under way, done and dead."""
    with connect(servers, timeout) as client:
        topics = [each.name for each in client.topics()] if topic is None else [topic]
        groups = [group for name in topics for group in client.groups(name)]
    if as_json:
        print_json([_plain(group) for group in groups])
        return
    if not groups:
        remark("no groups; try: quiver consume TOPIC --group workers")
        return
    # A table a topic: a column for the topic would leave too little of 80 for the figures.
    for name, mine in groupby(groups, key=lambda group: group.topic):
        if topic is None:
            print_line(name, "bold")
        _print_groups(list(mine))


@app.command()
def describe(
    topic: Topic,
    name: Name,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show a group: each partition, and who its members are."""
    with connect(servers, timeout) as client:
        group = client.group(topic, name)
    if as_json:
        print_json(_plain(group))
        return
    print_line(_summary(group), "bold")
    _print_partitions(group)
    _print_members(group)


@app.command()
def seek(
    topic: Topic,
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="earliest, latest, an offset, a time (2025-01-31T12:00) or an age (2h).",
        ),
    ],
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only in this partition.")
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Let a group go on somewhere else.

    All from there on is delivered, again or for the first time; nothing before it.
    """
    place = _place(to)
    with connect(servers, timeout) as client:
        if isinstance(place, int) and partition is None and len(client.topic(topic).partitions) > 1:
            raise UsageError("an offset counts within one partition: name it by --partition")
        places = client.seek(topic, name, place, partition)
    if as_json:
        print_json({"topic": topic, "group": name, "offsets": places})
        return
    for number, offset in sorted(places.items()):
        print_line(f"{name} goes on at offset {offset:,} of {topic} partition {number}")


@app.command()
def delete(
    topic: Topic,
    name: Name,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Forget what a group has done; the messages stay."""
    with connect(servers, timeout) as client:
        group = client.group(topic, name)
        question = f"Forget group {name} of {topic}, with {count(len(group.members), 'member')}?"
        if not yes and not typer.confirm(question, err=True):
            remark(f"{name} was left as it is")
            raise typer.Exit(1)
        client.delete_group(topic, name)
    if as_json:
        print_json({"topic": topic, "deleted": name})
    else:
        print_line(f"group {name} of {topic} is deleted")


def _place(to: str) -> str | int | datetime:
    if to in {"earliest", "latest"}:
        return to
    if to.isascii() and to.isdigit():
        return int(to)
    try:
        return parse_moment(to, datetime.now().astimezone())
    except ValueError as error:
        raise UsageError(f"--to: {error}; or earliest, latest or an offset") from None


def _summary(group: "GroupInfo") -> str:
    members = count(len(group.members), "member")
    generation = f", generation {group.generation}" if group.generation else ""
    return f"{group.name} of {group.topic}: {group.mode}, {members}{generation}"


def _print_groups(groups: list["GroupInfo"]) -> None:
    made = table("group", "mode", "members>", *_columns(groups))
    for group in groups:
        made.add_row(group.name, group.mode, str(len(group.members)), *_figures(group, groups))
    print_table(made)


def _print_partitions(group: "GroupInfo") -> None:
    if group.mode == "shared":
        made = table("partition>", "done below>", *_columns(group.partitions))
        for each in group.partitions:
            made.add_row(str(each.partition), f"{each.floor:,}", *_figures(each, group.partitions))
    else:
        made = table("partition>", "committed>", "end>", "lag>")
        for each in group.partitions:
            committed = "-" if each.committed is None else f"{each.committed:,}"
            made.add_row(str(each.partition), committed, f"{each.end_offset:,}", f"{each.lag:,}")
    print_table(made)


def _print_members(group: "GroupInfo") -> None:
    if not group.members:
        remark("nobody consumes for it at the moment")
        return
    last = "partitions" if group.mode == "sticky" else "in flight>"
    made = table("member", last)
    for member in group.members:
        holds = numbers(member.partitions) if group.mode == "sticky" else f"{member.in_flight:,}"
        made.add_row(escape(member.name or member.id), holds)
    print_table(made)


def _columns(rows: "Sequence[_Counted]") -> list[str]:
    """What is lost is seldom anything: only then it takes room, which 80 columns have not much."""
    lost = ["lost>"] if any(each.lost for each in rows) else []
    return ["lag>", "in flight>", "delayed>", "done>", "dead>", *lost]


def _figures(of: "_Counted", rows: "Sequence[_Counted]") -> list[str]:
    """The cells under these columns."""
    dead = f"[yellow]{of.dead:,}[/]" if of.dead else "0"
    lost = [f"[red]{of.lost:,}[/]"] if any(each.lost for each in rows) else []
    return [f"{of.lag:,}", f"{of.in_flight:,}", f"{of.delayed:,}", f"{of.done:,}", dead, *lost]


def _plain(group: "GroupInfo") -> dict[str, Any]:
    return {**asdict(group), **{name: getattr(group, name) for name in _FIGURES}}
