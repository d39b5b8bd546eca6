"""Clocks of machines that jump below running brokers, and what must not come of it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from quivermq.node import clock
from quivermq.node.clock import machine_ms
from quivermq.transports import Server
from tests.node.cluster_stage import Brokers, cluster
from tests.node.consumer_stage import TOPIC, Consumer, led, values
from tests.transports.stage import on_loop, serving, until

HOUR_MS = 3_600_000
QUICK: dict[str, Any] = {"segment_bytes": 64 << 10, "retention_interval_ms": 20}
NOW_MS = time.time_ns() // 1_000_000
JUMPS = (25 * HOUR_MS, -25 * HOUR_MS, HOUR_MS, -NOW_MS, 10**14)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that nobody refutes is followed without waiting a minute."""
    monkeypatch.setattr(clock, "HELD_MS", 0)


def set_clock(server: Server, by_ms: int) -> None:
    """From now on the machine's clock is wrong by so much."""
    server.broker.scheduler.clock._machine = lambda: machine_ms() + by_ms


def start_of(server: Server) -> int:
    group = server.broker.partitions.local(TOPIC, b"", 0)
    assert group is not None
    return group.log.start.next_offset


async def a_few_ticks() -> None:
    await asyncio.sleep(0.3)


async def fill(consumer: Consumer) -> None:
    for number in range(10):
        await consumer.store(*[b"%d" % number + bytes(10_000)] * 10)


async def look_at_a_jump(brokers: Brokers, node: int, by_ms: int, group: str) -> None:
    consumer, other = Consumer(brokers.running[1]), Consumer(brokers.running[2], 2)
    assert not await consumer.poll(group=group, start_latest=True)
    await consumer.store(b"now")
    await consumer.store(b"later", not_before_ms=int(machine_ms()) + 600_000)
    (held,) = await consumer.poll(group=group)
    set_clock(brokers.running[node], by_ms)
    await a_few_ticks()
    await consumer.store(b"after")
    stamps = [message.timestamp for message in await consumer.fetch(TOPIC)][-3:]
    assert all(abs(stamp - machine_ms()) < 10_000 for stamp in stamps)
    got = await other.poll(group=group)
    assert values(got) == [b"after"], "the lease lasts, and what is delayed is not due"
    assert not await consumer.ack([held], group=group)
    assert [start_of(server) for server in brokers.running.values()] == [0, 0, 0]
    set_clock(brokers.running[node], 0)
    await consumer.close()
    await other.close()


@on_loop
async def test_a_clock_that_jumps_on_any_broker_breaks_no_promise(tmp_path: Path) -> None:
    async with cluster(tmp_path, **QUICK) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic(retention_ms=HOUR_MS // 2)
        await until(lambda: led(brokers))
        await fill(consumer)
        for number, by_ms in enumerate(JUMPS):
            leader = led(brokers)[0]
            await look_at_a_jump(brokers, leader, by_ms, f"workers{number}")
        await look_at_a_jump(brokers, leader % 3 + 1, JUMPS[0], "others")
        await consumer.close()


@pytest.mark.parametrize("by_ms", [25 * HOUR_MS, 10**14])
def test_a_broker_alone_deletes_nothing_early_when_its_clock_is_set_ahead(
    tmp_path: Path, by_ms: int
) -> None:
    @on_loop
    async def run() -> None:
        async with serving(tmp_path, **QUICK) as server:
            consumer = Consumer(server)
            await consumer.make_topic(retention_ms=HOUR_MS)
            await fill(consumer)
            set_clock(server, by_ms)
            await a_few_ticks()
            assert start_of(server) == 0
            await consumer.store(b"after")
            stamp = (await consumer.fetch(TOPIC))[-1].timestamp
            assert stamp > machine_ms() + HOUR_MS, "its time follows, its retention does not"
            set_clock(server, 0)
            await a_few_ticks()
            assert start_of(server) == 0
            await consumer.close()

    run()
