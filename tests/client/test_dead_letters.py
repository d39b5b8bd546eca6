"""Failed messages, the reasons that are kept with them, and where dead letters go."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import quivermq
import quivermq.aio
from quivermq.errors import InvalidRequest
from tests.client.brokers import BrokerThread


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def strict(real: quivermq.Client, topic: str) -> str:
    """A topic whose messages fail twice, at once."""
    real.alter_topic(topic, max_deliveries=2, retry=quivermq.Retry(first=0.0, base=0.001))
    return topic


def reasons(client: quivermq.Client, topic: str, count: int) -> list[str]:
    until(lambda: len(client.dead_letters(topic)) == count)
    return [letter.reason for letter in client.dead_letters(topic)]


def test_a_reason_is_told_at_the_next_delivery_and_by_the_dead_letter(
    real: quivermq.Client, strict: str
) -> None:
    real.produce_many(strict, [b"0", b"1", b"2"])
    first = real.poll(strict, group="g", wait=10)
    assert [message.last_reason for message in first] == [None, None, None]
    first[0].nack(reason="no stock")
    real.nack(first[1:2], delay=0, reason="no price")
    real.release(first[2:])
    again = real.poll(strict, group="g", wait=10)
    assert {message.value: message.last_reason for message in again} == {
        b"0": "no stock",
        b"1": "no price",
        b"2": None,
    }
    real.nack(again, reason="closed")
    assert reasons(real, strict, 2) == ["failed 2 times; the last time: closed"] * 2
    with pytest.raises(InvalidRequest, match="1,024"):
        again[2].nack(reason="x" * 2000)
    with pytest.raises(InvalidRequest, match="text"):
        again[2].nack(reason=7)  # type: ignore[arg-type]


def test_a_table_fails_with_a_reason(real: quivermq.Client, strict: str) -> None:
    real.produce_many(strict, [b"0", b"1"])
    for _ in range(2):
        table = real.poll_arrow(strict, group="g", wait=10)
        table.nack([row == b"0" for row in table.table["value"].to_pylist()], reason="empty")
        table.ack()
    assert reasons(real, strict, 1) == ["failed 2 times; the last time: empty"]


class OddError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_what_a_handler_raises_is_in_the_dead_letter(real: quivermq.Client, strict: str) -> None:
    raised = {
        b"line": ValueError("no stock\nand a second line"),
        b"long": ValueError("x" * 5000),
        b"bare": KeyError(),
        b"odd": OddError(),
    }

    def handle(message: quivermq.LeasedMessage) -> None:
        raise raised[message.value]

    real.produce_many(strict, list(raised))
    with real.subscribe(strict, group="g", handler=handle):
        until(lambda: len(real.dead_letters(strict)) == len(raised))
    found = {letter.value: letter.reason for letter in real.dead_letters(strict)}
    assert found == {
        b"line": "failed 2 times; the last time: ValueError: no stock",
        b"long": "failed 2 times; the last time: ValueError: " + "x" * 188,
        b"bare": "failed 2 times; the last time: KeyError",
        b"odd": "failed 2 times; the last time: OddError",
    }


def test_an_asyncio_client_gives_reasons_too(
    broker: BrokerThread, real: quivermq.Client, strict: str
) -> None:
    async def fail() -> list[str | None]:
        async with quivermq.aio.connect(broker.address) as client:
            (message,) = await client.poll(strict, group="g", wait=10)
            await message.nack(delay=0, reason="no stock")
            (again,) = await client.poll(strict, group="g", wait=10)
            found = [again.last_reason]
            await client.release([again])

            async def handle(message: quivermq.aio.AsyncLeasedMessage) -> None:
                found.append(message.last_reason)
                raise OSError("no disk")

            async with client.subscribe(strict, group="g", handler=handle):
                while not await client.dead_letters(strict):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return found

    real.produce(strict, b"0")
    assert asyncio.run(fail()) == ["no stock", "no stock"]
    assert reasons(real, strict, 1) == ["failed 2 times; the last time: OSError: no disk"]


# Where letters go.


def bury(client: quivermq.Client, topic: str, group: str, reason: str = "bad") -> None:
    """A group rejects all that it has, and all of it is moved."""
    before = len(client.dead_letters(topic))
    found = client.poll(topic, group=group, max_messages=1_000, wait=10)
    client.reject(found, reason)
    until(lambda: len(client.dead_letters(topic)) == before + len(found))


def offsets(client: quivermq.Client, topic: str, group: str, wait: float = 10) -> list[int]:
    """The offsets that a group gets, which it acknowledges."""
    found = client.poll(topic, group=group, max_messages=1_000, wait=wait)
    client.ack(found)
    return sorted(message.offset for message in found)


def test_only_the_group_that_failed_gets_its_letters_again(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"0", b"1", b"2"])
    assert offsets(real, topic, "done") == [0, 1, 2]
    bury(real, topic, "failed")
    redriven = real.redrive(topic)
    assert (redriven, redriven.stayed) == (3, 0)
    (message, *_) = real.poll(topic, group="failed", wait=10)
    assert (message.delivery_count, message.headers) == (1, {})
    real.nack([message], delay=0)
    assert offsets(real, topic, "failed") == [0]
    info = real.group(topic, "failed")
    assert (info.dead, info.done, info.in_flight) == (0, 1, 2)
    assert offsets(real, topic, "done", wait=0) == []
    assert real.dead_letters(topic) == []
    assert real.redrive(topic) == 0
    assert real.topic(topic).partitions[0].end_offset == 3


def test_letters_of_several_groups_go_each_to_its_own(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"0", b"1"])
    for group in ("a", "b"):
        bury(real, topic, group)
    assert real.redrive(topic, group="b") == 2
    assert offsets(real, topic, "b") == [0, 1]
    assert offsets(real, topic, "a", wait=0) == []
    assert [letter.group for letter in real.dead_letters(topic)] == ["a", "a"]


def test_letters_whose_original_is_deleted_stay_and_can_go_to_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = BrokerThread(tmp_path, segment_bytes=64 << 10, retention_interval_ms=20)
    try:
        with quivermq.connect(broker.address) as client:
            client.create_topic("t", retention=quivermq.Retention(max_messages=1))
            client.produce_many("t", [b"0", b"1"])
            bury(client, "t", "g")

            def is_deleted() -> bool:
                client.produce("t", bytes(40_000))
                return (client.topic("t").partitions[0].start_offset or 0) >= 2

            until(is_deleted)
            redriven = client.redrive("t")
            assert (redriven, redriven.stayed) == (0, 2)
            assert "2 stayed" in repr(redriven)
            assert 'to="all"' in caplog.text
            assert [letter.value for letter in client.dead_letters("t")] == [b"0", b"1"]
            client.alter_topic("t", retention=None)
            end = client.topic("t").partitions[0].end_offset or 0
            assert client.redrive("t", to="all") == 2
            until(lambda: client.topic("t").partitions[0].end_offset == end + 2)
            assert offsets(client, "t", "another")[-2:] == [end, end + 1]
    finally:
        broker.stop()


def test_a_topic_of_the_same_name_is_not_the_one_that_failed(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"0", b"1"])
    bury(real, topic, "g")
    real.delete_topic(topic)
    real.create_topic(topic)
    real.produce_many(topic, [b"other", b"others"])
    assert offsets(real, topic, "g") == [0, 1]
    redriven = real.redrive(topic)
    assert (redriven, redriven.stayed) == (0, 2)
    assert offsets(real, topic, "g", wait=0) == []


def test_a_letter_that_a_client_made_up_brings_nothing_back(
    real: quivermq.Client, topic: str
) -> None:
    real.produce(topic, b"done")
    assert offsets(real, topic, "g") == [0]
    told = {"topic": topic, "group": "g", "partition": "0", "offset": "0", "reason": "x"}
    headers = {f"quiver-{name}": value.encode() for name, value in told.items()}
    real.create_topic(f"{topic}.dlq")
    real.produce(f"{topic}.dlq", b"forged", headers=headers)
    redriven = real.redrive(topic)
    assert (redriven, redriven.stayed) == (0, 1)
    assert offsets(real, topic, "g", wait=0) == []


def test_letters_go_to_another_topic_as_they_were(real: quivermq.Client, topic: str) -> None:
    real.produce(topic, b"0", key=b"k", headers={"colour": b"red"}, priority=3)
    bury(real, topic, "g")
    with pytest.raises(quivermq.TopicNotFound):
        real.redrive(topic, to=f"{topic}.nowhere")
    real.create_topic(f"{topic}.again")
    assert real.redrive(topic, to=f"{topic}.again") == 1
    (message,) = real.poll(f"{topic}.again", group="g", wait=10)
    assert (message.value, message.key, message.priority) == (b"0", b"k", 3)
    assert message.headers == {"colour": b"red"}
    assert offsets(real, topic, "g", wait=0) == []


def test_letters_are_chosen_by_what_they_tell(real: quivermq.Client, topic: str) -> None:
    real.alter_topic(topic, partitions=2)
    began = time.time() - 1
    for partition, reason in enumerate(("no stock", "no price")):
        real.produce(topic, reason.encode(), key=reason[3:], partition=partition)
        bury(real, topic, "g", reason)

    def values(**wanted: object) -> list[bytes]:
        return [letter.value for letter in real.dead_letters(topic, **wanted)]  # type: ignore[arg-type]

    assert values() == [b"no stock", b"no price"]
    assert values(reason="stock") == values(key="stock") == values(key=b"stock") == [b"no stock"]
    assert values(group="g", reason="no", since=began, older_than=0) == values()
    assert values(group="other") == values(reason="NO") == values(older_than=3600) == []
    assert values(since=time.time() + 60) == values(key="") == []
    assert values(limit=1) == [b"no stock"]
    everywhere = real.dead_letters(reason="no ", limit=10_000)
    assert {letter.value for letter in everywhere if letter.topic == topic} == set(values())
    assert real.redrive(topic, reason="price") == 1
    assert real.purge_dead_letters(topic, older_than=3600) == 0
    assert real.purge_dead_letters(topic, key="stock") == 1
    assert values() == []
    for wrong in ({"reason": 7}, {"older_than": -1}, {"since": "now"}, {"key": 3.5}):
        with pytest.raises(InvalidRequest):
            values(**wrong)


def test_a_rate_holds_letters_back(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"%d" % number for number in range(6)])
    bury(real, topic, "g")
    began = time.monotonic()
    assert real.redrive(topic, rate=20, group="g") == 6
    assert real.redrive(topic, rate=20) == 0
    bury(real, topic, "g")
    began = time.monotonic()
    assert real.redrive(topic, rate=5) == 6
    assert time.monotonic() - began >= 1.0
    with pytest.raises(InvalidRequest, match="rate"):
        real.redrive(topic, rate=0)


def test_an_asyncio_client_redrives_and_filters_too(
    broker: BrokerThread, real: quivermq.Client, topic: str
) -> None:
    async def work() -> tuple[int, int]:
        async with quivermq.aio.connect(broker.address) as client:
            (letter,) = await client.dead_letters(topic, reason="bad", older_than=0)
            assert letter.value == b"0"
            return (
                await client.redrive(topic, reason="good"),
                await client.redrive(topic, [letter], rate=100),
            )

    real.produce(topic, b"0")
    bury(real, topic, "g")
    assert asyncio.run(work()) == (0, 1)
    assert offsets(real, topic, "g") == [0]
