"""Copying messages from topic to topic on real brokers: as they are, and never twice."""

import asyncio

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
