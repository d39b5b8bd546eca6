"""Copying messages from topic to topic on real brokers: as they are, and never twice."""

import asyncio
import time
from functools import partial

import pytest

import quivermq
import quivermq.aio
from quivermq.testing import Cluster


def rows(client: quivermq.Client, topic: str, partition: int = 0) -> list[tuple[object, ...]]:
    return [
        (message.key, message.value, message.headers, message.priority)
        for message in client.read(topic, partition)
    ]


def test_copies_have_the_same_keys_values_headers_and_priorities(
    cluster: Cluster, topic: str
) -> None:
    with cluster.connect() as client:
        client.create_topic(topic, partitions=2)
        client.produce(topic, b"a", key=b"k", headers={"h": b"1"}, priority=3, partition=1)
        client.produce_many(topic, [b"%d" % n for n in range(100)], partition=1)
        to = f"{topic}.copy"
        client.create_topic(to, partitions=2)
        receipts = client.copy(topic, [(1, 0, 101)], to)
        assert sum(receipt.count for receipt in receipts) == 101
        assert {receipt.partition for receipt in receipts} == {1}
        assert rows(client, to, 1) == rows(client, topic, 1)
        assert rows(client, to, 0) == []


def test_a_range_may_begin_and_end_within_a_batch(cluster: Cluster, topic: str) -> None:
    with cluster.connect() as client:
        client.create_topic(topic)
        client.produce_many(topic, [b"%d" % n for n in range(1000)])
        to = f"{topic}.copy"
        client.create_topic(to)
        client.copy(topic, [(0, 990, 1000), (0, 3, 5)], to, partition=0, priority=7)
        expected = [(None, b"%d" % n, {}, 7) for n in (*range(990, 1000), 3, 4)]
        assert rows(client, to) == expected


def test_the_same_copy_under_the_same_number_is_stored_once(cluster: Cluster, topic: str) -> None:
    with cluster.connect() as client:
        client.create_topic(topic)
        for part in range(5):
            client.produce_many(topic, [b"%d-%d" % (part, n) for n in range(50)])
        to = f"{topic}.copy"
        client.create_topic(to)
        ranges = [(0, 0, 120), (0, 120, 250)]
        first = client.copy(topic, ranges, to, producer_id=77, epoch=3)
        assert client.copy(topic, ranges, to, producer_id=77, epoch=3) == first
        assert [row[1] for row in rows(client, to)] == [row[1] for row in rows(client, topic)]
        with pytest.raises(quivermq.Fenced):
            client.copy(topic, ranges, to, producer_id=77, epoch=2)


def test_what_is_not_there_cannot_be_copied(cluster: Cluster, topic: str) -> None:
    with cluster.connect() as client:
        client.create_topic(topic)
        client.produce_many(topic, [b"a", b"b"])
        to = f"{topic}.copy"
        client.create_topic(to)
        with pytest.raises(quivermq.InvalidRequest, match="ends at 2"):
            client.copy(topic, [(0, 0, 3)], to)
        with pytest.raises(quivermq.InvalidRequest, match="start < stop"):
            client.copy(topic, [(0, 2, 2)], to)
        with pytest.raises(quivermq.InvalidRequest, match="partition"):
            client.copy(topic, [(0, 0, 2)], to, partition=4)


def test_the_asyncio_client_copies_too(cluster: Cluster, topic: str) -> None:
    async def copied() -> list[quivermq.BatchReceipt]:
        async with quivermq.aio.connect(cluster.servers) as client:
            await client.create_topic(topic)
            await client.produce_many(topic, [b"a", b"b"])
            await client.create_topic(f"{topic}.copy")
            return await client.copy(topic, [(0, 0, 2)], f"{topic}.copy")

    assert sum(receipt.count for receipt in asyncio.run(copied())) == 2


