"""Deserializers: `message.data` beside `message.value`, wherever messages come from."""

import asyncio
import json
import threading
import time
from typing import Any

import pytest

import quivermq
import quivermq.aio
from quivermq.client.deserialize import kind_with_data
from quivermq.errors import InvalidRequest
from tests.client.brokers import BrokerThread

VALUE = b'{"amount": 7}'


class Unhashable:
    """A function whose identity cannot be a key."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, value: bytes) -> str:
        return value.decode()


def test_data_is_decoded_once_and_the_value_stays() -> None:
    calls = []
    message = kind_with_data(quivermq.Message, lambda value: calls.append(value) or len(value))(
        "t", 0, 0, None, VALUE, {}, 0, 0
    )
    assert isinstance(message, quivermq.Message)
    assert calls == []
    assert (message.data, message.data, message.value) == (13, 13, VALUE)
    assert calls == [VALUE]
    assert repr(message).startswith("<Message t/0@0")


def test_without_a_deserializer_data_is_the_value(real: quivermq.Client, topic: str) -> None:
    real.produce(topic, VALUE)
    assert real.poll(topic, group="g")[0].data == VALUE
    assert next(iter(real.read(topic))).data == VALUE


@pytest.mark.parametrize("deserializer", ["yaml", 7, b"json", ["json"]])
def test_what_is_no_deserializer_is_refused(
    real: quivermq.Client, topic: str, deserializer: Any
) -> None:
    for call in (
        lambda: real.poll(topic, group="g", deserializer=deserializer),
        lambda: real.subscribe(topic, group="g", deserializer=deserializer),
        lambda: real.consumer(topic, group="s", deserializer=deserializer),
        lambda: real.read(topic, deserializer=deserializer),
    ):
        with pytest.raises(InvalidRequest, match="deserializer"):
            call()


@pytest.mark.parametrize("deserializer", ["json", json.loads, Unhashable()])
def test_every_way_to_consume_decodes(real: quivermq.Client, topic: str, deserializer: Any) -> None:
    wanted = VALUE.decode() if isinstance(deserializer, Unhashable) else {"amount": 7}
    real.produce(topic, VALUE)
    (polled,) = real.poll(topic, group="g", deserializer=deserializer)
    assert polled.data == wanted
    real.nack([polled], delay=0)
    with real.subscribe(topic, group="g", deserializer=deserializer) as subscription:
        pushed = next(subscription)
        assert pushed.data == wanted
        pushed.ack()
    with real.consumer(topic, group="s", deserializer=deserializer) as consumer:
        assert next(consumer).data == wanted
    assert [each.data for each in real.read(topic, deserializer=deserializer)] == [wanted]


def test_a_poll_does_not_fail_for_one_message(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"no json", VALUE])
    bad, good = real.poll(topic, group="g", deserializer="json")
    with pytest.raises(ValueError, match="Expecting value"):
        bad.data  # noqa: B018  (asking is the test)
    assert good.data == {"amount": 7}
    bad.reject("no json")


def test_handlers_get_only_what_can_be_decoded(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"no json", VALUE])
    seen: list[Any] = []
    done = threading.Event()

    def handle(message: quivermq.LeasedMessage) -> None:
        seen.append(message.data)
        done.set()

    with real.subscribe(topic, group="g", handler=handle, deserializer="json"):
        assert done.wait(20)
    assert seen == [{"amount": 7}]
    deadline = time.monotonic() + 20
    while not (letters := real.dead_letters(topic)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "cannot be decoded: JSONDecodeError" in letters[0].reason


def test_an_asyncio_client_decodes(real: quivermq.Client, topic: str, broker: BrokerThread) -> None:
    real.produce_many(topic, [b"no json", VALUE])

    async def run() -> list[Any]:
        seen: list[Any] = []
        done = asyncio.Event()

        async def handle(message: quivermq.aio.AsyncLeasedMessage) -> None:
            seen.append(message.data)
            done.set()

        async with quivermq.aio.connect(broker.address) as client:
            async with client.subscribe(topic, group="g", handler=handle, deserializer="json"):
                await asyncio.wait_for(done.wait(), 20)
            polled = await client.poll(topic, group="h", deserializer="json")
            seen.append(polled[1].data)
            reader = client.read(topic, start=1, deserializer="json")
            seen += [message.data async for message in reader]
            async with client.consumer(topic, group="s", deserializer="json") as consumer:
                await anext(consumer)
                seen.append((await anext(consumer)).data)
        return seen

    assert asyncio.run(run()) == [{"amount": 7}] * 4
