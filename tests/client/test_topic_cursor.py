"""Reading without naming a partition: all of them, from a real broker, by both clients."""

import asyncio
import threading
from collections import Counter
from itertools import islice

import pytest

import quivermq
import quivermq.aio
from quivermq.errors import InvalidRequest, OffsetOutOfRange, TopicNotFound
from tests.client.brokers import BrokerThread


@pytest.fixture
def three(real: quivermq.Client, topic: str) -> str:
    """A topic of three partitions, with ten messages in each."""
    real.alter_topic(topic, partitions=3)
    for partition in range(3):
        values = [b"%d-%d" % (partition, number) for number in range(10)]
        real.produce_many(topic, values, partition=partition)
    return topic


ALL = [(partition, offset) for partition in range(3) for offset in range(10)]


def test_all_partitions_are_read_one_after_the_other(
    real: quivermq.Client, three: str, broker: BrokerThread
) -> None:
    messages = list(real.read(three))
    assert [(message.partition, message.offset) for message in messages] == ALL
    assert [message.value for message in messages] == [b"%d-%d" % place for place in ALL]
    assert sum(batch.num_rows for batch in real.read(three).batches()) == 30
    assert [m.partition for m in real.read(three, partition=1)] == [1] * 10

    async def by_the_other() -> list[tuple[int, int]]:
        async with quivermq.aio.connect(broker.address) as client:
            return [(m.partition, m.offset) async for m in client.read(three)]

    assert asyncio.run(by_the_other()) == ALL


def test_it_ends_where_the_partitions_ended_when_it_began(
    real: quivermq.Client, three: str
) -> None:
    reader = real.read(three)
    first = next(reader)
    real.produce_many(three, [b"late"] * 3, partition=2)
    assert [(m.partition, m.offset) for m in (first, *reader)] == ALL
    assert list(real.read(three, start="latest")) == []


@pytest.mark.parametrize("places", [{"start": 3}, {"stop": 3}, {"start": 0, "follow": True}])
def test_an_offset_needs_a_partition(real: quivermq.Client, three: str, places: dict) -> None:
    with pytest.raises(InvalidRequest, match="partition="):
        next(iter(real.read(three, **places)))


def test_following_hears_of_every_partition_and_of_those_that_are_added(
    real: quivermq.Client, three: str
) -> None:
    seen: Counter[int] = Counter()
    with real.read(three, follow=True) as reader:
        for message in islice(reader, 30):
            seen[message.partition] += 1
        assert seen == {0: 10, 1: 10, 2: 10}
        for partition in (2, 0, 2, 1):
            real.produce(three, b"later", partition=partition)
            assert next(reader).partition == partition
        real.alter_topic(three, partitions=4)
        real.produce(three, b"added", partition=3)
        assert next(reader)[:2] == next(iter(real.read(three, partition=3)))[:2]


def test_a_topic_with_one_partition_is_followed_when_it_grows(
    real: quivermq.Client, topic: str
) -> None:
    real.produce(topic, b"first")
    with real.read(topic, follow=True) as reader:
        assert next(reader).value == b"first"
        real.alter_topic(topic, partitions=2)
        real.produce(topic, b"second", partition=1)
        timer = threading.Timer(6.0, real.produce, (topic, b"third"), {"partition": 0})
        timer.start()
        assert {next(reader).value, next(reader).value} == {b"second", b"third"}
        timer.join()


def test_following_ends_at_the_stop(real: quivermq.Client, three: str, topic: str) -> None:
    assert len(list(real.read(three, follow=True, stop="latest"))) == 30
    assert len(list(real.read(three, partition=1, follow=True, stop=7))) == 7


def test_a_topic_that_is_created_again_is_not_read_on(real: quivermq.Client, three: str) -> None:
    with real.read(three, follow=True) as reader:
        assert len(list(islice(reader, 30))) == 30
        real.delete_topic(three)
        real.create_topic(three, partitions=3)
        real.produce_many(three, [b"other"] * 99, partition=1)
        with pytest.raises((TopicNotFound, OffsetOutOfRange)):
            next(reader)
