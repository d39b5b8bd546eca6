"""Pausing, resuming and seeking inside a sticky consumer, of a real broker in this process."""

import asyncio
import threading
import time
from itertools import count

import pytest

import quivermq
import quivermq.aio
from quivermq.errors import InvalidRequest, OffsetOutOfRange
from tests.client.brokers import BrokerThread
from tests.client.test_sticky_consumer import PATIENCE_S, wait_until

_numbers = count()


@pytest.fixture
def topic(real: quivermq.Client) -> str:
    """A topic of two partitions with ten messages each."""
    name = f"control-{next(_numbers)}"
    real.create_topic(name, partitions=2)
    for partition in range(2):
        real.produce_many(name, [b"%d" % number for number in range(10)], partition=partition)
    return name


def taken(consumer: quivermq.Consumer, most: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < most:
        assert time.monotonic() < deadline, f"{len(found)} of {most}"
        messages = consumer.poll(most - len(found), 0.1)
        found += [(message.partition, message.offset) for message in messages]
    return found


def offsets(found: list[tuple[int, int]], partition: int) -> list[int]:
    return [offset for each, offset in found if each == partition]


def test_a_paused_partition_keeps_its_messages_and_their_order(
    real: quivermq.Client, topic: str
) -> None:
    with real.consumer(topic, group="g") as consumer:
        wait_until(lambda: consumer.assignment == [0, 1])
        paused = next(consumer).partition  # and all others of it lie ready
        consumer.pause([paused])
        assert consumer.paused == [paused]
        assert offsets(taken(consumer, 10), 1 - paused) == list(range(10))
        assert consumer.poll(wait=0.2) == []
        consumer.resume([paused])
        assert consumer.paused == []
        assert offsets(taken(consumer, 9), paused) == list(range(1, 10))
    assert real.committed(topic, "g") == {0: 10, 1: 10}


def test_all_partitions_can_be_paused_at_once(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g") as consumer:
        wait_until(lambda: consumer.assignment == [0, 1])
        consumer.pause()
        assert consumer.paused == [0, 1]
        assert consumer.poll(wait=0.2) == []
        consumer.resume()
        found = taken(consumer, 20)
    assert [offsets(found, partition) for partition in (0, 1)] == [list(range(10))] * 2


def test_a_consumer_waits_while_all_is_paused(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g") as consumer:
        wait_until(lambda: consumer.assignment == [0, 1])
        consumer.pause()
        later = threading.Timer(0.2, consumer.resume)
        later.start()
        assert next(consumer).offset == 0
        later.join()


@pytest.mark.parametrize(("to", "first"), [(3, 3), ("earliest", 0), ("@0", 0)])
def test_a_partition_is_read_again_from_another_place(
    real: quivermq.Client, topic: str, to: int | str, first: int
) -> None:
    with real.consumer(topic, group="g") as consumer:
        taken(consumer, 20)
        assert consumer.seek(1, to) == first
        assert real.committed(topic, "g")[1] == first
        assert taken(consumer, 10 - first) == [(1, offset) for offset in range(first, 10)]
        assert consumer.poll(wait=0.1) == []
    assert real.committed(topic, "g") == {0: 10, 1: 10}


def test_messages_are_skipped_by_a_seek_to_the_end(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g") as consumer:
        wait_until(lambda: consumer.assignment == [0, 1])
        taken(consumer, 1)
        assert [consumer.seek(partition, "latest") for partition in (0, 1)] == [10, 10]
        real.produce(topic, b"new", partition=1)
        assert taken(consumer, 1) == [(1, 10)]


def test_a_message_given_out_before_a_seek_does_not_count(
    real: quivermq.Client, topic: str
) -> None:
    with real.consumer(topic, group="g") as consumer:
        wait_until(lambda: consumer.assignment == [0, 1])
        consumer.pause([0])
        taken(consumer, 5)
        consumer.commit()
        assert real.committed(topic, "g")[1] == 5
        consumer.seek(1, 2)
        consumer.commit()
        assert real.committed(topic, "g")[1] == 2
        assert taken(consumer, 1) == [(1, 2)]
        consumer.commit()
        assert real.committed(topic, "g")[1] == 3


def test_a_seek_that_fails_changes_nothing(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g") as consumer:
        wait_until(lambda: consumer.assignment == [0, 1])
        consumer.pause([0])
        taken(consumer, 3)
        with pytest.raises(OffsetOutOfRange):
            consumer.seek(1, 1_000)
        with pytest.raises(InvalidRequest, match="must be an offset"):
            consumer.seek(1, "nowhere")
        assert taken(consumer, 7) == [(1, offset) for offset in range(3, 10)]


def test_only_partitions_of_its_own_are_controlled(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g") as consumer:
        taken(consumer, 1)
        for call in (
            lambda: consumer.seek(7, 0),
            lambda: consumer.pause([0, 7]),
            lambda: consumer.resume([7]),
        ):
            with pytest.raises(InvalidRequest, match="is not this consumer's"):
                call()
        assert consumer.paused == []


def test_the_next_owner_goes_on_where_a_partition_was_sought(
    real: quivermq.Client, topic: str
) -> None:
    with real.consumer(topic, group="g", auto_commit=False) as consumer:
        taken(consumer, 20)
        consumer.seek(0, 4)
        consumer.seek(1, 8)
        consumer.pause()
    with real.consumer(topic, group="g") as consumer:
        found = taken(consumer, 8)
    assert (offsets(found, 0), offsets(found, 1)) == ([4, 5, 6, 7, 8, 9], [8, 9])


def test_nothing_is_given_out_before_the_callback_has_returned(
    real: quivermq.Client, topic: str
) -> None:
    consumers: list[quivermq.Consumer] = []
    is_there = threading.Event()

    def seek(partitions: list[int]) -> None:
        is_there.wait(PATIENCE_S)
        for partition in partitions:
            consumers[0].seek(partition, 6)

    with real.consumer(topic, group="g", on_assigned=seek) as consumer:
        assert consumer.poll(wait=0.2) == []
        consumers.append(consumer)
        is_there.set()
        found = taken(consumer, 8)
    assert [offsets(found, partition) for partition in (0, 1)] == [[6, 7, 8, 9]] * 2


def test_all_that_was_fetched_is_given_out_once_the_callback_has_returned(
    real: quivermq.Client, topic: str
) -> None:
    is_fetched = threading.Event()
    with real.consumer(
        topic, group="g", on_assigned=lambda _: is_fetched.wait(PATIENCE_S)
    ) as consumer:
        owned = consumer._member._owned_partitions.values()  # type: ignore[union-attr]
        wait_until(lambda: len(owned) == 2 and all(each.unread for each in owned))
        assert consumer.poll(wait=0.1) == []
        is_fetched.set()
        found = taken(consumer, 20)
    assert [offsets(found, partition) for partition in (0, 1)] == [list(range(10))] * 2


def test_seeks_at_the_same_time_leave_one_reader(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g") as consumer:
        wait_until(lambda: consumer.assignment == [0, 1])
        consumer.pause([0])
        taken(consumer, 10)
        threads = [threading.Thread(target=consumer.seek, args=(1, 5)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert taken(consumer, 5) == [(1, offset) for offset in range(5, 10)]
        real.produce(topic, b"new", partition=1)
        assert taken(consumer, 1) == [(1, 10)]
        assert consumer.poll(wait=0.2) == []


def test_an_asyncio_consumer_is_controlled_alike(
    real: quivermq.Client, topic: str, broker: BrokerThread
) -> None:
    async def run() -> None:
        async with (
            quivermq.aio.connect(broker.address) as client,
            client.consumer(topic, group="g") as consumer,
            asyncio.timeout(PATIENCE_S),
        ):
            seen = [(await anext(consumer)).offset for _ in range(20)]
            assert sorted(seen) == sorted([*range(10)] * 2)
            assert await consumer.seek(0, "earliest") == 0
            await consumer.pause()
            assert consumer.paused == [0, 1]
            assert await consumer.poll(wait=0.1) == []
            await consumer.resume([0])
            assert [(await anext(consumer)).offset for _ in range(10)] == list(range(10))

    asyncio.run(run())
