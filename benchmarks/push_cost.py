"""Processor time of one message that is produced, polled and acknowledged, one after the other.

    python -m benchmarks.push_cost

Beside a produce alone: what a push costs the broker and the client. Processor time comes in steps
of 10 ms; over 1,500 messages that is 7 µs.
"""

import asyncio
import tempfile
import time
from pathlib import Path

import psutil

import quivermq
import quivermq.aio
from benchmarks.quiver import Brokers

MESSAGES, FIRST = 1_500, 200
WAYS = ("produce", "and polled", "and acknowledged")


async def measure(servers: str, way: str, broker: psutil.Process) -> tuple[float, float, float]:
    """Processor time of broker and client, and the time of a round, each in µs a message."""
    arrived = asyncio.Event()
    async with quivermq.aio.connect(servers) as consumer, quivermq.aio.connect(servers) as producer:

        async def consume() -> None:
            while True:
                messages = await consumer.poll("push", "g", 10, wait=5.0)
                if messages and way == WAYS[2]:
                    await consumer.ack(messages)
                if messages:
                    arrived.set()

        async def produce(count: int) -> None:
            for _ in range(count):
                arrived.clear()
                await producer.produce("push", b"x" * 100)
                if consuming is not None:
                    await asyncio.wait_for(arrived.wait(), 10.0)

        consuming = None if way == WAYS[0] else asyncio.create_task(consume())
        await asyncio.sleep(0.3)
        await produce(FIRST)
        both = (broker, psutil.Process())
        used, began = [sum(one.cpu_times()[:2]) for one in both], time.perf_counter()
        await produce(MESSAGES)
        took = time.perf_counter() - began
        after = [sum(one.cpu_times()[:2]) for one in both]
        if consuming is not None:
            consuming.cancel()
    broker_s, client_s = (late - early for late, early in zip(after, used, strict=True))
    return broker_s / MESSAGES * 1e6, client_s / MESSAGES * 1e6, took / MESSAGES * 1e6


def main() -> None:
    print(f"{'':18} broker    client    round   (µs a message, no fsync)")
    for way in WAYS:
        with (
            tempfile.TemporaryDirectory(prefix="bench-push-") as folder,
            Brokers(Path(folder), 1, "--fsync", "never") as brokers,
        ):
            with quivermq.connect(brokers.servers) as client:
                client.create_topic("push")
            process = psutil.Process(brokers.each[0].process.pid)
            found = asyncio.run(measure(brokers.servers, way, process))
        print(f"{way:18}" + "".join(f"{each:7.0f}   " for each in found))


if __name__ == "__main__":
    main()
