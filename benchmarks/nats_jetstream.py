"""NATS JetStream, driven by nats-py: one server, or three with every stream on all of them."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from itertools import cycle
from typing import Any, TypeVar

from benchmarks.systems import (
    LOOPBACK,
    START_SECONDS_MAX,
    NotInstalled,
    Rate,
    Rival,
    async_laps,
    event_loop,
    free_ports,
)

T = TypeVar("T")

PENDING_MAX = 4000
FETCHED = 1000
FETCH_SECONDS = 5.0


class Nats(Rival):
    """One server; its files are synced every two minutes, or on every write."""

    name = "NATS JetStream"
    why_not = "sync_interval=always needs 2.10 or later"
    servers = 1
    fetched = FETCHED

    def __init__(self, values: Sequence[bytes], *, fsync: bool) -> None:
        super().__init__(values, fsync=fsync)
        self._endless = cycle(values)
        self._runner = asyncio.Runner(loop_factory=event_loop)
        self._connection: Any = None
        self._stream: Any = None
        self._topic = ""
        self._stored = 0

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def start(self) -> None:
        try:
            import nats  # noqa: PLC0415  (not everywhere)
        except ImportError as error:
            raise NotInstalled("the Python package nats-py is not installed") from error
        ports = free_ports(2 * self.servers)
        clients, routes = ports[: self.servers], ports[self.servers :]
        for number, (client, route) in enumerate(zip(clients, routes, strict=True)):
            folder = self.folder / str(number)
            folder.mkdir()
            always = ", sync_interval: always" if self.fsync else ""
            lines = [
                f"server_name: n{number}",
                f"listen: {LOOPBACK}:{client}",
                f'jetstream {{ store_dir: "{folder}"{always} }}',
            ]
            if self.servers > 1:
                others = ",".join(f"nats://{LOOPBACK}:{port}" for port in routes if port != route)
                cluster = f"name: bench, listen: {LOOPBACK}:{route}, routes: [{others}]"
                lines.append(f"cluster {{ {cluster} }}")
            configuration = folder / "nats.conf"
            configuration.write_text("\n".join(lines))
            self.spawn("nats-server", "-c", str(configuration))
        for port in clients:
            self.wait_for(port)
        self._run(self._connect(nats, clients))

    async def _connect(self, nats: Any, ports: list[int]) -> None:
        servers = [f"nats://{LOOPBACK}:{port}" for port in ports]
        self._connection = await nats.connect(servers, pending_size=64 << 20)
        self._stream = self._connection.jetstream(publish_async_max_pending=PENDING_MAX)
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            # A cluster takes a while to elect who may create streams.
            try:
                await self._add_stream()
            except Exception:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.5)
            else:
                break
        await self._stream.delete_stream(self._topic)

    def stop(self) -> None:
        if self._connection is not None:
            self._run(self._connection.close())
        self._runner.close()
        super().stop()

    def open_topic(self) -> None:
        self._run(self._add_stream())

    async def _add_stream(self) -> None:
        self._topic = self.next_topic()
        self._stored = 0
        await self._stream.add_stream(
            name=self._topic, subjects=[self._topic], num_replicas=self.servers
        )

    def drop_topic(self) -> None:
        self._run(self._stream.delete_stream(self._topic))

    def produce(self, seconds: float) -> Rate:
        return self._run(self._produce(seconds))

    async def _produce(self, seconds: float) -> Rate:
        began = time.perf_counter()
        messages, publish, subject = 0, self._stream.publish_async, self._topic
        while time.perf_counter() - began < seconds:
            for value in (next(self._endless) for _ in range(100)):
                await publish(subject, value)
            messages += 100
        await self._stream.publish_async_completed()
        self._stored += messages
        return Rate(messages, time.perf_counter() - began)

    def consume(self, seconds: float) -> Rate:
        return self._run(self._consume(seconds))

    async def _consume(self, seconds: float) -> Rate:
        from nats.js.api import ConsumerConfig  # noqa: PLC0415  (not everywhere)

        subscription = await self._stream.pull_subscribe(
            self._topic, "readers", config=ConsumerConfig(max_ack_pending=100_000)
        )
        began = time.perf_counter()
        messages = 0
        while messages < self._stored and time.perf_counter() - began < seconds:
            wanted = min(self.fetched, self._stored - messages)
            found = await subscription.fetch(wanted, timeout=FETCH_SECONDS)
            for message in found:
                await message.ack()
            messages += len(found)
        await self._connection.flush()
        return Rate(messages, time.perf_counter() - began)

    def single(self, count: int) -> list[float]:
        publish, subject = self._stream.publish, self._topic
        times = self._run(async_laps(count, lambda: publish(subject, next(self._endless))))
        self._stored += count
        return times

    def single_asyncio(self, count: int) -> list[float]:
        return self.single(count)


class NatsCluster(Nats):
    """Three servers, every stream with three replicas."""

    name = "NATS, 3 replicas"
    servers = 3
