"""Where the time of a push goes: from a produce to the hands of a subscriber, step by step.

    python -m benchmarks.push_steps

Broker and client are processes of their own, as in production; functions where a step begins or
ends note the time, by a clock that both share. That costs about 1 µs a note. A sampling profiler
says less here: most steps are shorter than the time for which a thread is not on a processor.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import uvloop

import quivermq
import quivermq.aio
from quivermq.cli.local_brokers import free_address

LAPS, FIRST = 1_000, 200
IDLE_SECONDS = 0.001
CALL, HANDLED = "call", "handled"
CLIENT_POINTS = (
    ("written", "quivermq.client.asyncio_transport", "AsyncioConnection._write_gathered", "end"),
    ("received", "quivermq.client.asyncio_transport", "AsyncioConnection.buffer_updated", "begin"),
)
BROKER_POINTS = (
    ("read", "quivermq.transports.session", "Session.received", "begin"),
    ("taken", "quivermq.node.handlers.produce", "ProduceHandler.produce", "begin"),
    ("logged", "quivermq.log.log", "Log.append", "end"),
    ("send", "quivermq.transports.session", "Session._send", "begin"),
    ("sent", "quivermq.transports.session", "Session._send", "end"),
    ("woken", "quivermq.node.handlers.straight_poll", "StraightPoll.look_again", "begin"),
    ("leased", "quivermq.node.handlers.open_poll", "OpenPoll.lease", "end"),
)
STEPS = (
    (CALL, "written", "client: the request is made and written"),
    ("written", "read", "the broker wakes up and reads it"),
    ("read", "taken", "broker: the request is taken apart"),
    ("taken", "logged", "broker: checked, stamped, written to the log"),
    ("logged", "send", "broker: applied, and its answer made"),
    ("send", "sent", "broker: the producer's answer is written"),
    ("sent", "woken", "broker: the poll that waits is woken"),
    ("woken", "leased", "broker: the message is leased"),
    ("leased", "send 2", "broker: read from memory, and the answer made"),
    ("send 2", "received 2", "the answer is written; the client wakes up and reads it"),
    ("received 2", HANDLED, "client: the message is made, and its handler called"),
    (CALL, HANDLED, "all of it"),
)

Note = tuple[float, str]


def watch(points: tuple[tuple[str, str, str, str], ...], notes: list[Note]) -> None:
    """Have these functions note when they begin or end."""
    for name, module, path, edge in points:
        owner: Any = import_module(module)
        *owners, function = path.split(".")
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, function, noting(getattr(owner, function), name, edge, notes))


def noting(
    function: Callable[..., Any], name: str, edge: str, notes: list[Note]
) -> Callable[..., Any]:
    def begin(*arguments: Any, **named: Any) -> Any:
        notes.append((time.perf_counter(), name))
        return function(*arguments, **named)

    def end(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        notes.append((time.perf_counter(), name))
        return found

    return begin if edge == "begin" else end


def serve(file: Path, *flags: str) -> None:
    """A broker that leaves its notes in a file when it ends."""
    from quivermq.cli import main as quiver  # noqa: PLC0415  (slow, and only for the broker)

    notes: list[Note] = []
    watch(BROKER_POINTS, notes)
    sys.argv = ["quiver", "serve", *flags]
    try:
        quiver()
    finally:
        file.write_text("".join(f"{at!r} {name}\n" for at, name in notes))


async def push(servers: str, notes: list[Note]) -> None:
    """Laps of one message each, whose beginnings and ends are noted."""
    arrived = asyncio.Event()

    async def handle(_: object) -> None:
        notes.append((time.perf_counter(), HANDLED))
        arrived.set()

    async with quivermq.aio.connect(servers) as consumer, quivermq.aio.connect(servers) as producer:
        await consumer.poll("push", "g", 1, wait=0.0, start="latest")
        async with consumer.subscribe("push", "g", handler=handle, start="latest"):
            for _ in range(FIRST + LAPS):
                await asyncio.sleep(IDLE_SECONDS)
                arrived.clear()
                notes.append((time.perf_counter(), CALL))
                await producer.produce("push", b"x" * 100)
                await asyncio.wait_for(arrived.wait(), 10.0)


def laps_of(notes: list[Note]) -> Iterator[dict[str, float]]:
    """The times of each lap by the names of its notes; later ones of a name get a number."""
    lap: dict[str, float] = {}
    for at, name in sorted(notes):
        if name == CALL:
            lap = {}
        number = 1
        while (key := name if number == 1 else f"{name} {number}") in lap:
            number += 1
        lap[key] = at
        if name == HANDLED:
            yield lap


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), *sys.argv[3:])
        return
    notes: list[Note] = []
    watch(CLIENT_POINTS, notes)
    with tempfile.TemporaryDirectory(prefix="bench-push-") as name:
        folder, address = Path(name), free_address(0)
        file = folder / "notes"
        flags = (
            "--data-dir", str(folder / "data"), "--listen", address,
            "--peer-listen", free_address(0), "--http", "", "--grpc", "", "--fsync", "never",
            "--log-level", "warning",
        )  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.push_steps", "--serve", str(file), *flags]
        broker = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            with quivermq.connect(address, timeout=60.0) as client:
                client.create_topic("push")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(push(address, notes))
        finally:
            broker.terminate()
            broker.wait()
        notes += [(float(at), name) for at, name in map(str.split, file.read_text().splitlines())]
    laps = list(laps_of(notes))[FIRST:]
    print(f"a push to a waiting subscriber, no fsync: µs, medians of {len(laps):,}")
    for first, last, what in STEPS:
        took = [lap[last] - lap[first] for lap in laps if first in lap and last in lap]
        print(f"  {what:58}{statistics.median(took) * 1e6:7.1f}")


if __name__ == "__main__":
    main()
