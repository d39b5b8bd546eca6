"""Thousands of connections to one broker: memory of each, and what it costs when all come back.

    python -m benchmarks.connections [--connections 9000] [--request 4096] [--json]

A broker in a process of its own; the clients are bare sockets of this process, which say hello, as
every client does. Memory is what a connection adds to the broker's resident bytes: after hello, and
once every connection has produced a message of `--request` bytes. Then the broker is killed and
started again, all connections come back at once and ask for the map of the cluster, while another
client pings: the longest ping is the longest stall.
"""

import argparse
import asyncio
import json
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import quivermq
from benchmarks.quiver import Brokers, cpu_seconds, resident
from quivermq.addresses import split_address
from quivermq.batches import Frame, encode_batch
from quivermq.cli.local_brokers import LocalBroker
from quivermq.wire import PROTOCOL, PROTOCOL_MIN, packet, proto

IS_LONG = True
TOPIC = "connections"
KIB = 1024
MEMORY_TARGET = 40 * KIB
AT_ONCE = 500
"""Connections that are being made: a listener has a queue of its own."""
PING_EVERY_S = 0.01
SETTLE_S = 1.0


@dataclass(slots=True)
class Report:
    """Bytes for a connection, seconds for all of them."""

    connections: int
    request_bytes: int
    hello_bytes: float = 0.0
    used_bytes: float = 0.0
    back_seconds: float = 0.0
    back_cpu_seconds: float = 0.0
    stall_seconds: float = 0.0

    @property
    def settlement(self) -> str:
        return "met" if max(self.hello_bytes, self.used_bytes) < MEMORY_TARGET else "MISSED"


class Caller(asyncio.Protocol):
    """A client that waits for the answer to each request; answers are small, and not read."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[None] | None = None
        self._missing = 0
        self._start = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        while data:
            if not self._missing:
                self._start += data
                if len(self._start) < 4:
                    return
                data, self._start = self._start, b""
                self._missing = 4 + int.from_bytes(data[:4])
            taken = min(self._missing, len(data))
            self._missing -= taken
            data = data[taken:]
            if not self._missing and self._answered is not None:
                self._answered.set_result(None)
                self._answered = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(exc or ConnectionResetError())

    async def ask(self, request: bytes) -> None:
        assert self._transport is not None
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._answered

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def packed(request: proto.Request, frames: Sequence[Frame] = ()) -> bytes:
    return b"".join(packet(request.SerializeToString(), frames))


HELLO = packed(
    proto.Request(
        id=1,
        hello=proto.Hello(
            protocol=PROTOCOL, protocol_min=PROTOCOL_MIN, client="benchmark", version="0"
        ),
    )
)

MAP = packed(proto.Request(id=2, map=proto.MapQuery(topics=[TOPIC])))
PING = packed(proto.Request(id=3, ping=proto.Ping()))


def producing(size: int) -> bytes:
    produce = proto.Produce(topic=TOPIC, partition=0)
    return packed(proto.Request(id=4, produce=produce), [encode_batch([b"x" * size])])


async def of_all(count: int, work: Callable[[int], Awaitable[None]]) -> None:
    """So many pieces of work, some at once."""
    numbers = iter(range(count))

    async def one_after_the_other() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_the_other())


async def welcomed(address: str) -> Caller:
    host, port = split_address(address)
    _, caller = await asyncio.get_running_loop().create_connection(Caller, host, port)
    await caller.ask(HELLO)
    return caller


async def longest_ping(address: str, until: asyncio.Event) -> float:
    caller = await welcomed(address)
    longest = 0.0
    while not until.is_set():
        began = time.perf_counter()
        await caller.ask(PING)
        longest = max(longest, time.perf_counter() - began)
        await asyncio.sleep(PING_EVERY_S)
    caller.close()
    return longest


async def fill(broker: LocalBroker, report: Report) -> list[Caller]:
    """Connections that say hello, then produce; memory after both."""
    address, callers = broker.place.listen, []
    before = resident(broker)

    async def connect(_: int) -> None:
        callers.append(await welcomed(address))

    await of_all(report.connections, connect)
    await asyncio.sleep(SETTLE_S)
    report.hello_bytes = (resident(broker) - before) / report.connections
    request = producing(report.request_bytes)
    await of_all(report.connections, lambda number: callers[number].ask(request))
    await asyncio.sleep(SETTLE_S)
    report.used_bytes = (resident(broker) - before) / report.connections
    return callers


async def come_back(broker: LocalBroker, report: Report) -> None:
    """All at once, and ask for the map."""
    address, done = broker.place.listen, asyncio.Event()
    pings = asyncio.create_task(longest_ping(address, done))
    await asyncio.sleep(SETTLE_S)
    began, spent = time.perf_counter(), cpu_seconds(broker)

    async def connect(_: int) -> None:
        caller = await welcomed(address)
        await caller.ask(MAP)
        kept.append(caller)

    kept: list[Caller] = []
    await of_all(report.connections, connect)
    report.back_seconds = time.perf_counter() - began
    report.back_cpu_seconds = cpu_seconds(broker) - spent
    done.set()
    report.stall_seconds = await pings
    for caller in kept:
        caller.close()


def measure(folder: Path, connections: int, request_bytes: int) -> Report:
    report = Report(connections, request_bytes)
    # Half of them may come from one address, and there is the one that pings.
    flags = ("--connections-max", str(2 * connections + 100), "--fsync", "interval")
    with Brokers(folder, 1, *flags) as brokers:
        (broker,) = brokers.each
        with quivermq.connect(brokers.servers) as client:
            client.create_topic(TOPIC, partitions=1)
            client.produce(TOPIC, b"first")
        callers = asyncio.run(fill(broker, report))
        broker.process.send_signal(signal.SIGKILL)
        broker.process.wait()
        del callers
        brokers.start_again(broker)
        with quivermq.connect(brokers.servers, timeout=60.0) as client:
            client.produce(TOPIC, b"again")
        asyncio.run(come_back(broker, report))
    return report


def show(report: Report) -> None:
    print(f"{report.connections:,} connections to one broker")
    print(f"  a connection after hello         {report.hello_bytes / KIB:8.1f} KiB")
    print(
        f"  after a produce of {report.request_bytes:,} bytes    {report.used_bytes / KIB:8.1f} KiB"
    )
    print(f"  all back, with a map each        {report.back_seconds:8.2f} s")
    print(f"  processor time of the broker     {report.back_cpu_seconds:8.2f} s")
    print(f"  longest ping meanwhile           {report.stall_seconds * 1000:8.0f} ms")
    print(f"  target {MEMORY_TARGET // KIB} KiB: {report.settlement}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=9_000)
    parser.add_argument("--request", type=int, default=4_096)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder), options.connections, options.request)
    if options.json:
        print(json.dumps(asdict(report)))
    else:
        show(report)


if __name__ == "__main__":
    main()
