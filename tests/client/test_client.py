"""The blocking client against a real broker: everything that it offers, once."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import quivermq
from quivermq.errors import Fenced, InvalidRequest, OffsetOutOfRange, TopicExists, TopicNotFound
from tests.client.brokers import BrokerThread


def test_topics_are_created_described_altered_and_deleted(real: quivermq.Client) -> None:
    made = real.create_topic(
        "orders",
        partitions=3,
        retention=quivermq.Retention(max_age=3600),
        rate_limit=quivermq.RateLimit(0.5, burst=2),
        max_deliveries=7,
        dead_letter="bin",
    )
    assert [each.partition for each in made.partitions] == [0, 1, 2]
    assert all(each.leader == 1 for each in made.partitions)
    assert made == real.topic("orders")
    assert "orders" in [each.name for each in real.topics()]
    assert real.topics(["orders"]) == [made]
    assert real.topics([]) == []
    with pytest.raises(TopicNotFound, match="nothing"):
        real.topics(["orders", "nothing"])
    assert (made.retention.max_age, made.max_deliveries, made.dead_letter) == (3600, 7, "bin")
    assert made.rate_limit == quivermq.RateLimit(0.5, burst=2)
    altered = real.alter_topic("orders", partitions=4, retention=quivermq.Retention(max_bytes=9))
    assert len(altered.partitions) == 4
    assert altered.retention == quivermq.Retention(max_bytes=9)
    assert (altered.rate_limit, altered.max_deliveries) == (made.rate_limit, 7)
    assert real.alter_topic("orders", rate_limit=None).rate_limit is None
    real.delete_topic("orders")
    with pytest.raises(TopicNotFound):
        real.topic("orders")
    with pytest.raises(TopicNotFound):
        real.delete_topic("orders")


def test_creating_a_topic_again_changes_nothing_unless_it_differs(
    real: quivermq.Client, topic: str
) -> None:
    before = real.topic(topic)
    assert real.create_topic(topic).id == before.id
    with pytest.raises(TopicExists):
        real.create_topic(topic, partitions=5)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 201, 5])
def test_names_that_cannot_be_are_refused(name: str, real: quivermq.Client) -> None:
    with pytest.raises(InvalidRequest):
        real.create_topic(name)


def test_messages_come_back_as_they_went(real: quivermq.Client, topic: str) -> None:
    before = time.time()
    receipt = real.produce(topic, b"v", key=b"k", headers={"h": b"1"}, priority=3)
    assert receipt == quivermq.Receipt(topic, 0, 0)
    (message,) = real.read(topic)
    assert message[:6] == (topic, 0, 0, b"k", b"v", {"h": b"1"})
    assert message.priority == 3
    assert before - 1 <= message.timestamp / 1000 <= time.time() + 1


def test_many_messages_come_back_as_arrow(real: quivermq.Client, topic: str) -> None:
    table = pa.table(
        {
            "value": [b"%d" % n for n in range(30_000)],
            "key": [None if n % 3 else b"k" for n in range(30_000)],
        }
    )
    receipts = real.produce_many(topic, table)
    assert sum(receipt.count for receipt in receipts) == 30_000
    back = pa.Table.from_batches(real.read(topic).batches())
    assert back.column("value").to_pylist() == table.column("value").to_pylist()
    assert back.column("key").to_pylist() == table.column("key").to_pylist()
    assert back.column("offset").to_pylist() == list(range(30_000))


def test_a_producer_and_a_follower_meet(real: quivermq.Client, topic: str) -> None:
    with real.producer(compression="lz4") as producer, real.read(topic, follow=True) as reader:
        for number in range(3):
            delivery = producer.send(topic, b"%d" % number)
            assert next(reader).value == b"%d" % number
            assert delivery.result(10).offset == number


def test_a_zombie_producer_is_fenced(real: quivermq.Client, topic: str) -> None:
    with real.producer(producer_id=1 << 40, epoch=1) as old:
        old.send(topic, b"old").result(10)
        with real.producer(producer_id=1 << 40, epoch=2) as new:
            assert new.send(topic, b"new").result(10).offset == 1
        with pytest.raises(Fenced):
            old.send(topic, b"zombie").result(10)
    assert [message.value for message in real.read(topic)] == [b"old", b"new"]


def test_a_repeat_under_an_identity_of_ones_own_is_recognised(
    real: quivermq.Client, topic: str
) -> None:
    first = real.produce_many(topic, [b"a", b"b"], producer_id=1 << 41)
    assert real.produce_many(topic, [b"a", b"b"], producer_id=1 << 41) == first
    assert real.topic(topic).message_count == 2


def test_reading_starts_at_a_time(real: quivermq.Client, topic: str) -> None:
    real.produce(topic, b"before")
    time.sleep(0.01)
    between = datetime.now(UTC)
    time.sleep(0.01)
    real.produce(topic, b"after")
    assert [message.value for message in real.read(topic, start=between)] == [b"after"]
    assert [message.value for message in real.read(topic, stop=between)] == [b"before"]
    assert [m.value for m in real.read(topic, start=between.isoformat())] == [b"after"]


def test_an_offset_that_is_not_there_is_out_of_range(real: quivermq.Client, topic: str) -> None:
    real.produce(topic, b"v")
    assert list(real.read(topic, start=1)) == []
    with pytest.raises(OffsetOutOfRange):
        list(real.read(topic, start=2))


def test_offsets_are_committed_and_remembered(real: quivermq.Client) -> None:
    real.create_topic("committed", partitions=2)
    assert real.committed("committed", group="g") == {}
    real.commit("committed", group="g", partition=0, offset=0)
    real.produce("committed", b"v", partition=1)
    real.commit("committed", group="g", partition=1, offset=1)
    assert real.committed("committed", group="g") == {0: 0, 1: 1}
    assert real.committed("committed", group="other") == {}


@pytest.mark.parametrize("group", ["g", "_archive.3f2b8c1e-0d4a-4f6b-9c7e-1a2b3c4d5e6f"])
def test_an_offset_beyond_the_end_cannot_be_committed(
    real: quivermq.Client, topic: str, group: str
) -> None:
    real.produce_many(topic, [b"v"] * 3)
    real.commit(topic, group=group, partition=0, offset=3)
    with pytest.raises(OffsetOutOfRange, match="ends at 3") as refused:
        real.commit(topic, group=group, partition=0, offset=4)
    assert (refused.value.earliest, refused.value.end) == (0, 3)
    with pytest.raises(InvalidRequest, match="at least 0"):
        real.commit(topic, group=group, partition=0, offset=-1)
    assert real.committed(topic, group=group) == {0: 3}
    real.produce(topic, b"w")
    real.commit(topic, group=group, partition=0, offset=4)


def test_the_cluster_is_shown(real: quivermq.Client, broker: BrokerThread) -> None:
    info = real.cluster()
    (node,) = info.nodes
    assert (node.id, node.address, node.alive) == (1, broker.address, True)
    assert info.leader == info.node == 1
    assert real.stats()
    assert real.stats(broker.address).keys() == real.stats().keys()
    assert broker.address in repr(real)


def test_a_topic_that_is_recreated_shows_nothing_old(real: quivermq.Client, topic: str) -> None:
    with real.producer() as producer:
        producer.send(topic, b"old").result(10)
        real.produce(topic, b"old")
        real.delete_topic(topic)
        real.create_topic(topic)
        assert list(real.read(topic)) == []
        assert producer.send(topic, b"new").result(10).offset == 0
        assert real.produce(topic, b"newer").offset == 1
    assert [message.value for message in real.read(topic)] == [b"new", b"newer"]


def test_everything_goes_on_when_the_broker_restarts(tmp_path: Path) -> None:
    broker = BrokerThread(tmp_path)
    with quivermq.connect(broker.address) as client, client.producer() as producer:
        client.create_topic("t")
        client.produce("t", b"a")
        producer.send("t", b"b").result(10)
        reader = client.read("t", follow=True)
        assert [next(reader).value, next(reader).value] == [b"a", b"b"]
        broker.stop()
        delivery = producer.send("t", b"c")
        broker.start()
        assert delivery.result(10).offset == 2
        assert client.produce("t", b"d").offset == 3
        assert [next(reader).value, next(reader).value] == [b"c", b"d"]
        reader.close()
    broker.stop()
