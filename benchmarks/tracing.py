"""The cost of tracing: of the checks where it is off, and of the spans where it is on.

    python -m benchmarks.tracing [--rounds 5] [--json]

Client and broker share one event loop in this process, so the processor time of its thread is that
of both. Off: how often an operation looks whether it is traced, times what one look takes, as a
share of what the operation takes. On: the same operations with a tracer at both ends, in turns with
those without; spans go through OpenTelemetry's batch processor to an exporter that drops them.
"""

import argparse
import asyncio
import json
import tempfile
import time
import timeit
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from rich.console import Console
from rich.table import Table

import quivermq.aio
from quivermq.node import Machine
from quivermq.node.hosted_replica import HostedReplica
from quivermq.settings import BrokerSettings
from quivermq.tracing import BrokerTracer, broker_tracer
from quivermq.transports import Server

VALUE = bytes(100)
MANY, SINGLES, SENT = 10_000, 500, 20_000
OFF_TARGET = 0.001
"""A thousandth: far below what can be measured by running it."""


class Dropped(SpanExporter):
    """Exports to nowhere."""

    def export(self, spans: Any) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


class TracingMachine(Machine):
    """Gives a broker the tracer of the benchmark."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider

    def start_tracer(self, node: int) -> BrokerTracer:
        return broker_tracer(node, self._provider)


@asynccontextmanager
async def stage(provider: TracerProvider | None) -> AsyncIterator[tuple[Server, Any]]:
    """A broker and a client, both traced or both not."""
    with tempfile.TemporaryDirectory() as folder:
        settings = BrokerSettings(
            data_dir=folder,
            listen="127.0.0.1:0",
            peer_listen="127.0.0.1:0",
            http="",
            grpc="",
            fsync="never",
            tracing=provider is not None,
        )
        server = Server(settings, TracingMachine(provider) if provider else None)
        await server.start()
        try:
            tracing = provider or False
            async with quivermq.aio.connect(server.listen, tracing=tracing) as client:
                await client.create_topic("orders")
                yield server, client
        finally:
            await server.stop()


async def produce(client: Any) -> None:
    for _ in range(SINGLES):
        await client.produce("orders", VALUE)


async def produce_many(client: Any) -> None:
    await client.produce_many("orders", [VALUE] * MANY)


async def send(client: Any) -> None:
    async with client.producer() as producer:
        for _ in range(SENT):
            await producer.send("orders", VALUE)


async def poll(client: Any) -> None:
    left = MANY
    while left:
        messages = await client.poll("orders", "billing", 1_000)
        await client.ack(messages)
        left -= len(messages)


OPERATIONS: dict[str, tuple[Callable[[Any], Awaitable[None]], int]] = {
    "produce, one message": (produce, SINGLES),
    "produce_many, 10,000 messages": (produce_many, 1),
    "producer.send, one message": (send, SENT),
    "poll and ack, 1,000 messages": (poll, MANY // 1_000),
}


async def times(client: Any) -> dict[str, float]:
    """Microseconds of the processor for one of each."""
    found = {}
    for name, (operation, count) in OPERATIONS.items():
        began = time.thread_time()
        await operation(client)
        found[name] = (time.thread_time() - began) / count * 1e6
    return found


def look_us() -> float:
    """Microseconds of one look at an attribute that is None."""

    class Untraced:
        def __init__(self) -> None:
            self.tracer = None

    scope = {"it": Untraced()}
    rounds = 1_000_000
    bare = min(timeit.repeat("it", globals=scope, number=rounds, repeat=5))
    look = min(timeit.repeat("it.tracer is not None", globals=scope, number=rounds, repeat=5))
    return (look - bare) / rounds * 1e6


async def looks() -> dict[str, float]:
    """How often each operation looks whether it is traced, at both ends."""
    count = 0

    def counted(_: object) -> None:
        nonlocal count
        count += 1

    def counting(kind: type, name: str) -> type:
        return type("Counting", (kind,), {name: property(counted, lambda *_: None)})

    found = {}
    async with stage(None) as (server, client):
        router = client._core.router  # noqa: SLF001
        router.__class__ = counting(type(router), "tracer")
        make = client._make_core  # noqa: SLF001

        def make_counting() -> Any:
            core = make()
            core.router.__class__ = router.__class__
            return core

        client._make_core = make_counting  # noqa: SLF001
        kind = counting(HostedReplica, "spans")
        for hosted in server.broker.scheduler.replicas.values():
            hosted.__class__ = kind
        for name, (operation, times_) in OPERATIONS.items():
            count = 0
            await operation(client)
            found[name] = count / times_
    return found


async def measure(rounds: int) -> dict[str, dict[str, float]]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Dropped()))
    off: dict[str, float] = dict.fromkeys(OPERATIONS, float("inf"))
    on = dict(off)
    async with stage(None) as (_, plain), stage(provider) as (_, traced):
        for _ in range(rounds):
            for client, best in ((plain, off), (traced, on)):
                for name, took in (await times(client)).items():
                    best[name] = min(best[name], took)
    one, counts = look_us(), await looks()
    provider.shutdown()
    return {
        name: {
            "off_us": off[name],
            "looks": counts[name],
            "off_share": counts[name] * one / off[name],
            "on_us": on[name],
            "on_ratio": on[name] / off[name],
        }
        for name in OPERATIONS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    chosen, _ = parser.parse_known_args()
    rows = asyncio.run(measure(chosen.rounds))
    if chosen.json:
        print(json.dumps({"tracing": rows}))
        return
    table = Table(
        title="tracing, client and broker together",
        caption=f"processor time, best of {chosen.rounds}; target off: {OFF_TARGET:.1%} at most",
    )
    table.add_column("operation")
    for head in ("off", "looks", "share of off", "", "on", "on / off"):
        table.add_column(head, justify="right")
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row['off_us']:,.1f} µs",
            f"{row['looks']:.3f}",
            f"{row['off_share']:.4%}",
            "met" if row["off_share"] <= OFF_TARGET else "MISSED",
            f"{row['on_us']:,.1f} µs",
            f"{row['on_ratio']:.2f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
