"""`quiver bench`: how fast messages come and go."""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from quivermq.cli import measurements
from quivermq.cli.local_brokers import LocalBrokers, plan
from quivermq.cli.measurements import Figure, Measure, Workload
from quivermq.cli.errors import UsageError
from quivermq.cli.options import AsJson, Timeout, connect
from quivermq.cli.output import count, print_json, print_table, remark, remarks, table
from quivermq.cli.quantities import format_size

if TYPE_CHECKING:
    from quivermq.client import Client

app = typer.Typer(add_completion=False)
_START_SECONDS_MAX: Final = 30.0


class What(Enum):
    """What to measure."""

    PRODUCE = "produce"
    CONSUME = "consume"
    LATENCY = "latency"
    ALL = "all"


class Fsync(Enum):
    """When the own broker syncs."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


_MEASURES: Final[dict[What, list[Measure]]] = {
    What.PRODUCE: [measurements.produce_many, measurements.producer_send],
    What.CONSUME: [measurements.read_arrow, measurements.read_messages],
    What.LATENCY: [measurements.latency],
}


@app.command()
def bench(
    what: Annotated[
        What, typer.Argument(metavar="[produce|consume|latency|all]", help="What to measure.")
    ] = What.ALL,
    size: Annotated[int, typer.Option(min=1, metavar="BYTES", help="Bytes of a message.")] = 100,
    messages: Annotated[
        int, typer.Option("--count", min=1, metavar="N", help="How many messages.")
    ] = 1_000_000,
    partitions: Annotated[int, typer.Option(min=1, metavar="N", help="Of the topic.")] = 1,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=9, metavar="N", help="Own brokers. [default: 1]")
    ] = None,
    fsync: Annotated[
        Fsync | None, typer.Option(help="When the own brokers sync. [default: always]")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the own brokers keep a temporary folder."),
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option(
            envvar="QUIVER_SERVERS",
            metavar="HOST:PORT,...",
            help="Brokers to measure; without it, own ones are started for the time.",
            rich_help_panel="Connection",
        ),
    ] = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Measure how fast messages come and go, every one acknowledged.

    One client process, a topic of its own that is deleted at the end. What it
    finds depends on the machine: compare runs on the same one.
    """
    if servers and (fsync or data_dir or nodes):
        raise UsageError("--nodes, --fsync and --data-dir are for own brokers: leave --servers out")
    with _brokers(servers, nodes or 1, fsync or Fsync.ALWAYS, data_dir) as (found, told):
        if not as_json:
            remark(told)
        with connect(found, timeout) as client, _topic(client, partitions) as topic:
            figures = _measure(Workload(client, topic, messages, size), what, quiet=as_json)
    if as_json:
        print_json([asdict(figure) for figure in figures])
    else:
        _print(figures)


@contextmanager
def _brokers(
    servers: str | None, nodes: int, fsync: Fsync, parent: Path | None
) -> Iterator[tuple[str, str]]:
    """Whom to connect to, and what to tell about them."""
    if servers:
        yield servers, f"measuring the brokers at {servers}"
        return
    with tempfile.TemporaryDirectory(prefix="quiver-bench-", dir=parent) as folder:
        flags = ["--fsync", fsync.value, "--log-level", "warning"]
        with LocalBrokers(
            plan(nodes, Path(folder), any_ports=True), Path(folder), flags
        ) as brokers:
            brokers.wait_until_serving(_START_SECONDS_MAX)
            whose = "an own broker" if nodes == 1 else f"{nodes} own brokers"
            yield brokers.servers, f"measuring {whose} in {folder}, fsync {fsync.value}"


@contextmanager
def _topic(client: "Client", partitions: int) -> Iterator[str]:
    name = f"bench-{secrets.token_hex(4)}"
    client.create_topic(name, partitions=partitions)
    try:
        yield name
    finally:
        client.delete_topic(name)


def _measure(work: Workload, what: What, *, quiet: bool) -> list[Figure]:
    """The chosen measurements, in an order in which there is something to read."""
    chosen = list(_MEASURES) if what is What.ALL else [what]
    console = remarks()
    console.quiet = quiet or not console.is_terminal
    with console.status("preparing") as status:
        if what is What.CONSUME:
            measurements.produce_many(work)
        figures = []
        for measure in (measure for each in chosen for measure in _MEASURES[each]):
            status.update(f"{measure.__name__}: {count(work.count, 'message')} of {work.size} B")
            figures.append(measure(work))
    return figures


def _print(figures: list[Figure]) -> None:
    made = table("", "messages>", "seconds>", "messages/s>", "bytes/s>", "p50>", "p99>")
    for figure in figures:
        made.add_row(
            figure.name,
            f"{figure.messages:,}",
            f"{figure.seconds:.2f}",
            f"{figure.messages_per_second:,.0f}",
            format_size(round(figure.bytes_per_second)),
            "" if figure.p50_us is None else f"{figure.p50_us:,.0f} µs",
            "" if figure.p99_us is None else f"{figure.p99_us:,.0f} µs",
        )
    print_table(made)
