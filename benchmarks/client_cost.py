"""The client's own processor time for a call, of this checkout beside another one.

    git worktree add ../before SOME_COMMIT
    python -m benchmarks.client_cost --before ../before [--rounds 15] [--only produce,...] [--json]

Both clients talk to one broker of this checkout, without fsync, in short turns. Processor time is
that of the thread that calls (`time.thread_time_ns`), kernel included: for each round the median of
its calls, and of these the median. On a machine with other work it still grows, since caches are
cold after every wait; both clients meet the same.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

IS_LONG = True

ROOT: Final = Path(__file__).parents[1]
VALUE: Final = b"x" * 100
FILLED: Final = 400_000
HANDLED: Final = 20_000
LISTED: Final = 300_000
LOOPED: Final = 100_000
CLIENTS: Final = 64
GROUPS: Final = 100
SENT: Final = 200_000
SENT_AT_ONCE: Final = 1_000_000
SENT_LISTS: Final = (1, 10, 1_000, 10_000, 100_000)


class Figures:
    """What was measured of one kind of call, in µs."""

    def __init__(self) -> None:
        self.used: list[float] = []
        self.took: list[float] = []

    def call(self, function: Callable[[], Any]) -> Any:
        began, used = time.perf_counter_ns(), time.thread_time_ns()
        found = function()
        self.used.append((time.thread_time_ns() - used) / 1e3)
        self.took.append((time.perf_counter_ns() - began) / 1e3)
        return found


class Workload:
    """The client of the version that is imported, at work."""

    def __init__(self, servers: str, name: str) -> None:
        import quivermq  # noqa: PLC0415  (of the version that is asked for)

        self._servers = servers
        self._client = client = quivermq.connect(servers, timeout=30.0)
        self._lone, self._bulk, self._pushed = f"lone-{name}", f"bulk-{name}", f"pushed-{name}"
        self._sent = f"sent-{name}"
        for topic in (self._lone, self._bulk, self._pushed):
            client.create_topic(topic)
        client.produce_many(self._bulk, [VALUE] * FILLED)
        self._groups = 0

    def produce(self) -> dict[str, float]:
        """One message at a time."""
        client, plain, keyed = self._client, Figures(), Figures()
        for _ in range(300):
            plain.call(lambda: client.produce(self._lone, VALUE))
        for _ in range(50):
            keyed.call(lambda: client.produce(self._lone, VALUE, key=b"k"))
        return {
            "lone produce": statistics.median(plain.used),
            "lone produce, from call to return": statistics.median(plain.took),
            "lone produce with a key": statistics.median(keyed.used),
        }

    def send(self) -> dict[str, float]:
        """Through a producer, until all is stored: the process as a whole, and the longest pause of
        another thread during the call with the largest list."""
        found = {}
        messages = [b"%0100d" % number for number in range(SENT_AT_ONCE)]
        self._client.create_topic(self._sent)
        with self._client.producer(buffer_bytes=512 << 20) as producer:
            producer.send_many(self._sent, messages[:1_000]).result()
            for size in SENT_LISTS:
                lists = [messages[at : at + size] for at in range(0, SENT, size)]
                began = time.process_time_ns()
                if size == 1:
                    for value in messages[:SENT]:
                        producer.send(self._sent, value)
                else:
                    for values in lists:
                        producer.send_many(self._sent, values)
                producer.flush()
                used = time.process_time_ns() - began
                found[f"sent in lists of {size:,}, a message"] = used / SENT / 1e3
            pause = _longest_pause(lambda: producer.send_many(self._sent, messages))
            found[f"pause of another thread, {SENT_AT_ONCE:,} at once"] = pause * 1e6
        self._client.delete_topic(self._sent)
        return found

    def poll_lone(self) -> dict[str, float]:
        """Messages that were produced one at a time, 10 and 1 at a time."""
        for _ in range(250):
            self._client.produce(self._lone, VALUE)
        return self._polls("10 lone", self._lone, 10, 25) | self._polls("1 lone", self._lone, 1, 25)

    def poll(self) -> dict[str, float]:
        """Messages that were produced in large batches."""
        return self._polls("10", self._bulk, 10, 25) | self._polls("1,000", self._bulk, 1_000, 10)

    def default_poll(self) -> dict[str, float]:
        """A loop that names no number, over the whole topic."""
        return self._polls("default", self._bulk, None, 30)

    def _polls(self, title: str, topic: str, size: int | None, count: int) -> dict[str, float]:
        client, group = self._client, f"polled-{title}".replace(" ", "-").replace(",", "")
        polled, acked = Figures(), Figures()
        if topic == self._bulk:
            self._groups += 1
            group += f"-{self._groups}"
        for _ in range(count):
            messages = polled.call(lambda: client.poll(topic, group, size, wait=0.0))
            if not messages:
                break
            acked.call(lambda: client.ack(messages))  # noqa: B023  (called at once)
        used = {"poll": polled.used, "ack": acked.used}
        return {f"{call} of {title}": statistics.median(each) for call, each in used.items()}

    def handler(self) -> dict[str, float]:
        """A subscription that calls a function for every message."""
        self._groups += 1
        done, count = threading.Event(), 0

        def handle(_: Any) -> None:
            nonlocal count
            count += 1
            if count == HANDLED:
                done.set()

        group = f"handled-{self._groups}"
        began = time.process_time_ns()
        with self._client.subscribe(self._bulk, group, handler=handle, prefetch=5_000):
            done.wait(60.0)
            used = time.process_time_ns() - began
        return {"subscription with a handler, a message": used / HANDLED / 1e3}

    def push(self) -> dict[str, float]:
        """From before a produce to when a handler has the message."""
        laps: list[float] = []
        arrived, began = threading.Event(), 0.0

        def handle(_: Any) -> None:
            laps.append(time.perf_counter() - began)
            arrived.set()

        with self._client.subscribe(self._pushed, "pushed", handler=handle):
            for _ in range(60):
                arrived.clear()
                began = time.perf_counter()
                self._client.produce(self._pushed, VALUE)
                arrived.wait(10.0)
        return {"from produce to handler": statistics.median(laps) * 1e6}

    def loop(self) -> dict[str, float]:
        """A loop over single messages, fetched ahead."""
        self._groups += 1
        count, began = 0, time.process_time_ns()
        with self._client.subscribe(
            self._bulk, f"looped-{self._groups}", prefetch=40_000
        ) as subscription:
            for message in subscription:
                subscription.ack(message)
                count += 1
                if count == LOOPED:
                    break
        used = time.process_time_ns() - began
        return {"loop over single messages, a message": used / count / 1e3}

    def lists(self) -> dict[str, float]:
        """Lists of 1,000, fetched ahead; a version without them polls and acknowledges."""
        self._groups += 1
        group, count = f"listed-{self._groups}", 0
        began = time.process_time_ns()
        with self._client.subscribe(self._bulk, group, prefetch=40_000) as subscription:
            try:
                for messages in subscription.batches(1_000):
                    subscription.ack(messages)
                    count += len(messages)
                    if count >= LISTED:
                        break
            except TypeError:
                while count < LISTED:
                    messages = self._client.poll(self._bulk, group + "-polled", 1_000)
                    self._client.ack(messages)
                    count += len(messages)
        used = time.process_time_ns() - began
        return {"lists of 1,000, a message": used / count / 1e3}

    def read(self) -> dict[str, float]:
        """All messages of a topic, one after the other, as they lie in large batches."""
        began = time.process_time_ns()
        count = sum(1 for _ in self._client.read(self._bulk))
        return {"read, a message": (time.process_time_ns() - began) / count / 1e3}

    def sticky(self) -> dict[str, float]:
        """Polls of a sticky consumer, with as much fetched ahead as in `benchmarks.compare`, and a
        loop over single messages; the process as a whole."""
        return {
            "sticky, polls of 100": self._sticky(LISTED, 100),
            "sticky, polls of 1,000": self._sticky(LISTED, 1_000),
            "sticky, polls of 1,000, an object made of each": self._sticky(LISTED, 1_000, Figures),
            "sticky, polls of 10,000": self._sticky(LISTED, 10_000),
            "sticky, a loop": self._sticky(HANDLED, 0),
        }

    def _sticky(self, wanted: int, size: int, make: Callable[[], object] | None = None) -> float:
        """For a message; a `size` of 0 is a loop over single ones."""
        self._groups += 1
        group = f"sticky-{self._groups}"
        with self._client.consumer(self._bulk, group, prefetch_bytes=32 << 20) as consumer:
            consumer.poll(1, wait=30.0)
            count, began = 0, time.process_time_ns()
            while count < wanted:
                messages = consumer.poll(size) if size else [next(consumer)]
                count += len(messages)
                if make is not None:
                    for _ in messages:
                        make()
            return (time.process_time_ns() - began) / count / 1e3

    def on_loop(self) -> dict[str, float]:
        """On an event loop, the process as a whole; pauses between pushes are like a program's."""
        return asyncio.run(self._on_loop())

    async def _on_loop(self) -> dict[str, float]:
        import quivermq.aio  # noqa: PLC0415  (of the version that is asked for)

        self._groups += 1
        async with AsyncExitStack() as opened:
            clients = [
                await opened.enter_async_context(quivermq.aio.connect(self._servers))
                for _ in range(CLIENTS)
            ]
            await asyncio.gather(*(self._produce_on(client, 5) for client in clients))
            began = time.process_time_ns()
            await asyncio.gather(*(self._produce_on(client, 20) for client in clients))
            produced = (time.process_time_ns() - began) / CLIENTS / 20 / 1e3
            return {
                f"{CLIENTS} clients on a loop, a message": produced,
                "push to one subscriber on a loop": await self._pushed_on(clients[0], 1, 100),
                f"{GROUPS} groups on a loop, a delivery": await self._pushed_on(
                    clients[0], GROUPS, 10
                ),
            }

    async def _produce_on(self, client: Any, count: int) -> None:
        for _ in range(count):
            await client.produce(self._lone, VALUE)

    async def _pushed_on(self, client: Any, groups: int, messages: int) -> float:
        """Of a message from the produce on, and of its acknowledgement."""
        topic = f"{self._pushed}-{self._groups}-{groups}"
        await client.create_topic(topic)
        arrived, handled, wanted = asyncio.Event(), 0, 0

        async def handle(_: Any) -> None:
            nonlocal handled
            handled += 1
            if handled == wanted:
                arrived.set()

        async def push(count: int) -> None:
            nonlocal wanted
            for _ in range(count):
                arrived.clear()
                wanted = handled + groups
                await client.produce(topic, VALUE)
                await asyncio.wait_for(arrived.wait(), 60.0)
                await asyncio.sleep(0.001)

        subscriptions = [
            client.subscribe(topic, f"g{number}", handler=handle) for number in range(groups)
        ]
        try:
            await push(5)
            began = time.process_time_ns()
            await push(messages)
            return (time.process_time_ns() - began) / messages / groups / 1e3
        finally:
            await asyncio.gather(*(each.close() for each in subscriptions))
            await client.delete_topic(topic)


