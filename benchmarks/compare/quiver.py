"""QuiverMQ, driven by its public client, with brokers in processes of their own.

`producer.send` and `send_many` produce; a subscription consumes messages one by one, or lists of as
many as it is told.
Beside the work that all systems do there is some that only this one is asked for.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from itertools import cycle
from typing import Any

import quivermq
import quivermq.aio
from benchmarks.compare.system import START_SECONDS_MAX, Arrivals, AsyncSystem, Sample, version_of
from benchmarks.quiver import Brokers, wait_for_brokers

SENT_AT_ONCE = 1_000
"""Messages between two looks at the clock."""
PREFETCHED_MESSAGES = 40_000
STICKY_BYTES = 32 << 20


class Quiver(AsyncSystem):
    """Brokers that sync every second, or before every acknowledgement, which is the default."""

    name = "QuiverMQ"

    def __init__(self, *, nodes: int, fsync: bool) -> None:
        super().__init__(nodes=nodes, fsync=fsync)
        self._open = ExitStack()
        self._endless = cycle([b""])

    def start(self) -> None:
        # Redis without fsync syncs every second, too.
        flags = ("--fsync", "always" if self.fsync else "interval", "--fsync-interval-ms", "1000")
        self._brokers = self._open.enter_context(Brokers(self.folder, self.nodes, *flags))
        self._client = self._open.enter_context(
            quivermq.connect(self._brokers.servers, timeout=60.0)
        )
        wait_for_brokers(self._client, self.nodes)

    def stop(self) -> None:
        self.close_loop()
        self._open.close()

    def pids(self) -> list[int]:
        return [broker.process.pid for broker in self._brokers.each]

    def versions(self) -> str:
        return f"QuiverMQ {quivermq.__version__}, {version_of('pyarrow')}, {version_of('uvloop')}"

    def open_topic(self, values: Sequence[bytes]) -> None:
        self.values, self._endless = values, cycle(values)
        self.topic = self.next_name()
        self._client.create_topic(self.topic, replication=self.nodes)
        # Room on disk, buffers, the producer's identity: what only a first message pays for.
        self._client.produce_many(self.topic, list(values[:1_000]))

    def drop_topic(self) -> None:
        self._client.delete_topic(self.topic)

    def produce(self, batch: int, seconds: float) -> Sample:
        topic = self.topic
        with self._client.producer() as producer:
            send, send_many = producer.send, producer.send_many
            values = self.values[:SENT_AT_ONCE]
            next_batch = self.batches_of(batch)
            calls = max(1, SENT_AT_ONCE // batch)

            def send_singles() -> int:
                for value in values:
                    send(topic, value)
                return len(values)

            def send_lists() -> int:
                for _ in range(calls):
                    send_many(topic, next_batch())
                return calls * batch

            step = send_singles if batch == 1 else send_lists
            return self.timed(seconds, step, producer.flush)

    def consume(self, batch: int, seconds: float) -> Sample:
        """A loop over messages or lists, fetched ahead; acknowledgements wait only at the end."""
        with self._client.subscribe(
            self.topic, self.next_name(), prefetch=PREFETCHED_MESSAGES
        ) as subscription:
            singles, lists = iter(subscription), subscription.batches(batch)

            def take_one() -> int:
                subscription.ack(next(singles))
                return 1

            def take_list() -> int:
                messages = next(lists)
                subscription.ack(messages)
                return len(messages)

            # To begin is not measured, as with the consumers of others that fetch ahead.
            (first,) = next(subscription.batches(1))
            subscription.ack(first)
            left = self._stored() - 1
            take = take_one if batch == 1 else take_list
            return self.timed(seconds, _until_gone(left, take), subscription.flush)

    def poll(self, batch: int, seconds: float) -> Sample:
        """Each list and each acknowledgement is waited for."""
        group = self.next_name()

        def step() -> int:
            messages = self._client.poll(self.topic, group, batch, wait=0.0)
            self._client.ack(messages)
            return len(messages)

        return self.timed(seconds, step)

    def consume_default(self, seconds: float) -> Sample:
        """A loop that does not say how many it wants."""
        group = self.next_name()

        def step() -> int:
            messages = self._client.poll(self.topic, group)
            self._client.ack(messages)
            return len(messages)

        return self.timed(seconds, step)

    def consume_arrow(self, batch: int, seconds: float) -> Sample:
        """As tables, of which Python makes no messages."""
        group = self.next_name()

        def step() -> int:
            found = self._client.poll_arrow(self.topic, group, batch, wait=0.0)
            found.ack()
            return int(found.table.num_rows)

        return self.timed(seconds, step)

    def consume_sticky(self, batch: int, seconds: float) -> Sample:
        """A member of a group, which owns the partition, and commits how far it is every second."""
        with self._client.consumer(
            self.topic, self.next_name(), prefetch_bytes=STICKY_BYTES
        ) as consumer:
            left = self._stored() - len(consumer.poll(1, wait=START_SECONDS_MAX))
            step = _until_gone(left, lambda: len(consumer.poll(batch)))
            return self.timed(seconds, step, consumer.commit)

    def _stored(self) -> int:
        return sum(each.end_offset for each in self._client.topic(self.topic).partitions)

    def handle(self, seconds: float) -> Sample:
        """A function that is called for every message, and acknowledges it by returning."""
        handled = 0

        def handle(_: quivermq.LeasedMessage) -> None:
            nonlocal handled
            handled += 1

        with self._client.subscribe(
            self.topic, self.next_name(), handler=handle, prefetch=PREFETCHED_MESSAGES
        ) as subscription:
            deadline = time.monotonic() + START_SECONDS_MAX
            while not handled and time.monotonic() < deadline:
                time.sleep(0.001)
            before, watch = handled, self.watch()
            time.sleep(seconds)
            # What was handled until here; the acknowledgements of the last ones are waited for.
            done = handled - before
            subscription.flush()
            return watch.stop(done)

    def lone(self, count: int) -> Sample:
        produce, topic = self._client.produce, self.topic
        return self.timed_laps(count, lambda: produce(topic, next(self._endless)))

    def push(self, count: int) -> Sample:
        return self.run(self._push(count))

    async def _push(self, count: int) -> Sample:
        async with AsyncExitStack() as opened:
            arrivals = Arrivals()
            await self._start_groups(1, arrivals, opened)
            client = await opened.enter_async_context(self._connect())
            return await self.timed_pushes(
                count, lambda: client.produce(self.topic, next(self._endless)), arrivals
            )

    def _connect(self) -> Any:
        return quivermq.aio.connect(self._brokers.servers, timeout=60.0)

    async def _start_groups(self, count: int, arrivals: Arrivals, opened: AsyncExitStack) -> None:
        """Each with a handler; acknowledged when it returns."""
        client = await opened.enter_async_context(self._connect())

        async def handle(_: object) -> None:
            arrivals.note()

        for _ in range(count):
            group = self.next_name()
            # The group begins here: a subscription makes it only when its first poll arrives.
            await client.poll(self.topic, group, 1, wait=0.0, start="latest")
            await opened.enter_async_context(
                client.subscribe(self.topic, group, handler=handle, start="latest")
            )

    def clients(self, count: int, seconds: float) -> Sample:
        return self.run(self._clients(count, seconds))

    async def _clients(self, count: int, seconds: float) -> Sample:
        def produce_with(client: Any) -> Any:
            return lambda: client.produce(self.topic, next(self._endless))

        async with AsyncExitStack() as opened:
            clients = [await opened.enter_async_context(self._connect()) for _ in range(count)]
            return await self.timed_clients(seconds, [produce_with(client) for client in clients])

    def groups(self, count: int, seconds: float) -> Sample:
        return self.run(self._groups(count, seconds))

    async def _groups(self, count: int, seconds: float) -> Sample:
        async with AsyncExitStack() as opened:
            arrivals = Arrivals()
            await self._start_groups(count, arrivals, opened)
            client = await opened.enter_async_context(self._connect())
            return await self.timed_fan_out(
                seconds, count, lambda: client.produce(self.topic, next(self._endless)), arrivals
            )


def _until_gone(left: int, take: Callable[[], int]) -> Callable[[], int]:
    """Takes some of what is left, which is counted: no consumer waits for more."""

    def step() -> int:
        nonlocal left
        taken = take() if left > 0 else 0
        left -= taken
        return taken

    return step
