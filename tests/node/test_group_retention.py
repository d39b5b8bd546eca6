"""What retention means for groups: what all have done may go, and what they lose is counted."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from quivermq.transports import Server
from quivermq.wire import proto
from tests.node.cluster_stage import cluster
from tests.node.consumer_stage import Consumer, led, values
from tests.transports.stage import on_loop, serving, until

QUICK: dict[str, Any] = {"segment_bytes": 64 << 10, "retention_interval_ms": 20}


def start_of(server: Server) -> int:
    group = server.broker.partitions.local("orders", b"", 0)
    assert group is not None
    return group.log.start.next_offset


async def fill(consumer: Consumer, batches: int) -> None:
    for number in range(batches):
        await consumer.store(*[b"%d" % number + bytes(10_000)] * 10)


@on_loop
async def test_what_every_group_has_done_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path, **QUICK) as server:
        consumer = Consumer(server)
        await consumer.make_topic(delete_acked=True)
        await fill(consumer, 10)
        await consumer.poll(1, group="slow")
        # Nobody is done with anything: all of it stays.
        await asyncio.sleep(0.1)
        assert start_of(server) == 0
        while got := await consumer.poll(group="quick"):
            await consumer.ack(got, group="quick")
        assert (await consumer.describe("quick")).floor == 100
        await asyncio.sleep(0.1)
        assert start_of(server) == 0
        seek = proto.SeekGroup(topic="orders", group="slow", offset=50)
        await consumer.ask(seek_group=seek)
        await until(lambda: start_of(server) > 0)
        await asyncio.sleep(0.1)
        assert start_of(server) <= 50
        got = await consumer.poll(1, group="slow")
        assert got[0].message.offset == 50
        assert (await consumer.describe("slow")).lost == 0
        await consumer.close()


@on_loop
async def test_a_topic_without_groups_keeps_everything(tmp_path: Path) -> None:
    async with serving(tmp_path, **QUICK) as server:
        consumer = Consumer(server)
        await consumer.make_topic(delete_acked=True)
        await fill(consumer, 10)
        await asyncio.sleep(0.1)
        assert start_of(server) == 0
        # A committed offset is a group's progress, too.
        body = proto.CommitOffset(topic="orders", group="reader", offset=100)
        await consumer.ask(commit_offset=body)
        await until(lambda: start_of(server) > 0)
        await consumer.close()


@on_loop
async def test_followers_delete_what_is_done_as_well(tmp_path: Path) -> None:
    async with cluster(tmp_path, **QUICK) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic(delete_acked=True)
        await until(lambda: led(brokers))
        await fill(consumer, 10)
        while got := await consumer.poll():
            await consumer.ack(got)
        await until(lambda: all(start_of(server) > 0 for server in brokers.running.values()))
        await consumer.close()


@on_loop
async def test_every_replica_keeps_what_some_archive_lacks(tmp_path: Path) -> None:
    async with cluster(tmp_path, **QUICK) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic(keep_until_archived=True, retention_messages=10)
        await until(lambda: led(brokers))
        await fill(consumer, 10)

        def starts() -> list[int]:
            return [start_of(server) for server in brokers.running.values()]

        async def commit(table: str, offset: int) -> None:
            group = f"_archive.{uuid5(NAMESPACE_OID, table)}"
            body = proto.CommitOffset(topic="orders", group=group, offset=offset)
            await consumer.ask(commit_offset=body)

        await asyncio.sleep(0.1)
        assert starts() == [0] * 3
        await commit("quick", 100)
        await until(lambda: all(start >= 80 for start in starts()))
        await fill(consumer, 10)
        # Of two tables the slower one counts.
        await commit("slow", 140)
        await commit("quick", 200)
        await until(lambda: all(start > 110 for start in starts()))
        await asyncio.sleep(0.1)
        assert max(starts()) <= 140
        await consumer.close()


@on_loop
async def test_what_a_slow_group_loses_is_counted_and_it_goes_on(tmp_path: Path) -> None:  # F36
    async with serving(tmp_path, **QUICK) as server:
        consumer = Consumer(server)
        await consumer.make_topic(retention_messages=20)
        await consumer.store(b"first" + bytes(10_000), b"second" + bytes(10_000))
        first, _ = await consumer.poll()
        await consumer.ack([first])
        await fill(consumer, 20)
        # All that will go: a poll that finds what it leased deleted comes back empty, as it may.
        await until(lambda: start_of(server) == 182)
        # The figures say so though nobody polls.
        await consumer.until(lambda counters: counters.lost == start_of(server) - 1)
        got = await consumer.poll(1)
        assert got[0].message.offset == start_of(server) == 182
        counters = await consumer.describe()
        assert (counters.done, counters.in_flight) == (1, 1)
        assert values(await consumer.ack(got)) == []
        await consumer.close()
