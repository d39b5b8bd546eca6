"""The broker's own time for small requests: from a request's last byte to its answer's write.

    python -m benchmarks.broker_time                     this checkout
    python -m benchmarks.broker_time --before ../before  beside another one, in turns
    python -m benchmarks.broker_time --profile           calls of functions, by request

A broker runs in this process, on the event loop that `quiver serve` uses. Requests are handed to
its connections as bytes, and answers are taken from them as bytes: no socket, no client, no other
process. What is measured is Python of the broker, and its writes to files.
"""

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

IS_LONG = True

ROOT: Final = Path(__file__).parents[1]
LAPS, FIRST = 1_500, 150
CLIENTS, GROUPS = 64, 100
VALUE: Final = b"x" * 100
TOPIC: Final = "t"

clock_ns = time.thread_time_ns
"""Processor time of the event loop's thread: other programs do not count. With `--wall` the time
that passes, which a write to the disk in another thread takes too."""


class Wire(asyncio.Transport):
    """The client's end of a connection: bytes in, and the moment at which the answer came."""

    def __init__(self, server: object) -> None:
        super().__init__()
        from quivermq.wire import Receiver  # noqa: PLC0415  (of the version that is asked for)

        self._receiver = Receiver(1 << 30)
        self._numbers = 0
        self._waiter: asyncio.Future[None] | None = None
        self._answer = b""
        self.answered_ns = 0
        self._connection = server.client_connections.client()  # type: ignore[attr-defined]
        self._connection.connection_made(self)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self._connection.connection_lost(None)

    def writelines(self, parts: object) -> None:
        self.write(b"".join(parts))  # type: ignore[arg-type]

    def write(self, data: object) -> None:
        self.answered_ns = clock_ns()
        self._answer += data  # type: ignore[operator]
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def send(self, data: bytes) -> int:
        """Let the broker have a packet; returns when."""
        self._answer = b""
        self._waiter = asyncio.get_running_loop().create_future()
        self._connection.get_buffer(-1)[: len(data)] = data
        began = clock_ns()
        self._connection.buffer_updated(len(data))
        return began

    async def lap(self, data: bytes) -> float:
        """Ask, and wait: the broker's time in µs. In a turn of its own, as it comes by a socket."""
        await asyncio.sleep(0)
        began = self.send(data)
        await self.answered()
        return (self.answered_ns - began) / 1000

    async def answered(self) -> None:
        if not self._answer:
            await self._waiter  # type: ignore[misc]

    def answer(self):  # type: ignore[no-untyped-def]
        from quivermq.wire import parse_response  # noqa: PLC0415

        data = self._answer
        self._receiver.get_buffer()[: len(data)] = data
        (found,) = self._receiver.received(len(data))
        response = parse_response(found.envelope)
        if response.WhichOneof("body") == "error":
            raise RuntimeError(str(response.error))
        return response

    def packed(self, frames: tuple[object, ...] = (), **body: object) -> bytes:
        """A request as its client would send it."""
        from quivermq.wire import packet, proto  # noqa: PLC0415

        self._numbers += 1
        request = proto.Request(id=self._numbers, direct=True, **body)  # type: ignore[arg-type]
        return b"".join(packet(request.SerializeToString(), frames))  # type: ignore[arg-type]


class Requests:
    """What clients ask."""

    def __init__(self, server: object) -> None:
        from quivermq.batches import Origin, encode_batch  # noqa: PLC0415
        from quivermq.wire import proto  # noqa: PLC0415

        self._server = server
        self._proto, self._encode, self._origin = proto, encode_batch, Origin
        self._sequences: dict[int, int] = {}

    async def wire(self) -> Wire:
        wire = Wire(self._server)
        hello = self._proto.Hello(client="bench", protocol=2, protocol_min=1)
        await wire.lap(wire.packed(hello=hello))
        return wire

    def produce(self, wire: Wire, producer: int = 0) -> bytes:
        origin = self._origin()
        if producer:
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + 1
            origin = self._origin(producer, 0, sequence)
        frame = self._encode([VALUE], origin=origin)
        produce = self._proto.Produce(topic=TOPIC, partition=0)
        return wire.packed((frame,), produce=produce)

    def poll(
        self, wire: Wire, group: str, wait_ms: int = 0, *, latest: bool = False, most: int = 10
    ) -> bytes:
        poll = self._proto.Poll(
            topic=TOPIC, partitions=[0], group=group, consumer=7, messages_max=most,
            wait_ms=wait_ms, visibility_ms=30_000, start_latest=latest,
        )  # fmt: skip
        return wire.packed(poll=poll)

    def ack(self, wire: Wire, group: str, leased) -> bytes:  # type: ignore[no-untyped-def]
        one = self._proto.Settlement(partition=0, lease=leased.lease)
        settle = self._proto.Settle(topic=TOPIC, group=group, consumer=7, settlements=[one])
        return wire.packed(settle=settle)


async def lone(requests: Requests) -> list[float]:
    """Produces of an idempotent producer, one after the other."""
    wire = await requests.wire()
    return [await wire.lap(requests.produce(wire, 5)) for _ in range(LAPS + FIRST)]


async def polled(requests: Requests, most: int = 10, laps_max: int = LAPS + FIRST) -> list[float]:
    """A poll of 10 of a batch of many, and its acknowledgement."""
    wire = await requests.wire()
    laps = []
    for _ in range(laps_max):
        took = await wire.lap(requests.poll(wire, "ten", most=most))
        leased = wire.answer().polled.leased[0]
        laps.append(took + await wire.lap(requests.ack(wire, "ten", leased)))
    return laps


