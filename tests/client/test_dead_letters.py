"""Failed messages, the reasons that are kept with them, and where dead letters go."""

import asyncio
import time
from collections.abc import Callable

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
