"""`quiver produce`: sends messages from arguments, or the lines of standard input."""

import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from quivermq.cli.errors import UsageError
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Partition,
    Servers,
    Timeout,
    Topic,
    connect,
    duration_option,
    parse_position,
)
from quivermq.cli.output import count, print_json, print_line, remark, stderr_console
from quivermq.quantities import format_size

if TYPE_CHECKING:
    from datetime import datetime

    from quivermq.client import Delivery, Producer, Receipt

app = typer.Typer(add_completion=False)

# Messages sent and not acknowledged; past this, reading waits for the oldest.
_UNACKNOWLEDGED_MAX: Final = 50_000
_SETTLE_EVERY: Final = 1_000


ContentType = Annotated[
    str | None, typer.Option(metavar="TYPE", help="What the values are, as in application/json.")
]
Time = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Their own time: 2025-01-31T12:00, or milliseconds since 1970."
    ),
]
Ttl = Annotated[
    float | None,
    duration_option("What no consumer of a group took by then is not delivered to it."),
]


@app.command()
def produce(
    topic: Topic,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUE...]", help="The messages; without any, the lines of standard input."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Their key; messages with the same key keep their order."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Each message is its key, this text, and its value."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    priority: Annotated[
        int, typer.Option(min=0, max=7, metavar="0-7", help="Higher ones are delivered first.")
    ] = 0,
    delay: Annotated[
        float, duration_option("Deliver them after this delay.", show_default=False)
    ] = 0.0,
    partition: Partition = None,
    content_type: ContentType = None,
    timestamp: Time = None,
    ttl: Ttl = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Send messages to a topic, and print where they are stored."""
    if key is not None and key_separator is not None:
        raise UsageError("--key and --key-separator both name a key: give one of them")
    options = {
        "priority": priority,
        "delay": delay,
        "partition": partition,
        "headers": parse_headers(header or []) or None,
        "content_type": content_type,
        "ttl": ttl,
        "timestamp": _timestamp(timestamp),
    }
    lines = _arguments(values) if values else _input_lines()
    keyed = _keyed(lines, key, key_separator)
    with connect(servers, timeout) as client:
        started = time.monotonic()
        sender = _Sender(topic, options)
        try:
            with client.producer() as producer:
                sender.run(producer, keyed, is_quiet=as_json)
        except BaseException as error:
            # To send the rest again one has to know what is stored; of nothing the error tells.
            sender.take_stock()
            if sender.messages or (sender.unconfirmed and isinstance(error, KeyboardInterrupt)):
                _report(sender, topic, time.monotonic() - started, as_json=as_json)
            raise
    _report(sender, topic, time.monotonic() - started, as_json=as_json)


class _Sender:
    """Sends as fast as the cluster acknowledges, and records where messages are stored."""

    def __init__(self, topic: str, options: dict[str, Any]) -> None:
        self._topic = topic
        self._options = options
        self._open: deque[Delivery] = deque()
        self.messages = 0
        """Messages that are stored."""
        self.first_open = 0
        """The number of the first message that is not known to be stored; 0: all are."""
        self.unconfirmed = 0
        self.size_bytes = 0
        self.ranges: dict[int, list[int]] = {}
        """First and last offset by partition; other producers may have stored some between them."""

    def run(
        self,
        producer: "Producer",
        messages: Iterator[tuple[bytes | None, bytes]],
        *,
        is_quiet: bool,
    ) -> None:
        console = stderr_console()
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            # Progress would mix with lines typed at the terminal.
            disable=is_quiet or not console.is_terminal or sys.stdin.isatty(),
        ) as progress:
            task = progress.add_task("sending")
            send, topic, options, opened = (
                producer.send, self._topic, self._options, self._open,
            )  # fmt: skip
            for key, value in messages:
                opened.append(send(topic, value, key=key, **options))
                self.size_bytes += len(value)
                if len(opened) % _SETTLE_EVERY == 0:
                    self._settle(_UNACKNOWLEDGED_MAX)
                    progress.update(task, description=f"{self.messages:,} messages stored")
            producer.flush()
            self._settle(0)

    def _settle(self, opened_max: int) -> None:
        """Take the receipts that have come; wait for more while too many are open."""
        opened = self._open
        while opened and (len(opened) > opened_max or opened[0].done()):
            receipt = opened[0].result()
            opened.popleft()
            self._record(receipt)

    def take_stock(self) -> None:
        """Record what was stored before a failure or an interruption; the rest is unconfirmed."""
        for number, delivery in enumerate(self._open, self.messages + 1):
            if delivery.done() and delivery.exception() is None:
                self._record(delivery.result())
            else:
                self.unconfirmed += 1
                self.first_open = self.first_open or number

    def _record(self, receipt: "Receipt") -> None:
        self.messages += 1
        # One producer's messages keep their order: the latest has the highest offset.
        first, _ = self.ranges.setdefault(receipt.partition, [receipt.offset, receipt.offset])
        self.ranges[receipt.partition] = [first, receipt.offset]


def _report(sender: _Sender, topic: str, seconds: float, *, as_json: bool) -> None:
    if as_json:
        stored = [
            {"partition": partition, "first_offset": first, "last_offset": last}
            for partition, (first, last) in sorted(sender.ranges.items())
        ]
        told = {"topic": topic, "messages": sender.messages, "stored": stored}
        if sender.unconfirmed:
            told |= {"unconfirmed": sender.unconfirmed, "first_unconfirmed": sender.first_open}
        print_json(told)
        return
    for partition, (first, last) in sorted(sender.ranges.items()):
        offsets = f"offset {first:,}" if first == last else f"offsets {first:,} to {last:,}"
        print_line(f"{topic} partition {partition}: {offsets}")
    if sender.unconfirmed:
        remark(
            f"{count(sender.messages, 'message')} stored; {sender.unconfirmed:,} sent and not "
            f"confirmed, the first of them is message {sender.first_open:,}",
            "yellow",
        )
        return
    rate = f", {sender.messages / seconds:,.0f} a second" if sender.messages >= 1_000 else ""
    remark(
        f"{count(sender.messages, 'message')} stored, {format_size(sender.size_bytes)} "
        f"in {seconds:.2f} s{rate}"
    )


def _timestamp(text: str | None) -> "datetime | int | None":
    found: datetime | int | None = parse_position(text, "--timestamp", names=())
    return found


def _arguments(values: list[str]) -> Iterator[bytes]:
    # Arguments that are not UTF-8 stay the same bytes.
    return (value.encode("utf-8", "surrogateescape") for value in values)


def _input_lines() -> Iterator[bytes]:
    if sys.stdin.isatty():
        remark("type one message a line; Ctrl-D ends")
    return (line.removesuffix(b"\n") for line in sys.stdin.buffer)


def _keyed(
    lines: Iterator[bytes], key: str | None, separator: str | None
) -> Iterator[tuple[bytes | None, bytes]]:
    if separator is None:
        fixed = None if key is None else key.encode("utf-8", "surrogateescape")
        yield from ((fixed, line) for line in lines)
        return
    between = separator.encode("utf-8", "surrogateescape")
    for number, line in enumerate(lines, 1):
        found, hit, value = line.partition(between)
        if not hit:
            raise UsageError(f"message {number} has no {separator!r} between key and value")
        yield found, value


def parse_headers(pairs: list[str]) -> dict[str, bytes]:
    """Headers of `name=value` texts."""
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"write --header name=value instead of {pair!r}")
        headers[name] = value.encode("utf-8", "surrogateescape")
    return headers
