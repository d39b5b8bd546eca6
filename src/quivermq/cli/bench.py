"""`quiver bench`: measures through the public client, with every message acknowledged."""

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from quivermq.cli import bench_chart
from quivermq.cli.errors import UsageError
from quivermq.cli.local_brokers import LocalBrokers, plan
from quivermq.cli.options import (
    AsJson,
    connect,
    number_option,
    servers_option,
    size_option,
    timeout_option,
)
from quivermq.cli.output import (
    count,
    print_json,
    print_line,
    print_table,
    remark,
    stderr_console,
    stdout_console,
    table,
)
from quivermq.quantities import format_size

if TYPE_CHECKING:
    from quivermq.client import Client

app = typer.Typer(add_completion=False)
_START_SECONDS_MAX: Final = 30.0
_CALL_MESSAGES: Final = 50_000
"""Messages of one `produce_many`."""
_LATENCY_MESSAGES_MAX: Final = 2_000
_WARM_UP_MESSAGES: Final = 200
_REPORT_MESSAGES: Final = 5_000
_REPORT_SECONDS: Final = 0.02
"""More often is neither kept for a chart nor shown."""
_CHART_COLUMNS: Final = 78


Charted = dict[str, list[bench_chart.Point]]
"""How far a measurement was at which time, by its name."""


class Subject(Enum):
    """The choice of measurements."""

    PRODUCE = "produce"
    CONSUME = "consume"
    LATENCY = "latency"
    ALL = "all"


class FsyncPolicy(Enum):
    """When brokers that bench starts write to disk."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement; `p50_us` and `p99_us` only where single messages are timed."""

    name: str
    messages: int
    seconds: float
    messages_per_second: float
    bytes_per_second: float
    p50_us: float | None = None
    p99_us: float | None = None


class Meter:
    """Takes how far a measurement is: for the bar on a terminal, and for its chart."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("preparing", total=None)
        self._began = self._last = 0.0
        self.points: list[bench_chart.Point] = []
        """Of the measurement that runs, or ran last."""
        self.latencies_us: list[float] = []

    def show(self, name: str, total: int) -> None:
        """The next measurement is prepared. What it reports is its own: the points of the one
        before stay as they are."""
        self.points = []
        self._progress.update(self._task, description=name, total=total, completed=0)
        # At once: the bar's own turn may come when a short measurement is over.
        self._progress.refresh()

    def begin(self) -> float:
        """It begins now; returns the time."""
        self._began = self._last = time.perf_counter()
        return self._began

    def report(self, done: int) -> None:
        """So many messages are done; cheap enough to be called within a measurement."""
        now = time.perf_counter()
        if now - self._last >= _REPORT_SECONDS:
            self._last = now
            self.points.append((now - self._began, done))
            self._progress.update(self._task, completed=done)


@dataclass(frozen=True, slots=True)
class Workload:
    """The messages to send, and the topic."""

    client: "Client"
    topic: str
    count: int
    size: int
    meter: Meter

    def values(self) -> list[bytes]:
        """The messages of one call: random, so that compression gains nothing."""
        noise = os.urandom(self.size * min(self.count, _CALL_MESSAGES))
        return [noise[at : at + self.size] for at in range(0, len(noise), self.size)]

    def result(self, name: str, messages: int, seconds: float) -> Measurement:
        rate = messages / seconds
        return Measurement(name, messages, seconds, rate, rate * self.size)


@app.command()
def bench(
    what: Annotated[
        Subject, typer.Argument(metavar="[produce|consume|latency|all]", help="What to measure.")
    ] = Subject.ALL,
    size: Annotated[int, size_option("The size of a message: 100, 64KiB.", "--size")] = 100,
    messages: Annotated[int, number_option("How many messages.", "--count")] = 1_000_000,
    partitions: Annotated[int, number_option("How many partitions.")] = 1,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=9, metavar="N", help="How many brokers to start. [default: 1]"),
    ] = None,
    fsync: Annotated[
        FsyncPolicy | None, typer.Option(help="When these brokers sync. [default: always]")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where these brokers keep a temporary folder."),
    ] = None,
    servers: Annotated[
        str | None, servers_option("Brokers to measure; without it, bench starts its own.")
    ] = None,
    timeout: Annotated[float, timeout_option("30s")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Measure produce and consume throughput, and latency; every message is acknowledged.

    It uses one client process and a topic of its own, deleted at the end. The
    results depend on the machine: compare runs on the same one.
    """
    if size < 1:
        raise UsageError("--size: a message has at least one byte")
    if servers and (fsync or data_dir or nodes):
        raise UsageError(
            "--nodes, --fsync and --data-dir are for brokers of its own: leave --servers out"
        )
    with _brokers(servers, nodes or 1, fsync or FsyncPolicy.ALWAYS, data_dir) as (found, title):
        if not as_json:
            remark(title)
        # Brokers of its own have no TLS, whatever the environment says.
        tls = None if servers else False
        with (
            connect(found, timeout, tls=tls) as client,
            _topic(client, partitions) as topic,
            _progress(quiet=as_json) as progress,
        ):
            meter = Meter(progress)
            measured, charted = _measure(Workload(client, topic, messages, size, meter), what)
    if as_json:
        print_json([asdict(each) for each in measured])
    else:
        _print(measured)
        console = stdout_console()
        if console.is_terminal:
            columns = min(console.width, _CHART_COLUMNS)
            _print_charts(measured, charted, meter.latencies_us, columns)


