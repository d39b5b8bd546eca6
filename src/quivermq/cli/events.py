"""`quiver events`: shows what happened in the cluster, and what happens."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from quivermq.cli.errors import UsageError
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Servers,
    Timeout,
    connect,
)
from quivermq.cli.output import print_json, print_table, printable, remark, table
from quivermq.events import KINDS
from quivermq.quantities import parse_duration

if TYPE_CHECKING:
    from quivermq.events import Event

app = typer.Typer(add_completion=False)


@app.command()
def events(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")
    ] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Only of this kind; several times for several."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="AGO", help="From so long ago on, as 10m or 7d; default: all."),
    ] = None,
    kinds: Annotated[bool, typer.Option("--kinds", help="List the kinds, and exit.")] = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show what happened in the cluster: leaders, brokers, damage, refusals.

    With --json each line is one JSON object.
    """
    if kinds:
        _print_kinds(as_json=as_json)
        return
    seconds = _seconds(since)
    is_any = False
    with connect(servers, timeout) as client:
        for event in client.events(kinds=kind, since=seconds, follow=follow):
            is_any = True
            sys.stdout.write((_json(event) if as_json else _line(event)) + "\n")
            sys.stdout.flush()
    if not (is_any or as_json):
        remark("there are no such events; --follow waits for some")


def _print_kinds(*, as_json: bool) -> None:
    if as_json:
        print_json(KINDS)
        return
    made = table("kind", "meaning")
    for name, meaning in KINDS.items():
        made.add_row(name, meaning)
    print_table(made)


def _seconds(since: str | None) -> float | None:
    try:
        return None if since is None else parse_duration(since)
    except ValueError as error:
        raise UsageError(f"--since: {error}") from error


def _json(event: "Event") -> str:
    return json.dumps({**event.to_json(), "offset": event.offset})


def _line(event: "Event") -> str:
    return printable(f"{event.time} {event.kind:<16} {event.detail}".encode("utf-8", "replace"))
