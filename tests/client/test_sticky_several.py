"""Sticky consumers of several topics, by name and by pattern, of a real broker in this process."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

import quivermq
import quivermq.aio
from quivermq.client import topic_choice
from quivermq.client.sticky.delivery_buffer import DeliveryBuffer
from quivermq.errors import InvalidRequest, TopicNotFound
from tests.client.brokers import BrokerThread

PATIENCE_S = 60.0
_numbers = count()


@pytest.fixture
def topics(real: quivermq.Client) -> list[str]:
    """Two topics of two partitions with ten messages each."""
    number = next(_numbers)
    names = [f"together-{number}-{letter}" for letter in "ab"]
    for name in names:
        real.create_topic(name, partitions=2)
        for partition in range(2):
            real.produce_many(name, [b"%d" % number for number in range(10)], partition=partition)
    return names


@pytest.fixture(autouse=True)
def _patterns_are_looked_up_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_choice, "PATTERN_SECONDS", 0.1)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_messages(consumer: quivermq.Consumer) -> None:
    """Until each topic has some fetched: a loop over those of one may be through in milliseconds,
    without the thread that fetches having had a turn."""
    members = consumer._member._members.values()  # type: ignore[union-attr]
    wait_until(lambda: all(each.buffer.has_messages for each in members))


def taken(consumer: quivermq.Consumer, most: int) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, found.values())) < most:
        assert time.monotonic() < deadline, found
        for message in consumer.poll(most - sum(map(len, found.values())), 0.1):
            found.setdefault((message.topic, message.partition), []).append(message.offset)
    return found


def test_each_partition_of_every_topic_is_in_order(
    real: quivermq.Client, topics: list[str]
) -> None:
    told: list[Any] = []
    with real.consumer(topics, group="g", mode="sticky", on_assigned=told.extend) as consumer:
        wanted = [quivermq.TopicPartition(topic, number) for topic in topics for number in (0, 1)]
        wait_until(lambda: consumer.assignment == wanted)
        found = taken(consumer, 40)
        assert consumer.generation > 0
        assert found == {pair: list(range(10)) for pair in wanted}
        wait_until(lambda: sorted(told) == wanted)
        consumer.commit()
        assert [real.committed(topic, "g") for topic in topics] == [{0: 10, 1: 10}] * 2


def test_a_message_counts_as_done_when_the_next_is_of_another_topic(
    real: quivermq.Client, topics: list[str]
) -> None:
    for topic in topics:
        real.produce_many(topic, [b"x"] * 5_000)
    consumer = real.consumer(topics, group="g")
    wait_for_messages(consumer)
    seen = [next(consumer).topic]
    # Both have messages, so each is asked first in turn, and the other one not at all.
    while seen[-4:] not in (topics * 2, topics[::-1] * 2):
        seen.append(next(consumer).topic)
    # As after trouble: the last message does not count.
    consumer.__exit__(ValueError, ValueError(), None)
    done = {topic: sum(real.committed(topic, "g").values()) for topic in topics}
    assert done == Counter(seen[:-1])


def test_no_topic_has_to_wait_for_another(real: quivermq.Client, topics: list[str]) -> None:
    real.produce_many(topics[0], [b"x"] * 20_000)
    with real.consumer(topics, group="g") as consumer:
        wait_for_messages(consumer)
        seen = 0
        for number, message in enumerate(consumer):
            seen += message.topic == topics[1]
            if seen == 20:
                break
            assert number < 10_000


def test_what_an_interrupt_takes_from_the_user_comes_again(
    real: quivermq.Client, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with real.consumer(topics, group="g") as consumer:
        wait_for_messages(consumer)
        asked: list[int] = []

        def interrupt(buffer: DeliveryBuffer, most: int) -> list[quivermq.Message]:
            asked.append(most)
            if len(asked) == 2:
                raise KeyboardInterrupt
            return take_more(buffer, most)

        take_more = DeliveryBuffer.take_more
        with monkeypatch.context() as patched:
            patched.setattr(DeliveryBuffer, "take_more", interrupt)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(20)
        found = taken(consumer, 40)
    assert all(offsets == list(range(10)) for offsets in found.values())


def test_partitions_of_several_topics_are_controlled_by_pairs(
    real: quivermq.Client, topics: list[str]
) -> None:
    first, second = topics
    with real.consumer(topics, group="g") as consumer:
        wait_until(lambda: len(consumer.assignment) == 4)
        taken(consumer, 40)
        assert consumer.seek((first, 1), 8) == 8
        assert taken(consumer, 2) == {(first, 1): [8, 9]}
        consumer.pause([(second, 0)])
        assert consumer.paused == [quivermq.TopicPartition(second, 0)]
        consumer.seek((second, 0), "earliest")
        assert consumer.poll(wait=0.2) == []
        consumer.resume()
        assert taken(consumer, 10) == {(second, 0): list(range(10))}
        for wrong in (0, ("elsewhere", 0), (second,)):
            with pytest.raises(InvalidRequest, match="several topics"):
                consumer.pause([wrong])


def test_topics_join_and_leave_a_consumer_by_pattern(
    real: quivermq.Client, topics: list[str]
) -> None:
    prefix = topics[0][:-2]
    more = f"{prefix}-c"
    with real.consumer(f"{prefix}-.*", group="g", pattern=True) as consumer:
        taken(consumer, 40)
        before = consumer.generation
        real.create_topic(more)
        real.produce(more, b"x")
        wait_until(lambda: (more, 0) in consumer.assignment)
        found: list[str] = []
        while more not in found:
            found += [message.topic for message in consumer.poll(wait=0.2)]
        real.delete_topic(more)
        wait_until(lambda: (more, 0) not in consumer.assignment)
        wait_until(lambda: consumer.generation > before + 1)
        real.produce(topics[0], b"x", partition=0)
        assert taken(consumer, 1)


def test_topics_that_are_named_must_exist(real: quivermq.Client, topics: list[str]) -> None:
    with pytest.raises(TopicNotFound):
        real.consumer([*topics, "not-there"], group="g")
    with real.consumer(topics, group="g") as consumer:
        taken(consumer, 40)
        real.delete_topic(topics[0])
        with pytest.raises(TopicNotFound):
            for _ in consumer:
                pass


def test_an_asyncio_consumer_takes_several_topics(
    real: quivermq.Client, topics: list[str], broker: BrokerThread
) -> None:
    async def run() -> set[tuple[str, int, int]]:
        async with (
            quivermq.aio.connect(broker.address) as client,
            client.consumer(f"{topics[0]}|{topics[1]}", group="g", pattern=True) as consumer,
            asyncio.timeout(PATIENCE_S),
        ):
            messages = [await anext(consumer) for _ in range(40)]
        return {(each.topic, each.partition, each.offset) for each in messages}

    assert len(asyncio.run(run())) == 40
    assert [real.committed(topic, "g") for topic in topics] == [{0: 10, 1: 10}] * 2
