"""NATS JetStream, driven by nats-py on uvloop: one server, or three with streams on all of them.

`publish_async` with 4,000 pending; pull consumers that fetch as many as they acknowledge; push
consumers for latency and for many groups.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from benchmarks.compare.system import (
    LOOPBACK,
    START_SECONDS_MAX,
    Arrivals,
    AsyncSystem,
    Sample,
    free_ports,
    version_of,
)

PENDING_MAX = 4000
PENDING_BYTES = 128 << 20
ACKS_PENDING_MAX = 100_000
FETCH_SECONDS = 30.0


class Nats(AsyncSystem):
    """Servers whose files are synced every two minutes, or on every write."""

    name = "NATS JetStream"
    needs = ("nats",)

    def __init__(self, *, nodes: int, fsync: bool) -> None:
        super().__init__(nodes=nodes, fsync=fsync)
        self._servers: list[str] = []
        self._connection: Any = None
        self._stream: Any = None
        self._endless = cycle([b""])
        self._stored = 0

    def start(self) -> None:
        ports = free_ports(2 * self.nodes)
        clients, routes = ports[: self.nodes], ports[self.nodes :]
        self._servers = [f"nats://{LOOPBACK}:{port}" for port in clients]
        for number, (client, route) in enumerate(zip(clients, routes, strict=True)):
            folder = self.folder / str(number)
            folder.mkdir()
            always = ", sync_interval: always" if self.fsync else ""
            lines = [
                f"server_name: n{number}",
                f"listen: {LOOPBACK}:{client}",
                f'jetstream {{ store_dir: "{folder}"{always} }}',
            ]
            if self.nodes > 1:
                others = ",".join(f"nats://{LOOPBACK}:{port}" for port in routes if port != route)
                cluster = f"name: bench, listen: {LOOPBACK}:{route}, routes: [{others}]"
                lines.append(f"cluster {{ {cluster} }}")
            configuration = folder / "nats.conf"
            configuration.write_text("\n".join(lines))
            self.spawn("nats-server", "-c", str(configuration))
        for port in clients:
            self.wait_for(port)
        self.run(self._begin())

    async def _begin(self) -> None:
        self._connection = await self._connect()
        self._stream = self._connection.jetstream(publish_async_max_pending=PENDING_MAX)
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            # A cluster takes a while to elect who may create streams.
            try:
                await self._stream.add_stream(
                    name="first", subjects=["first"], num_replicas=self.nodes
                )
            except Exception:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.5)
            else:
                return

    async def _connect(self) -> Any:
        import nats  # noqa: PLC0415  (not everywhere)

        return await nats.connect(self._servers, pending_size=PENDING_BYTES)

    def stop(self) -> None:
        if self._connection is not None:
            self.run(self._connection.close())
        self.close_loop()

    def versions(self) -> str:
        server = self._connection.connected_server_version
        return f"NATS {server.major}.{server.minor}.{server.patch}, {version_of('nats-py')}"

    def open_topic(self, values: Sequence[bytes]) -> None:
        self.values, self._endless = values, cycle(values)
        self.topic = self.next_name()
        self._stored = 0
        self.run(
            self._stream.add_stream(name=self.topic, subjects=[self.topic], num_replicas=self.nodes)
        )

    def drop_topic(self) -> None:
        self.run(self._stream.delete_stream(self.topic))

    def produce(self, batch: int, seconds: float) -> Sample:
        return self.run(self._produce(batch, seconds))

    async def _produce(self, batch: int, seconds: float) -> Sample:
        next_batch = self.batches_of(batch)
        publish = self._stream.publish_async

        async def step() -> int:
            for value in next_batch():
                await publish(self.topic, value)
            return batch

        sample = await self.timed_async(seconds, step, self._stream.publish_async_completed)
        self._stored += sample.messages
        return sample

    def consume(self, batch: int, seconds: float) -> Sample:
        return self.run(self._consume(batch, seconds))

    async def _consume(self, batch: int, seconds: float) -> Sample:
        from nats.js.api import ConsumerConfig  # noqa: PLC0415  (not everywhere)

        subscription = await self._stream.pull_subscribe(
            self.topic, self.next_name(), config=ConsumerConfig(max_ack_pending=ACKS_PENDING_MAX)
        )
        left = self._stored

        async def step() -> int:
            nonlocal left
            if not left:
                return 0
            found = await subscription.fetch(min(batch, left), timeout=FETCH_SECONDS)
            for message in found:
                await message.ack()
            left -= len(found)
            return len(found)

        sample = await self.timed_async(seconds, step, self._connection.flush)
        await subscription.unsubscribe()
        return sample

    async def _publish(self) -> None:
        self._stored += 1
        await self._stream.publish(self.topic, next(self._endless))

    def lone(self, count: int) -> Sample:
        return self.run(self.timed_laps_async(count, self._publish))

    def push(self, count: int) -> Sample:
        return self.run(self._push(count))

    async def _push(self, count: int) -> Sample:
        arrivals = Arrivals()
        subscription = await self._start_group(arrivals)
        sample = await self.timed_pushes(count, self._publish, arrivals)
        await subscription.unsubscribe()
        return sample

    async def _start_group(self, arrivals: Arrivals) -> Any:
        from nats.js.api import DeliverPolicy  # noqa: PLC0415  (not everywhere)

        async def receive(message: Any) -> None:
            arrivals.note()
            await message.ack()

        return await self._stream.subscribe(
            self.topic, durable=self.next_name(), cb=receive, manual_ack=True,
            deliver_policy=DeliverPolicy.NEW,
        )  # fmt: skip

    def clients(self, count: int, seconds: float) -> Sample:
        return self.run(self._clients(count, seconds))

    async def _clients(self, count: int, seconds: float) -> Sample:
        connections = [await self._connect() for _ in range(count)]

        def produce_with(connection: Any) -> Any:
            publish = connection.jetstream().publish
            return lambda: publish(self.topic, next(self._endless))

        try:
            return await self.timed_clients(seconds, [produce_with(one) for one in connections])
        finally:
            for connection in connections:
                await connection.close()

    def groups(self, count: int, seconds: float) -> Sample:
        return self.run(self._groups(count, seconds))

    async def _groups(self, count: int, seconds: float) -> Sample:
        arrivals = Arrivals()
        subscriptions = [await self._start_group(arrivals) for _ in range(count)]
        try:
            return await self.timed_fan_out(seconds, count, self._publish, arrivals)
        finally:
            for subscription in subscriptions:
                await subscription.unsubscribe()
