"""QuiverMQ itself, through its public client, with brokers in processes of their own."""

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path

import quivermq
import quivermq.aio
from benchmarks.systems import (
    START_SECONDS_MAX,
    Rate,
    System,
    async_laps,
    event_loop,
    laps,
    timed,
)
from quivermq.cli.local_brokers import LocalBroker, LocalBrokers, plan

CALL_MESSAGES = 100_000
SENT_AT_ONCE = 10_000
GROUP = "readers"


class Brokers:
    """Brokers of this machine, each a `quiver serve`."""

    def __init__(self, folder: Path, nodes: int, *flags: str) -> None:
        self._flags = ("--log-level", "warning", *flags)
        self._places = plan(nodes, folder, any_ports=True)
        self.local = LocalBrokers(self._places, folder, self._flags)

    def __enter__(self) -> "Brokers":
        self.local.__enter__()
        self.local.wait_until_serving(START_SECONDS_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        self.local.stop()

    def start_again(self, broker: LocalBroker) -> None:
        """One that ended."""
        broker.start(self._places, self._flags)

    @property
    def servers(self) -> str:
        return self.local.servers

    @property
    def each(self) -> list[LocalBroker]:
        return self.local.brokers


class Quiver(System):
    """Brokers of which every write is synced, or none is waited for."""

    name = "QuiverMQ"
    nodes = 1

    def __init__(self, values: Sequence[bytes], *, fsync: bool) -> None:
        super().__init__(values, fsync=fsync)
        self._endless = cycle(values)
        self._open = ExitStack()
        self._topic = ""

    def start(self) -> None:
        # Redis in the class without fsync syncs in the background, too.
        flags = ("--fsync", "always" if self.fsync else "interval", "--fsync-interval-ms", "1000")
        brokers = self._open.enter_context(Brokers(self.folder, self.nodes, *flags))
        self._servers = brokers.servers
        self._client = self._open.enter_context(quivermq.connect(brokers.servers, timeout=30.0))
        wait_for_brokers(self._client, self.nodes)

    def stop(self) -> None:
        self._open.close()

    def open_topic(self) -> None:
        self._topic = self.next_topic()
        self._client.create_topic(self._topic, replication=self.nodes)
        # Room on disk, buffers, the producer's identity: what only a first message pays for.
        self._client.produce_many(self._topic, list(self.values[:CALL_MESSAGES]))

    def drop_topic(self) -> None:
        self._client.delete_topic(self._topic)

    def produce_many(self, seconds: float) -> Rate:
        values = list(self.values[:CALL_MESSAGES])

        def call() -> int:
            self._client.produce_many(self._topic, values)
            return len(values)

        return timed(seconds, call)

    def producer_send(self, seconds: float) -> Rate:
        values = self.values[:SENT_AT_ONCE]
        with self._client.producer() as producer:
            send, topic = producer.send, self._topic

            def some() -> int:
                for value in values:
                    send(topic, value)
                return len(values)

            return timed(seconds, some, finish=producer.flush)

    def read_arrow(self, seconds: float) -> Rate:
        """Every batch is acknowledged: its group's offset is committed."""
        at = 0
        with self._client.read(self._topic) as reader:
            batches = reader.batches()

            def take() -> int:
                nonlocal at
                batch = next(batches, None)
                if batch is None:
                    return 0
                at += batch.num_rows
                self._client.commit(self._topic, GROUP, 0, at)
                return int(batch.num_rows)

            return timed(seconds, take)

    def read_messages(self, seconds: float) -> Rate:
        """The offset is committed every so many messages."""
        with self._client.read(self._topic) as reader:

            def take() -> int:
                messages = list(islice(reader, SENT_AT_ONCE))
                if messages:
                    self._client.commit(self._topic, GROUP, 0, messages[-1].offset + 1)
                return len(messages)

            return timed(seconds, take)

    def single(self, count: int) -> list[float]:
        produce, topic = self._client.produce, self._topic
        return laps(count, lambda: produce(topic, next(self._endless)))

    def single_asyncio(self, count: int) -> list[float]:
        with asyncio.Runner(loop_factory=event_loop) as runner:
            return runner.run(self._single_asyncio(count))

    async def _single_asyncio(self, count: int) -> list[float]:
        async with quivermq.aio.connect(self._servers) as client:
            await client.produce(self._topic, next(self._endless))
            return await async_laps(count, lambda: client.produce(self._topic, next(self._endless)))


class QuiverCluster(Quiver):
    """Three brokers, every topic on all of them."""

    name = "QuiverMQ, 3 nodes"
    nodes = 3


def wait_for_brokers(client: quivermq.Client, count: int) -> None:
    """Until so many are members of the cluster: they serve a moment before."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while sum(node.alive for node in client.cluster().nodes) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no cluster of {count} within {START_SECONDS_MAX:.0f} s")
        time.sleep(0.05)


def random_values(count: int, size: int) -> list[bytes]:
    """Messages that nobody gains by compressing."""
    noise = os.urandom(count * size)
    return [noise[at : at + size] for at in range(0, len(noise), size)]