@contextmanager
def _brokers(
    servers: str | None, nodes: int, fsync: FsyncPolicy, parent: Path | None
) -> Iterator[tuple[str, str]]:
    """The brokers to connect to, started if none are named; and a line about them."""
    if servers:
        yield servers, f"measuring the brokers at {servers}"
        return
    with tempfile.TemporaryDirectory(prefix="quiver-bench-", dir=parent) as folder:
        flags = ["--fsync", fsync.value, "--log-level", "warning"]
        with LocalBrokers(
            plan(nodes, Path(folder), any_ports=True), Path(folder), flags
        ) as brokers:
            brokers.wait_until_serving(_START_SECONDS_MAX)
            yield (
                brokers.servers,
                f"measuring {count(nodes, 'broker')} in {folder}, fsync {fsync.value}",
            )


@contextmanager
def _topic(client: "Client", partitions: int) -> Iterator[str]:
    name = f"bench-{secrets.token_hex(4)}"
    client.create_topic(name, partitions=partitions)
    try:
        yield name
    finally:
        client.delete_topic(name)


def _progress(*, quiet: bool) -> Progress:
    """A bar on standard error, if that is a terminal; gone at the end."""
    console = stderr_console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


def _measure(work: Workload, what: Subject) -> tuple[list[Measurement], Charted]:
    """Run the measurements; produce comes first, so that there is something to read."""
    chosen = list(_MEASURES) if what is Subject.ALL else [what]
    stored, measured, charted = 0, [], {}
    if what is Subject.CONSUME:
        work.meter.show("preparing", work.count)
        stored = produce_many(work).messages
    for subject in chosen:
        for measure in _MEASURES[subject]:
            total = {Subject.CONSUME: stored, Subject.LATENCY: _latency_count(work)}
            work.meter.show(measure.__name__, total.get(subject, work.count))
            found = measure(work)
            measured.append(found)
            if subject is not Subject.LATENCY:
                charted[found.name] = work.meter.points
            if subject is Subject.PRODUCE:
                stored += found.messages
    return measured, charted


def _print(measured: list[Measurement]) -> None:
    made = table("", "messages>", "seconds>", "messages/s>", "bytes/s>", "p50>", "p99>")
    for each in measured:
        made.add_row(
            each.name,
            f"{each.messages:,}",
            f"{each.seconds:.2f}",
            f"{each.messages_per_second:,.0f}",
            format_size(round(each.bytes_per_second)),
            "" if each.p50_us is None else f"{each.p50_us:,.0f} µs",
            "" if each.p99_us is None else f"{each.p99_us:,.0f} µs",
        )
    print_table(made)


