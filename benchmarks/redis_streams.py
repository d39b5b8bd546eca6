"""Redis Streams, driven by redis-py."""

import asyncio
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

from benchmarks.systems import (
    LOOPBACK,
    NotInstalled,
    Rate,
    Rival,
    async_laps,
    event_loop,
    free_ports,
    laps,
    timed,
)

PIPELINE = 1000
GROUP = "readers"


class Redis(Rival):
    """One server with an append-only file: synced every second, or on every write."""

    name = "Redis Streams"

    def __init__(self, values: Sequence[bytes], *, fsync: bool) -> None:
        super().__init__(values, fsync=fsync)
        self._endless = cycle(values)
        self._client: Any = None
        self._topic = ""
        self._port = 0

    def start(self) -> None:
        try:
            import redis  # noqa: PLC0415  (not everywhere)
        except ImportError as error:
            raise NotInstalled("the Python package redis is not installed") from error
        (self._port,) = free_ports(1)
        self.spawn(
            "redis-server", "--port", str(self._port), "--bind", LOOPBACK,
            "--dir", str(self.folder), "--save", "", "--appendonly", "yes",
            "--appendfsync", "always" if self.fsync else "everysec",
        )  # fmt: skip
        self.wait_for(self._port)
        self._client = redis.Redis(host=LOOPBACK, port=self._port)

    @property
    def port(self) -> int:
        """Where the server listens."""
        return self._port

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
        super().stop()

    def open_topic(self) -> None:
        self._topic = self.next_topic()
        self._client.xgroup_create(self._topic, GROUP, "0", mkstream=True)

    def drop_topic(self) -> None:
        self._client.delete(self._topic)

    def produce(self, seconds: float) -> Rate:
        return timed(seconds, self._add_many)

    def _add_many(self) -> int:
        pipeline = self._client.pipeline(transaction=False)
        for value in islice(self._endless, PIPELINE):
            pipeline.xadd(self._topic, {b"v": value})
        pipeline.execute()
        return PIPELINE

    def consume(self, seconds: float) -> Rate:
        return timed(seconds, self._take_many)

    def _take_many(self) -> int:
        found = self._client.xreadgroup(GROUP, "one", {self._topic: ">"}, count=PIPELINE)
        if not found:
            return 0
        ids = [number for number, _ in found[0][1]]
        self._client.xack(self._topic, GROUP, *ids)
        return len(ids)

    def single(self, count: int) -> list[float]:
        return laps(count, lambda: self._client.xadd(self._topic, {b"v": next(self._endless)}))

    def single_asyncio(self, count: int) -> list[float]:
        with asyncio.Runner(loop_factory=event_loop) as runner:
            return runner.run(self._single_asyncio(count))

    async def _single_asyncio(self, count: int) -> list[float]:
        from redis.asyncio import Redis as AsyncRedis  # noqa: PLC0415  (not everywhere)

        async with AsyncRedis(host=LOOPBACK, port=self._port) as client:
            await client.ping()
            return await async_laps(
                count, lambda: client.xadd(self._topic, {b"v": next(self._endless)})
            )