def _longest_pause(call: Callable[[], object]) -> float:
    """Of a thread that sleeps half a millisecond again and again, in seconds."""
    longest, is_done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not is_done.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
    is_done.set()
    watcher.join()
    return longest


WAYS: Final = (
    "produce", "send", "poll_lone", "poll", "default_poll", "handler", "loop", "lists", "sticky",
    "read", "push", "on_loop",
)  # fmt: skip


def work(servers: str, name: str) -> None:
    """Measure what every line that comes in names."""
    workload = Workload(servers, name)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(getattr(workload, line.strip())()), flush=True)


class Worker:
    """A process with the client of one checkout."""

    def __init__(self, checkout: Path, servers: str) -> None:
        name = "this" if checkout == ROOT else "other"
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), "--servers", servers, "--name", name],
            env=os.environ | {"PYTHONPATH": str(checkout / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def measure(self, way: str) -> dict[str, float]:
        assert self._process.stdin is not None
        print(way, file=self._process.stdin, flush=True)
        found: dict[str, float] = json.loads(self._read())
        return found

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def stop(self) -> None:
        self._process.communicate()


def compare(before: Path, rounds: int, ways: list[str]) -> dict[str, list[float]]:
    """The medians of both, by what was measured."""
    from benchmarks.quiver import Brokers  # noqa: PLC0415  (a worker may be of another checkout)

    figures: dict[str, list[list[float]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-client-") as folder,
        Brokers(Path(folder), 1, "--fsync", "never") as brokers,
    ):
        workers = [Worker(before, brokers.servers), Worker(ROOT, brokers.servers)]
        for way in ways:
            for _ in range(rounds):
                for number, worker in enumerate(workers):
                    for name, found in worker.measure(way).items():
                        figures.setdefault(name, [[], []])[number].append(found)
        for worker in workers:
            worker.stop()
    return {name: list(map(statistics.median, found)) for name, found in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(WAYS))
    parser.add_argument("--servers", default="", help="measure what is imported, on demand")
    parser.add_argument("--name", default="")
    parser.add_argument("--json", action="store_true", help="one JSON line for programs")
    options = parser.parse_args()
    if options.servers:
        work(options.servers, options.name)
        return
    if not options.before:
        parser.error("name another checkout with --before")
    found = compare(options.before.absolute(), options.rounds, options.only.split(","))
    if options.json:
        print(json.dumps({"benchmark": "client_cost", "us": found}))
        return
    print(f"µs, medians of {options.rounds} rounds in turns; processor time of the client but for")
    print("what says from where to where")
    for name, (was, now) in found.items():
        digits = 1 if was > 10.0 else 3
        print(f"  {name:<44} {was:>10,.{digits}f} {now:>10,.{digits}f}   x {now / was:.2f}")


if __name__ == "__main__":
    main()
