"""Consumer groups of QuiverMQ, Redis Streams and NATS JetStream, each used as well as it can be."""

import asyncio
import queue
import threading
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import quivermq.aio
from benchmarks.nats_jetstream import Nats
from benchmarks.quiver import Quiver
from benchmarks.redis_streams import GROUP, Redis
from benchmarks.systems import LOOPBACK, Rate, Rival, event_loop, timed

ARROW_MESSAGES = 50_000
POLLED_MESSAGES = 20_000
PREFETCHED_MESSAGES = 40_000
FILLED_MESSAGES = 2_000_000
RIVAL_COUNTS = (100, 1_000, 5_000)
"""How many a rival takes at a time: the best of these is found out."""
CALIBRATIONS = 3
IDLE_SECONDS = 0.001
"""Between two messages, so that the consumer waits again."""
WARM_UP_LAPS = 20
ARRIVAL_SECONDS_MAX = 10.0


class GroupQuiver(Quiver):
    """Shared groups: every one of them sees all that the topic was filled with."""

    def fill(self) -> None:
        for _ in range(FILLED_MESSAGES // len(self.values)):
            self._client.produce_many(self._topic, list(self.values))

    def poll_arrow(self, seconds: float) -> Rate:
        def take() -> int:
            batch = self._client.poll_arrow(self._topic, "arrow", ARROW_MESSAGES, wait=0.0)
            batch.ack()
            return int(batch.table.num_rows)

        return timed(seconds, take)

    def poll(self, seconds: float) -> Rate:
        def take() -> int:
            messages = self._client.poll(self._topic, "poll", POLLED_MESSAGES, wait=0.0)
            self._client.ack(messages)
            return len(messages)

        return timed(seconds, take)

    def subscribe(self, seconds: float) -> Rate:
        """Lists of messages, acknowledged as a list."""
        with self._client.subscribe(
            self._topic, "subscribe", prefetch=PREFETCHED_MESSAGES
        ) as subscription:
            batches = subscription.batches()

            def take() -> int:
                messages = next(batches)
                subscription.ack(messages)
                return len(messages)

            return timed(seconds, take, finish=subscription.flush)

    def handler(self, seconds: float) -> Rate:
        """A function that is called for every message, and acknowledges it by returning."""
        handled = 0

        def handle(_: quivermq.LeasedMessage) -> None:
            nonlocal handled
            handled += 1

        began = time.perf_counter()
        with self._client.subscribe(
            self._topic, "handler", handler=handle, prefetch=PREFETCHED_MESSAGES
        ) as subscription:
            time.sleep(seconds)
            # What was handled until here; the acknowledgements of the last ones are waited for.
            done = handled
            subscription.flush()
            return Rate(done, time.perf_counter() - began)

    def push(self, count: int) -> list[float]:
        with self._client.subscribe(self._topic, "push", start="latest") as subscription:

            def receive() -> None:
                for message in subscription:
                    arrived.put(time.perf_counter())
                    message.ack()

            arrived: queue.SimpleQueue[float] = queue.SimpleQueue()
            receiver = threading.Thread(target=receive)
            receiver.start()
            try:
                time.sleep(0.2)
                value = self.values[0]
                return one_by_one(count, lambda: self._client.produce(self._topic, value), arrived)
            finally:
                subscription.close()
                receiver.join()

    async def push_asyncio(self, count: int) -> list[float]:
        async with (
            quivermq.aio.connect(self._servers) as client,
            client.subscribe(self._topic, "apush", start="latest") as subscription,
        ):

            async def arrivals() -> AsyncIterator[Callable[[], Awaitable[object]]]:
                async for message in subscription:
                    yield message.ack

            await asyncio.sleep(0.2)
            return await one_by_one_asyncio(
                count, lambda: client.produce(self._topic, self.values[0]), arrivals()
            )


class GroupRival(Rival):
    """One whose consumers take so many messages at a time."""

    at_once = RIVAL_COUNTS[0]

    @abstractmethod
    def take_all(self, seconds: float) -> Rate:
        """What was produced, `at_once` at a time, every one acknowledged."""

    def calibrate(self, seconds: float) -> None:
        """Find out how many at a time it is best at: each is tried several times, in turns."""
        found: dict[int, float] = defaultdict(float)
        for _ in range(CALIBRATIONS):
            for self.at_once in RIVAL_COUNTS:
                self.open_topic()
                self.produce(seconds)
                rate = self.take_all(seconds).per_second
                found[self.at_once] = max(found[self.at_once], rate)
                self.drop_topic()
        self.at_once = max(found, key=found.__getitem__)


class GroupRedis(Redis, GroupRival):
    """XREADGROUP, with the XACK of what came before in the same pipeline."""

    def take_all(self, seconds: float) -> Rate:
        done: list[bytes] = []

        def take() -> int:
            pipeline = self._client.pipeline(transaction=False)
            if done:
                pipeline.xack(self._topic, GROUP, *done)
            pipeline.xreadgroup(GROUP, "one", {self._topic: ">"}, count=self.at_once)
            found = pipeline.execute()[-1]
            done[:] = [number for number, _ in found[0][1]] if found else []
            return len(done)

        def finish() -> None:
            if done:
                self._client.xack(self._topic, GROUP, *done)

        return timed(seconds, take, finish)

    def push(self, count: int) -> list[float]:
        import redis  # noqa: PLC0415  (not everywhere)

        self._client.xgroup_create(self._topic, "push", "$")
        arrived: queue.SimpleQueue[float] = queue.SimpleQueue()

        def receive() -> None:
            with redis.Redis(host=LOOPBACK, port=self._port) as consumer:
                for _ in range(count + WARM_UP_LAPS):
                    found = consumer.xreadgroup("push", "one", {self._topic: ">"}, block=10_000)
                    arrived.put(time.perf_counter())
                    consumer.xack(self._topic, "push", found[0][1][0][0])

        receiver = threading.Thread(target=receive)
        receiver.start()
        try:
            time.sleep(0.2)
            value = self.values[0]
            return one_by_one(count, lambda: self._client.xadd(self._topic, {b"v": value}), arrived)
        finally:
            receiver.join()
            self._client.xgroup_destroy(self._topic, "push")

    async def push_asyncio(self, count: int) -> list[float]:
        from redis.asyncio import Redis as AsyncRedis  # noqa: PLC0415  (not everywhere)

        self._client.xgroup_create(self._topic, "apush", "$")
        where = {"host": LOOPBACK, "port": self._port}
        async with AsyncRedis(**where) as producer, AsyncRedis(**where) as consumer:

            async def arrivals() -> AsyncIterator[Callable[[], Awaitable[object]]]:
                while True:
                    found = await consumer.xreadgroup(
                        "apush", "one", {self._topic: ">"}, block=10_000
                    )
                    number = found[0][1][0][0]
                    yield lambda: consumer.xack(self._topic, "apush", number)  # noqa: B023

            await producer.ping()
            times = await one_by_one_asyncio(
                count, lambda: producer.xadd(self._topic, {b"v": self.values[0]}), arrivals()
            )
        self._client.xgroup_destroy(self._topic, "apush")
        return times


class GroupNats(Nats, GroupRival):
    """A pull consumer for rates, a push consumer for latency."""

    def take_all(self, seconds: float) -> Rate:
        self.fetched = self.at_once
        return self.consume(seconds)

    def push(self, count: int) -> list[float]:
        """Its client knows only asyncio."""
        return self._run(self.push_asyncio(count))

    async def push_asyncio(self, count: int) -> list[float]:
        from nats.js.api import DeliverPolicy  # noqa: PLC0415  (not everywhere)

        subscription = await self._stream.subscribe(
            self._topic, manual_ack=True, deliver_policy=DeliverPolicy.NEW
        )

        async def arrivals() -> AsyncIterator[Callable[[], Awaitable[object]]]:
            while True:
                message = await subscription.next_msg(timeout=ARRIVAL_SECONDS_MAX)
                yield message.ack

        times = await one_by_one_asyncio(
            count, lambda: self._stream.publish(self._topic, self.values[0]), arrivals()
        )
        await subscription.unsubscribe()
        self._stored += count + WARM_UP_LAPS
        return times


def run_push_asyncio(system: Any, count: int) -> list[float]:
    """Each on an event loop of the same kind."""
    if isinstance(system, GroupNats):
        # Its connection lives on a loop of its own.
        return system.push(count)
    with asyncio.Runner(loop_factory=event_loop) as runner:
        found: list[float] = runner.run(system.push_asyncio(count))
        return found


def one_by_one(
    count: int, produce: Callable[[], object], arrived: "queue.SimpleQueue[float]"
) -> list[float]:
    """From before a produce to when its message is in the hands of a consumer in another thread."""
    times = []
    for _ in range(count + WARM_UP_LAPS):
        began = time.perf_counter()
        produce()
        times.append(arrived.get(timeout=ARRIVAL_SECONDS_MAX) - began)
        time.sleep(IDLE_SECONDS)
    return times[WARM_UP_LAPS:]


async def one_by_one_asyncio(
    count: int,
    produce: Callable[[], Awaitable[object]],
    arrivals: AsyncIterator[Callable[[], Awaitable[object]]],
) -> list[float]:
    """The same, both on one event loop."""
    began = 0.0
    times: list[float] = []
    arrived = asyncio.Event()

    async def receive() -> None:
        async for acknowledge in first_of(arrivals, count + WARM_UP_LAPS):
            times.append(time.perf_counter() - began)
            arrived.set()
            await acknowledge()

    receiver = asyncio.create_task(receive())
    await asyncio.sleep(0.2)
    for _ in range(count + WARM_UP_LAPS):
        arrived.clear()
        began = time.perf_counter()
        await produce()
        await asyncio.wait_for(arrived.wait(), ARRIVAL_SECONDS_MAX)
        await asyncio.sleep(IDLE_SECONDS)
    await receiver
    return times[WARM_UP_LAPS:]


async def first_of(source: AsyncIterator[Any], count: int) -> AsyncIterator[Any]:
    """The first `count` of them."""
    for _ in range(count):
        yield await anext(source)
