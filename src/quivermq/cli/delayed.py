"""`quiver delayed`: lists and cancels delayed messages."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from quivermq.cli.errors import UsageError
from quivermq.cli.options import (
    DEFAULT_ROWS,
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    MaxRows,
    Servers,
    Timeout,
    Topic,
    connect,
    number_option,
    parse_place,
)
from quivermq.cli.output import count, print_json, print_line, print_table, remark, table
from quivermq.quantities import format_duration

if TYPE_CHECKING:
    from quivermq.client import Client

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command("list")
def list_(
    topic: Topic,
    max_: MaxRows = DEFAULT_ROWS,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """List delayed messages that are not due yet, the next first."""
    with connect(servers, timeout) as client:
        found = client.delayed(topic, limit=max_)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    if not found:
        remark(f"{topic} has no delayed messages")
        return
    made = table("messages", "count>", "due", "in>", "priority>")
    now = datetime.now(UTC)
    for each in found:
        first, last = (
            f"{each.partition}/{at}" for at in (each.offset, each.offset + each.count - 1)
        )
        left = max(0, round((each.due - now).total_seconds()))
        made.add_row(
            first if each.count == 1 else f"{first} to {last}",
            f"{each.count:,}",
            f"{each.due.astimezone():%Y-%m-%d %H:%M:%S}",
            format_duration(left),
            str(each.priority),
        )
    print_table(made)


@app.command()
def cancel(
    topic: Topic,
    offsets: Annotated[
        list[str],
        typer.Argument(
            metavar="PARTITION/OFFSET...",
            help="The messages, as in `list`; an offset alone in a topic of one partition.",
        ),
    ],
    partition: Annotated[
        int | None, number_option("The partition of offsets alone.", least=0)
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Cancel delayed messages; those that are due already are delivered."""
    with connect(servers, timeout) as client:
        by_partition = _by_partition(client, topic, offsets, partition)
        done = sum(
            client.cancel_delayed(topic, number, chosen) for number, chosen in by_partition.items()
        )
    if as_json:
        print_json({"topic": topic, "cancelled": done})
        return
    print_line(f"{count(done, 'message')} of {topic} will not be delivered")
    if done < len(offsets):
        remark("the others were due already, or cancelled before")


def _by_partition(
    client: "Client", topic: str, names: list[str], partition: int | None
) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in names:
        number, offset = parse_place(name)
        if number is None:
            number = partition
        if number is None:
            if len(client.topic(topic).partitions) > 1:
                raise UsageError(f"{topic} has several partitions: write PARTITION/{offset}")
            number = 0
        found.setdefault(number, []).append(offset)
    return found
