"""What counting costs a broker: its processor time with and without, in turns, in one run.

    python -m benchmarks.metrics_cost [--messages 20] [--rounds 600] [--json]

The broker runs in this process, a client in one of its own. In every second round the methods on
the way of a produce, a poll and an ack are replaced by themselves without the lines that count. One
message at a time is the worst case: brokers count by batch. Rounds are short and many, and each is
compared with the next one: what else the machine does changes more slowly. Scrapes are measured
apart, and told as a share of the 15 seconds between two of them.
"""

import argparse
import asyncio
import contextlib
import inspect
import json
import multiprocessing
import statistics
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

import quivermq
from benchmarks.metrics import scrapes
from quivermq.node import Histogram
from quivermq.node.handlers.poll import PollHandler
from quivermq.node.handlers.produce import PendingProduce
from quivermq.node.handlers.settle import SettleHandler
from quivermq.node.service import Service
from quivermq.settings import BrokerSettings
from quivermq.transports import Server
from quivermq.transports.metrics import Metrics
from quivermq.transports.session import Session

TARGET = 0.02
SCRAPE_EVERY_S = 15.0
COUNTING: list[tuple[type, str, tuple[str, ...]]] = [
    (PendingProduce, "_finish", ("self._count()", "counters.produce_seconds.observe(")),
    (PollHandler, "_answer", ("self._count(poll.body",)),
    (SettleHandler, "_settle_at", ("self._counters.shares[",)),
    (Service, "submit", ("self._counters.requests += 1",)),
    (Session, "_begin", ("self._passed.requests += 1",)),
    (Session, "_send", ("self._passed.refused[", 'if response.HasField("error"):')),
    (Histogram, "observe", ("self.counts[", "self.total +=")),
]
"""Each line that counts on these ways: its class, its method, how it begins."""


def without_counting(owner: type, name: str, lines: tuple[str, ...]) -> Callable[..., Any]:
    """A method without these lines, each of which is there exactly once."""
    method = getattr(owner, name)
    kept, found = [], 0
    for line in textwrap.dedent(inspect.getsource(method)).splitlines():
        if line.strip().startswith(lines):
            found += 1
            # A block keeps something to do.
            line = line[: len(line) - len(line.lstrip())] + "pass"  # noqa: PLW2901
            if any(each.startswith("if ") for each in lines):
                continue
        kept.append(line)
    if found != len(lines):
        raise ValueError(f"{owner.__name__}.{name} does not count as it did: look at COUNTING")
    made: dict[str, Any] = {}
    code = compile("\n".join(kept), f"{name} without counting", "exec")
    exec(code, method.__globals__, made)
    return made[name]  # type: ignore[no-any-return]


@contextlib.contextmanager
def uncounted(stripped: list[tuple[type, str, Callable[..., Any]]]) -> Iterator[None]:
    """Within this, the broker of this process counts nothing."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in COUNTING]
    for owner, name, method in stripped:
        setattr(owner, name, method)
    try:
        yield
    finally:
        for owner, name, method in before:
            setattr(owner, name, method)


def load(servers: str, messages: int, orders: Connection) -> None:
    """The client's process: so many messages for each order, produced, polled and acknowledged."""
    with quivermq.connect(servers) as client:
        client.create_topic("orders")
        while orders.recv():
            for _ in range(messages):
                client.produce("orders", b"x" * 100)
                client.poll("orders", group="g", max_messages=1)[0].ack()
            orders.send("done")


async def measure(messages: int, rounds: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        settings = BrokerSettings(
            data_dir=folder,
            listen="127.0.0.1:0",
            peer_listen="127.0.0.1:0",
            http="",
            grpc="",
            fsync="never",
        )
        server = Server(settings)
        await server.start()
        ours, theirs = context.Pipe()
        client = context.Process(target=load, args=(server.listen, messages, theirs), daemon=True)
        client.start()
        loop = asyncio.get_running_loop()

        async def round_() -> float:
            """The processor time of the loop's thread, in microseconds a message."""
            began = time.thread_time()
            ours.send(True)
            await loop.run_in_executor(pool, ours.recv)
            return (time.thread_time() - began) / messages * 1e6

        try:
            await round_()
            stripped = [(each[0], each[1], without_counting(*each)) for each in COUNTING]
            with_counting, without = [], []
            for _ in range(rounds):
                with_counting.append(await round_())
                with uncounted(stripped):
                    without.append(await round_())
            scrape = await scrapes(Metrics(server.broker, lambda: 0))
            ours.send(False)
        finally:
            await server.stop()
        await loop.run_in_executor(pool, client.join)
    return {"with": with_counting, "without": without, "scrape_ms": scrape["scrape_ms"]}


def summary(found: dict[str, Any]) -> dict[str, float]:
    pairs = [one / other - 1 for one, other in zip(found["with"], found["without"], strict=True)]
    counting = statistics.median(pairs)
    # The standard error of a median, from the median deviation: a few rounds are far off.
    spread = statistics.median(abs(pair - counting) for pair in pairs) * 1.4826
    scraping = found["scrape_ms"] / 1000 / SCRAPE_EVERY_S
    return {
        "with_us": statistics.median(found["with"]),
        "without_us": statistics.median(found["without"]),
        "counting": counting,
        "error": 1.2533 * spread / len(pairs) ** 0.5,
        "scraping": scraping,
        "all": counting + scraping,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--messages", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=600)
    chosen, _ = parser.parse_known_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = summary(runner.run(measure(chosen.messages, chosen.rounds)))
    if chosen.json:
        print(json.dumps({"metrics_cost": found}))
        return
    table = Table(title="the cost of metrics to a broker", caption="one message at a time; medians")
    for head in ("with", "without", "counting", "error", "scraping", "all", "target"):
        table.add_column(head, justify="right")
    table.add_row(
        f"{found['with_us']:.1f} µs",
        f"{found['without_us']:.1f} µs",
        f"{found['counting']:.2%}",
        f"± {found['error']:.2%}",
        f"{found['scraping']:.3%}",
        f"{found['all']:.2%}",
        f"{TARGET:.0%}",
    )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