def test_parts_are_stored_together_and_told_apart(cluster: Cluster, topic: str) -> None:
    with cluster.connect() as client:
        client.create_topic(topic, partitions=2)
        parts = [([b"%d-%d" % (part, n) for n in range(10)], part % 8) for part in range(30)]
        parts.append(([b"x" * 400_000] * 5, 0))
        found = client.produce_parts(topic, parts, partition=1)
        assert [len(receipts) for receipts in found] == [1] * 30 + [len(found[-1])]
        assert len(found[-1]) > 1
        stored = {message.offset: message for message in client.read(topic, 1)}
        for (values, priority), receipts in zip(parts, found, strict=True):
            offsets = [
                receipt.first_offset + n for receipt in receipts for n in range(receipt.count)
            ]
            assert [stored[offset].value for offset in offsets] == values
            assert {stored[offset].priority for offset in offsets} == {priority}


def test_what_is_held_is_copied_like_what_is_read(cluster: Cluster, topic: str) -> None:
    with cluster.connect() as client:
        client.create_topic(topic)
        client.produce_parts(topic, [([b"%d" % n] * 3, n % 8) for n in range(20)], partition=0)
        ranges = [(0, 30, 60), (0, 0, 3), (0, 4, 29)]  # the last one begins within a batch
        for most in (1, 1 << 20):
            to = f"{topic}.{most}"
            client.create_topic(to)
            held = client.hold(topic, [(0, 0, 60)], bytes_max=most)
            client.copy(topic, ranges, to, held=held)
            source = rows(client, topic)
            assert rows(client, to) == source[30:60] + source[0:3] + source[4:29]
        with pytest.raises(quivermq.InvalidRequest, match="what is held is of topic"):
            client.copy(to, [(0, 0, 1)], topic, held=held)


def test_a_producers_position_is_told_also_when_it_was_forgotten(
    cluster: Cluster, topic: str
) -> None:
    with cluster.connect() as client:
        client.create_topic(topic)
        client.produce_many(topic, [b"before"])
        since = next(iter(client.read(topic))).timestamp
        assert client.position(topic, 0, producer_id=5, epoch=2) == 0
        client.produce_many(topic, [b"a", b"b"], producer_id=5, epoch=2)
        client.produce_many(topic, [b"c"], producer_id=5, epoch=2, sequence=2)
        client.produce_many(topic, [b"d"], producer_id=6, epoch=2)
        assert client.position(topic, 0, producer_id=5, epoch=2) == 3
        assert client.position(topic, 0, producer_id=5, epoch=3) == 0
        with pytest.raises(quivermq.Fenced):
            client.position(topic, 0, producer_id=5, epoch=1)
        assert client.topic(topic).message_count == 5  # asking stores nothing
        assert client.stored(topic, 0, producer_id=5, epoch=2, since_ms=since) == 3
        assert client.stored(topic, 0, producer_id=5, epoch=1, since_ms=since) == 0
        assert client.stored(topic, 0, producer_id=5, epoch=2, since_ms=since + 3_600_000) == 0


def test_what_was_dropped_is_not_taken_for_what_was_never_stored(topic: str) -> None:
    settings = {"tick_ms": 50, "retention_interval_ms": 20}
    with Cluster(nodes=1, settings=settings) as cluster, cluster.connect() as client:
        since = int(time.time() * 1000) - 1000
        ask = partial(client.stored, topic, 0, producer_id=5, epoch=2, since_ms=since)
        client.create_topic(topic)
        assert ask() == 0
        client.produce_many(topic, [b"a", b"b"], producer_id=5, epoch=2)
        assert ask() == 2
        client.alter_topic(topic, retention=quivermq.Retention(max_age=0.001))
        deadline = time.monotonic() + 20
        while client.offsets(topic).partitions[0].start < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(quivermq.InvalidRequest, match="holds nothing"):
            ask()
        client.alter_topic(topic, retention=quivermq.Retention())
        client.produce_many(topic, [b"c"])
        with pytest.raises(quivermq.InvalidRequest, match="cannot be told any more"):
            ask()
