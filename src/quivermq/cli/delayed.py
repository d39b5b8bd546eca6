"""`quiver delayed`: lists and cancels delayed messages."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

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
)
from quivermq.cli.output import count, print_json, print_line, print_table, remark, table
from quivermq.quantities import format_duration

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
    made = table("partition>", "offsets", "messages>", "due", "in>", "priority>")
    now = datetime.now(UTC)
    for each in found:
        last = each.offset + each.count - 1
        left = max(0, round((each.due - now).total_seconds()))
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
        list[int], typer.Argument(metavar="OFFSET...", min=0, help="The offsets, as in `list`.")
    ],
    partition: Annotated[int, number_option("Their partition.", least=0)] = 0,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Cancel delayed messages; those that are due already are delivered."""
    with connect(servers, timeout) as client:
        done = client.cancel_delayed(topic, partition, offsets)
    if as_json:
        print_json({"topic": topic, "partition": partition, "cancelled": done})
        return
    print_line(f"{count(done, 'message')} of {topic} will not be delivered")
    if done < len(offsets):
        remark("the others were due already, or cancelled before")