async def polled_many(requests: Requests) -> list[float]:
    """The same of 1,000."""
    return await polled(requests, 1_000, 90)


async def pushed(requests: Requests) -> list[float]:
    """From the request of a producer to the answer of a poll that waits; acknowledged after it."""
    wire, consumer = await requests.wire(), await requests.wire()
    await consumer.lap(requests.poll(consumer, "push", latest=True))
    laps = []
    for _ in range(LAPS + FIRST):
        consumer.send(requests.poll(consumer, "push", 5_000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        began = wire.send(requests.produce(wire))
        await asyncio.gather(wire.answered(), consumer.answered())
        laps.append((consumer.answered_ns - began) / 1000)
        leased = consumer.answer().polled.leased[0]
        await consumer.lap(requests.ack(consumer, "push", leased))
    return laps


async def crowd(requests: Requests) -> list[float]:
    """Of 64 producers that ask at the same time: the time of each."""
    wires = [await requests.wire() for _ in range(CLIENTS)]
    laps = []
    for _ in range((LAPS + FIRST) // 10):
        asked = [requests.produce(wire, 100 + number) for number, wire in enumerate(wires)]
        began = clock_ns()
        for wire, data in zip(wires, asked, strict=True):
            wire.send(data)
        for wire in wires:
            await wire.answered()
        laps.append((clock_ns() - began) / 1000 / CLIENTS)
    return laps


async def groups(requests: Requests) -> list[float]:
    """A message to 100 groups, whose polls wait, and its acknowledgements: the time of each."""
    wire = await requests.wire()
    wires = [await requests.wire() for _ in range(GROUPS)]
    names = [f"group-{number}" for number in range(GROUPS)]
    for consumer, name in zip(wires, names, strict=True):
        await consumer.lap(requests.poll(consumer, name, latest=True))
    laps = []
    for _ in range((LAPS + FIRST) // 20):
        polls = [requests.poll(one, name, 5_000) for one, name in zip(wires, names, strict=True)]
        began = clock_ns()
        for consumer, data in zip(wires, polls, strict=True):
            consumer.send(data)
        data = requests.produce(wire)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await wire.lap(data)
        acks = []
        for consumer, name in zip(wires, names, strict=True):
            await consumer.answered()
            acks.append(requests.ack(consumer, name, consumer.answer().polled.leased[0]))
        for consumer, data in zip(wires, acks, strict=True):
            consumer.send(data)
        for consumer in wires:
            await consumer.answered()
        laps.append((clock_ns() - began) / 1000 / GROUPS)
    return laps


WORKS: Final[dict[str, Callable[[Requests], Awaitable[list[float]]]]] = {
    "lone produce": lone,
    "poll of 10 + ack": polled,
    "poll of a thousand + ack": polled_many,
    "produce to a poll that waits": pushed,
    "a produce of each of 64 clients": crowd,
    "a message to each of 100 groups": groups,
}


async def measure(fsync: str, wanted: list[str], *, profiled: bool) -> dict[str, float]:
    """In µs, what a quarter of the laps stays below: the others met more of what else the machine
    does."""
    import quivermq.aio  # noqa: PLC0415
    from quivermq.settings import BrokerSettings  # noqa: PLC0415
    from quivermq.transports import Server  # noqa: PLC0415

    found = {}
    for name, work in WORKS.items():
        if wanted and name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            settings = BrokerSettings(
                data_dir=folder, listen="127.0.0.1:0", peer_listen="127.0.0.1:0", http="", grpc="",
                events=False, fsync=fsync,
            )  # fmt: skip
            server = Server(settings)
            await server.start()
            async with quivermq.aio.connect(server.listen) as client:
                await client.create_topic(TOPIC)
                await client.produce_many(TOPIC, [VALUE] * 100_000)
                laps = await _profiled(work, server) if profiled else await work(Requests(server))
                steady = sorted(laps[len(laps) // 10 :])
                found[name] = steady[len(steady) // 4]
            await server.stop()
    return found


async def _profiled(
    work: Callable[[Requests], Awaitable[list[float]]], server: object
) -> list[float]:
    profile = cProfile.Profile()
    profile.enable()
    laps = await work(Requests(server))
    profile.disable()
    print(work.__name__, "calls a lap; divide by", len(laps))
    pstats.Stats(profile).sort_stats("tottime").print_stats(130)
    return laps


def run(checkout: Path, fsync: str, works: str) -> dict[str, float]:
    """The figures of a version, from a process of its own."""
    command = [sys.executable, __file__, "--json", "--fsync", fsync, "--works", works]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return figures


def compare(before: Path, rounds: int, fsync: str, works: str) -> None:
    told: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    for _ in range(rounds):
        told["before"].append(run(before, fsync, works))
        told["now"].append(run(ROOT, fsync, works))
    print(f"fsync {fsync}, medians of {rounds} rounds in turns, µs")
    for name in told["now"][0]:
        was, now = (statistics.median(one[name] for one in told[when]) for when in told)
        print(f"  {name:<32} {was:>8.1f} {now:>8.1f}   x {now / was:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fsync", default="interval", help="as of brokers")
    parser.add_argument("--works", default="", help="some of them, separated by commas")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--wall", action="store_true", help="measure the time that passes")
    options = parser.parse_args()
    if options.wall:
        globals()["clock_ns"] = time.perf_counter_ns
    if options.before:
        compare(options.before.absolute(), options.rounds, options.fsync, options.works)
        return
    import uvloop  # noqa: PLC0415

    wanted = [name for name in options.works.split(",") if name]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(options.fsync, wanted, profiled=options.profile))
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<32} {value:>8.1f} µs")


if __name__ == "__main__":
    main()