def _print_charts(
    measured: list[Measurement], charted: Charted, latencies_us: list[float], columns: int
) -> None:
    """Rates beside each other and over time, and latencies."""
    rates = [(each.name, each.messages_per_second) for each in measured]
    charts = [("messages/s", bench_chart.bars(rates, columns))]
    for name, points in charted.items():
        charts.append((f"{name}: messages/s over time", bench_chart.over_time(points, columns)))
    charts.append(("latency of a produce", bench_chart.latencies(latencies_us, columns)))
    for title, lines in charts:
        if lines:
            print_line(title, "bold")
            for line in [*lines, ""]:
                print_line(line)


def produce_many(work: Workload) -> Measurement:
    """Send lists of messages."""
    values = work.values()
    began = work.meter.begin()
    for left in range(work.count, 0, -len(values)):
        work.client.produce_many(work.topic, values[:left])
        work.meter.report(work.count - max(0, left - len(values)))
    return work.result("produce_many", work.count, time.perf_counter() - began)


def producer_send(work: Workload) -> Measurement:
    """Send one message a call; the producer makes batches."""
    values = work.values()
    with work.client.producer() as producer:
        began = work.meter.begin()
        for left in range(work.count, 0, -len(values)):
            for first in range(0, min(left, len(values)), _REPORT_MESSAGES):
                end = min(left, first + _REPORT_MESSAGES)
                for value in values[first:end]:
                    last = producer.send(work.topic, value)
                work.meter.report(work.count - left + end)
        producer.flush()
        last.result()
        seconds = time.perf_counter() - began
    return work.result("producer.send", work.count, seconds)


def read_arrow(work: Workload) -> Measurement:
    """Read everything as Arrow batches."""
    began = work.meter.begin()
    rows = 0
    for partition in _partitions(work):
        for batch in work.client.read(work.topic, partition).batches():
            rows += batch.num_rows
            work.meter.report(rows)
    return work.result("read, Arrow", rows, time.perf_counter() - began)


def read_messages(work: Workload) -> Measurement:
    """Read everything as message objects."""
    began = work.meter.begin()
    read = 0
    for partition in _partitions(work):
        messages = iter(work.client.read(work.topic, partition))
        while taken := sum(1 for _ in islice(messages, _REPORT_MESSAGES)):
            read += taken
            work.meter.report(read)
    return work.result("read, messages", read, time.perf_counter() - began)


def measure_latency(work: Workload) -> Measurement:
    """Send one message at a time, each acknowledged before the next."""
    messages = _latency_count(work)
    values = work.values()
    for value in values[:_WARM_UP_MESSAGES]:
        work.client.produce(work.topic, value)
    times = []
    work.meter.begin()
    for number in range(messages):
        began = time.perf_counter()
        work.client.produce(work.topic, values[number % len(values)])
        times.append(time.perf_counter() - began)
        work.meter.report(number)
    work.meter.latencies_us = [each * 1e6 for each in times]
    times.sort()
    rate = messages / sum(times)
    return Measurement(
        "produce, one at a time",
        messages,
        sum(times),
        rate,
        rate * work.size,
        p50_us=times[len(times) // 2] * 1e6,
        p99_us=times[len(times) * 99 // 100] * 1e6,
    )


def _latency_count(work: Workload) -> int:
    return min(work.count, _LATENCY_MESSAGES_MAX)


def _partitions(work: Workload) -> range:
    return range(len(work.client.topic(work.topic).partitions))


_MEASURES: Final[dict[Subject, list[Callable[[Workload], Measurement]]]] = {
    Subject.PRODUCE: [produce_many, producer_send],
    Subject.CONSUME: [read_arrow, read_messages],
    Subject.LATENCY: [measure_latency],
}
