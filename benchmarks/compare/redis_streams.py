"""Redis Streams, driven by redis-py with the hiredis parser.

Up to 1,000 commands travel in a pipeline, which is what redis-py has; an XACK travels with the next
XREADGROUP. Three nodes are a server and two replicas; `WAIT 1` at the end of a pipeline waits until
a replica has it, the nearest to a majority that Redis offers.
"""

import asyncio
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from benchmarks.compare.system import (
    FAN_OUT_MAX,
    LOOPBACK,
    Arrivals,
    AsyncSystem,
    Sample,
    free_ports,
    version_of,
)

PIPELINE = 1000
BLOCK_MS = 10_000
REPLICA_WAIT_MS = 10_000


class Redis(AsyncSystem):
    """Servers with an append-only file: synced every second, or on every write."""

    name = "Redis Streams"
    needs = ("redis", "hiredis")

    def __init__(self, *, nodes: int = 1, fsync: bool) -> None:
        super().__init__(nodes=nodes, fsync=fsync)
        self._client: Any = None
        self._endless = cycle([b""])
        self.port = 0

    def start(self) -> None:
        import redis  # noqa: PLC0415  (not everywhere)

        ports = free_ports(self.nodes)
        self.port = ports[0]
        for port in ports:
            folder = self.folder / str(port)
            folder.mkdir()
            command = [
                "redis-server", "--port", str(port), "--bind", LOOPBACK, "--dir", str(folder),
                "--save", "", "--appendonly", "yes",
                "--appendfsync", "always" if self.fsync else "everysec",
                # No rewrite of the file in the middle of a measurement.
                "--auto-aof-rewrite-percentage", "0",
            ]  # fmt: skip
            if port != self.port:
                command += ["--replicaof", LOOPBACK, str(self.port), "--repl-diskless-sync-delay",
                            "0"]  # fmt: skip
            self.spawn(*command)
            self.wait_for(port)
        self._client = redis.Redis(host=LOOPBACK, port=self.port, socket_timeout=60.0)
        if self.nodes > 1:
            self._client.xadd("first", {b"v": b""})
            self._client.wait(self.nodes - 1, 60_000)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
        self.close_loop()

    def versions(self) -> str:
        server = self._client.info("server")["redis_version"]
        return f"Redis {server}, {version_of('redis')} with {version_of('hiredis')}"

    def open_topic(self, values: Sequence[bytes]) -> None:
        self.values, self._endless = values, cycle(values)
        self.topic = self.next_name()
        self._client.xadd(self.topic, {b"v": values[0]})

    def drop_topic(self) -> None:
        self._client.delete(self.topic)

    def produce(self, batch: int, seconds: float) -> Sample:
        next_batch = self.batches_of(batch)
        calls = max(1, PIPELINE // batch)

        def step() -> int:
            pipeline = self._client.pipeline(transaction=False)
            for _ in range(calls):
                for value in next_batch():
                    pipeline.xadd(self.topic, {b"v": value})
            self._wait_for_replica(pipeline)
            pipeline.execute()
            return calls * batch

        return self.timed(seconds, step)

    def _wait_for_replica(self, pipeline: Any) -> None:
        if self.nodes > 1:
            pipeline.wait(1, REPLICA_WAIT_MS)

    def consume(self, batch: int, seconds: float) -> Sample:
        group = self.next_name()
        done: list[bytes] = []
        self._client.xgroup_create(self.topic, group, "0")

        def step() -> int:
            pipeline = self._client.pipeline(transaction=False)
            if done:
                pipeline.xack(self.topic, group, *done)
            pipeline.xreadgroup(group, "one", {self.topic: ">"}, count=batch)
            found = pipeline.execute()[-1]
            done[:] = [number for number, _ in found[0][1]] if found else []
            return len(done)

        def finish() -> None:
            if done:
                self._client.xack(self.topic, group, *done)

        sample = self.timed(seconds, step, finish)
        self._client.xgroup_destroy(self.topic, group)
        return sample

    def lone(self, count: int) -> Sample:
        if self.nodes == 1:
            add, topic = self._client.xadd, self.topic
            return self.timed_laps(count, lambda: add(topic, {b"v": next(self._endless)}))

        def step() -> None:
            pipeline = self._client.pipeline(transaction=False)
            pipeline.xadd(self.topic, {b"v": next(self._endless)})
            self._wait_for_replica(pipeline)
            pipeline.execute()

        return self.timed_laps(count, step)

    def push(self, count: int) -> Sample:
        return self.run(self._push(count))

    async def _push(self, count: int) -> Sample:
        arrivals = Arrivals()
        async with self._connect() as producer, self._connect() as consumer:
            await producer.ping()
            task = await self._start_group(consumer, arrivals)
            try:
                return await self.timed_pushes(
                    count, lambda: producer.xadd(self.topic, {b"v": next(self._endless)}), arrivals
                )
            finally:
                await cancel(task)

    def _connect(self) -> Any:
        from redis.asyncio import Redis as AsyncRedis  # noqa: PLC0415  (not everywhere)

        # One connection, not a pool that is asked for one with every command.
        return AsyncRedis(host=LOOPBACK, port=self.port, single_connection_client=True)

    async def _start_group(self, consumer: Any, arrivals: Arrivals) -> "asyncio.Task[None]":
        group = self.next_name()
        await consumer.xgroup_create(self.topic, group, "$")

        async def receive() -> None:
            while True:
                found = await consumer.xreadgroup(
                    group, "one", {self.topic: ">"}, count=FAN_OUT_MAX, block=BLOCK_MS
                )
                if found:
                    numbers = [number for number, _ in found[0][1]]
                    arrivals.note(len(numbers))
                    await consumer.xack(self.topic, group, *numbers)

        return asyncio.create_task(receive())

    def clients(self, count: int, seconds: float) -> Sample:
        return self.run(self._clients(count, seconds))

    async def _clients(self, count: int, seconds: float) -> Sample:
        clients = [self._connect() for _ in range(count)]

        def produce_with(client: Any) -> Any:
            return lambda: client.xadd(self.topic, {b"v": next(self._endless)})

        try:
            return await self.timed_clients(seconds, [produce_with(client) for client in clients])
        finally:
            for client in clients:
                await client.aclose()

    def groups(self, count: int, seconds: float) -> Sample:
        return self.run(self._groups(count, seconds))

    async def _groups(self, count: int, seconds: float) -> Sample:
        arrivals = Arrivals()
        consumers = [self._connect() for _ in range(count)]
        tasks = [await self._start_group(consumer, arrivals) for consumer in consumers]
        try:
            async with self._connect() as producer:
                return await self.timed_fan_out(
                    seconds, count,
                    lambda: producer.xadd(self.topic, {b"v": next(self._endless)}), arrivals,
                )  # fmt: skip
        finally:
            for task, consumer in zip(tasks, consumers, strict=True):
                await cancel(task)
                await consumer.aclose()


async def cancel(task: "asyncio.Task[Any]") -> None:
    """End it, whatever it does."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
