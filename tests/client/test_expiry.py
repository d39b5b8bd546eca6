"""Messages with a time to live: what no consumer took in time is not delivered any more."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quivermq
import quivermq.aio
from quivermq.batches import EXPIRES
from tests.client.brokers import BrokerThread

PAST = datetime.now(UTC) - timedelta(seconds=60)
PATIENCE_S = 30.0


def letters_of(client: quivermq.Client, topic: str, count: int) -> list[quivermq.DeadLetter]:
    deadline = time.monotonic() + PATIENCE_S
    while len(found := client.dead_letters(topic, limit=5_000)) < count:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def values_of(messages: Any) -> list[bytes]:
    return [message.value for message in messages]


def test_what_expired_is_a_dead_letter_and_the_rest_is_delivered(
    real: quivermq.Client, topic: str
) -> None:
    real.produce(topic, b"gone", ttl=PAST, key=b"k", headers={"a": b"1"}, content_type="a/b")
    real.produce(topic, b"stays", ttl=3600)
    real.produce_many(topic, [b"gone"] * 5, ttl=PAST)
    real.produce(topic, b"plain")
    found = real.poll(topic, group="g")
    assert values_of(found) == [b"stays", b"plain"]
    real.ack(found)
    letters = letters_of(real, topic, 6)
    assert {(letter.reason, letter.value, letter.group) for letter in letters} == {
        ("expired", b"gone", "g")
    }
    first = letters[0]
    assert (first.original_offset, first.key, first.content_type) == (0, b"k", "a/b")
    assert dict(first.headers) == {"a": b"1", "content-type": b"a/b"}
    group = real.group(topic, "g")
    assert (group.lag, group.in_flight, group.done, group.dead) == (0, 0, 2, 6)
    # Another group has time of its own to find out.
    assert values_of(real.poll(topic, group="h", ack="auto")) == [b"stays", b"plain"]


def test_messages_of_one_batch_expire_each_by_itself(real: quivermq.Client, topic: str) -> None:
    past, later = b"%d" % 1_000, b"%d" % int((time.time() + 3600) * 1000)
    headers = [{EXPIRES: past if number % 3 else later} for number in range(300)]
    real.produce_many(topic, [b"%d" % number for number in range(300)], headers=headers)
    wanted = [b"%d" % number for number in range(0, 300, 3)]
    table = real.poll_arrow(topic, group="arrow")
    assert table.table["value"].to_pylist() == wanted
    table.ack()
    found: list[bytes] = []
    while len(found) < 100:
        some = real.poll(topic, group="g", max_messages=7, wait=PATIENCE_S)
        found += values_of(some)
        real.ack(some)
    assert found == wanted
    assert values_of(real.poll(topic, group="g", wait=0)) == []
    assert real.group(topic, "g").in_flight == 0


def test_an_expired_letter_can_be_redriven_and_consumed(real: quivermq.Client, topic: str) -> None:
    real.produce(topic, b"late", ttl=PAST)
    assert real.poll(topic, group="g", wait=0) == []
    (letter,) = letters_of(real, topic, 1)
    # Consumers of the dead-letter topic get it too: there it does not expire.
    dead = f"{topic}.dlq"
    assert values_of(real.poll(dead, group="g", wait=PATIENCE_S)) == [b"late"]
    assert values_of(real.read(dead)) == [b"late"]
    real.redrive(topic, letter, to="all")
    (again,) = real.poll(topic, group="g", wait=PATIENCE_S)
    assert (again.value, again.expires) == (b"late", None)
    again.ack()


def test_what_a_group_is_given_again_does_not_expire_a_second_time(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"0", b"1", b"2"], ttl=PAST)
    assert real.poll(topic, group="g", wait=0) == []
    letters = letters_of(real, topic, 3)
    real.redrive(topic, letters[1])
    (again,) = real.poll(topic, group="g", wait=PATIENCE_S)
    assert (again.value, again.offset) == (b"1", 1)
    assert again.expires is not None


def test_what_was_taken_in_time_is_tried_again(real: quivermq.Client, topic: str) -> None:
    taken: list[quivermq.LeasedMessage] = []
    while len(taken) != 2:
        # A slow machine may not be in time.
        real.ack(taken)
        real.produce_many(topic, [b"v", b"w"], ttl=1.0)
        taken = real.poll(topic, group="g", wait=0)
    failed, returned = taken
    assert failed.expires is not None
    while datetime.now(UTC) < failed.expires + timedelta(milliseconds=50):
        time.sleep(0.01)
    failed.nack(delay=0)
    real.release([returned])
    (again,) = real.poll(topic, group="g", wait=PATIENCE_S)
    assert (again.value, again.delivery_count) == (b"v", 2)
    deadline = time.monotonic() + PATIENCE_S
    while returned.offset not in {each.original_offset for each in real.dead_letters(topic)}:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_topic_may_drop_what_expired(real: quivermq.Client, topic: str) -> None:
    assert not real.topic(topic).drop_expired
    assert real.alter_topic(topic, drop_expired=True).drop_expired
    assert real.alter_topic(topic, max_deliveries=3).drop_expired
    real.produce_many(topic, [b"gone"] * 500, ttl=PAST)
    real.produce(topic, b"stays")
    # Also with an acknowledgement before the delivery.
    assert values_of(real.poll(topic, group="g", ack="auto", wait=PATIENCE_S)) == [b"stays"]
    group = real.group(topic, "g")
    assert (group.lag, group.done, group.dead) == (0, 501, 0)
    assert real.dead_letters(topic) == []
    assert not real.alter_topic(topic, drop_expired=False).drop_expired


def test_expired_messages_take_nothing_of_the_rate_limit(real: quivermq.Client) -> None:
    real.create_topic("slow", rate_limit=quivermq.RateLimit(per_second=0.01, burst=3))
    real.produce_many("slow", [b"gone"] * 50, ttl=PAST)
    real.produce_many("slow", [b"1", b"2", b"3"])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 3 and time.monotonic() < deadline:
        found += values_of(real.poll("slow", group="g", wait=1))
    assert found == [b"1", b"2", b"3"]


def test_sticky_and_single_consumers_skip_what_expired(real: quivermq.Client, topic: str) -> None:
    real.produce(topic, b"gone", ttl=PAST)
    real.produce_many(topic, [b"1", b"2"], ttl=3600)
    real.produce(topic, b"gone", ttl=PAST)
    real.produce(topic, b"3")
    assert values_of(real.read(topic)) == [b"1", b"2", b"3"]
    with real.consumer(topic, group="s") as consumer:
        assert [next(consumer).value for _ in range(3)] == [b"1", b"2", b"3"]
    # The log itself has them.
    stored = pa.Table.from_batches(real.read(topic).batches())
    assert stored["value"].to_pylist() == [b"gone", b"1", b"2", b"gone", b"3"]


def test_subscriptions_and_the_asyncio_client_get_none_either(
    broker: BrokerThread, real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"gone"] * 300, ttl=PAST)
    real.produce(topic, b"stays", ttl=3600)

    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            await client.produce(topic, b"gone", ttl=PAST)
            async with client.subscribe(topic, group="g") as subscription:
                async for message in subscription:
                    assert message.value == b"stays"
                    await message.ack()
                    break
            assert [each.value async for each in client.read(topic)] == [b"stays"]

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    with real.subscribe(topic, group="h") as pushed:
        assert next(iter(pushed)).value == b"stays"
    assert len(letters_of(real, topic, 300)) >= 300


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches_expire_too(compression: Any, real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"gone" * 100] * 500, ttl=PAST, compression=compression)
    real.produce_many(topic, [b"stays" * 100] * 2, ttl=60, compression=compression)
    found = real.poll(topic, group="g", wait=PATIENCE_S)
    assert set(values_of(found)) == {b"stays" * 100}


def test_expired_messages_are_settled_for_good(tmp_path: Path) -> None:
    broker = BrokerThread(tmp_path)
    try:
        with quivermq.connect(broker.address) as client:
            client.create_topic("orders", drop_expired=True)
            client.produce_many("orders", [b"gone"] * 10, ttl=PAST)
            client.produce("orders", b"stays")
            client.ack(client.poll("orders", group="g", wait=PATIENCE_S))
            broker.stop()
            broker.start()
            assert client.topic("orders").drop_expired
            group = client.group("orders", "g")
            assert (group.lag, group.done) == (0, 11)
    finally:
        broker.stop()
