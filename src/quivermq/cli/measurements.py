"""What `quiver bench` measures, through the public client, with every message acknowledged."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from quivermq.client import Client

CALL_MESSAGES: Final = 50_000
"""Messages of one `produce_many`."""
_LATENCY_MESSAGES_MAX: Final = 2_000
_WARM_UP_MESSAGES: Final = 200


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement; `p50_us` and `p99_us` are there where single messages were timed."""

    name: str
    messages: int
    seconds: float
    messages_per_second: float
    bytes_per_second: float
    p50_us: float | None = None
    p99_us: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """What is sent, and where to."""

    client: "Client"
    topic: str
    count: int
    size: int

    def values(self) -> list[bytes]:
        """Messages of one call. Random, so that nobody gains by compressing them."""
        noise = os.urandom(self.size * min(self.count, CALL_MESSAGES))
        return [noise[at : at + self.size] for at in range(0, len(noise), self.size)]

    def figure(self, name: str, messages: int, seconds: float) -> Figure:
        rate = messages / seconds
        return Figure(name, messages, seconds, rate, rate * self.size)


Measure = Callable[[Workload], Figure]


def produce_many(work: Workload) -> Figure:
    """Lists of messages."""
    values = work.values()
    began = time.perf_counter()
    for left in range(work.count, 0, -len(values)):
        work.client.produce_many(work.topic, values[:left])
    return work.figure("produce_many", work.count, time.perf_counter() - began)


def producer_send(work: Workload) -> Figure:
    """One call a message; the producer makes batches."""
    values = work.values()
    with work.client.producer() as producer:
        began = time.perf_counter()
        for left in range(work.count, 0, -len(values)):
            for value in values[:left]:
                last = producer.send(work.topic, value)
        producer.flush()
        last.result()
        seconds = time.perf_counter() - began
    return work.figure("producer.send", work.count, seconds)


def read_arrow(work: Workload) -> Figure:
    """Everything there is, as Arrow batches."""
    began = time.perf_counter()
    rows = 0
    for partition in _partitions(work):
        rows += sum(batch.num_rows for batch in work.client.read(work.topic, partition).batches())
    return work.figure("read, Arrow", rows, time.perf_counter() - began)


def read_messages(work: Workload) -> Figure:
    """Everything there is, as message objects."""
    began = time.perf_counter()
    read = 0
    for partition in _partitions(work):
        read += sum(1 for _ in work.client.read(work.topic, partition))
    return work.figure("read, messages", read, time.perf_counter() - began)


def latency(work: Workload) -> Figure:
    """One message at a time, each acknowledged before the next."""
    messages = min(work.count, _LATENCY_MESSAGES_MAX)
    values = work.values()
    for value in values[:_WARM_UP_MESSAGES]:
        work.client.produce(work.topic, value)
    times = []
    for number in range(messages):
        began = time.perf_counter()
        work.client.produce(work.topic, values[number % len(values)])
        times.append(time.perf_counter() - began)
    times.sort()
    rate = messages / sum(times)
    return Figure(
        "produce, one at a time",
        messages,
        sum(times),
        rate,
        rate * work.size,
        p50_us=times[len(times) // 2] * 1e6,
        p99_us=times[len(times) * 99 // 100] * 1e6,
    )


def _partitions(work: Workload) -> range:
    return range(len(work.client.topic(work.topic).partitions))
