"""`quiver delayed`: messages that wait for their time."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Servers,
    Timeout,
    connect,
)
from quivermq.cli.output import count, print_json, print_line, print_table, remark, table
from quivermq.cli.quantities import format_duration

app = typer.Typer(add_completion=False, no_args_is_help=True)

_LIMIT: Final = 100

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]


@app.command("list")
def list_(
    topic: Topic,
    max_: Annotated[
        int, typer.Option("--max", min=1, metavar="N", help="Show at most so many rows.")
    ] = _LIMIT,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """List messages that were sent with a delay and are not due yet, the next first."""
    with connect(servers, timeout) as client:
        found = client.delayed(topic, limit=max_)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    if not found:
        remark(f"nothing of {topic} is delayed")
        return
    made = table("partition>", "offsets", "messages>", "due", "in>", "priority>")
    instant = datetime.now(UTC)
    for each in found:
        last = each.offset + each.count - 1
        left = max(0, round((each.due - instant).total_seconds()))
        made.add_row(
            str(each.partition),
            f"{each.offset:,}" if each.count == 1 else f"{each.offset:,} to {last:,}",
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
        list[int], typer.Argument(metavar="OFFSET...", min=0, help="As `list` shows them.")
    ],
    partition: Annotated[
        int, typer.Option(min=0, metavar="N", help="The partition that they are in.")
    ] = 0,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Never deliver delayed messages; those that are due already are not touched."""
    with connect(servers, timeout) as client:
        done = client.cancel_delayed(topic, partition, offsets)
    if as_json:
        print_json({"topic": topic, "partition": partition, "cancelled": done})
        return
    print_line(f"{count(done, 'message')} of {topic} will not be delivered")
    if done < len(offsets):
        remark("the others were due already, or cancelled before")
