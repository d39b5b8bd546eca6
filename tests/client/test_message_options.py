"""Content types, serializers, times and text: in every call that produces, and back again."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import quivermq
import quivermq.aio
from quivermq.errors import InvalidRequest
from tests.client.brokers import BrokerThread
from tests.client.stand_in import StandIn

MOMENT = datetime(2024, 2, 3, 4, 5, 6, 789_000, UTC)
MOMENT_MS = 1_706_933_106_789


def send_one(client: quivermq.Client, topic: str, value: Any, **options: Any) -> None:
    with client.producer(serializer=options.pop("serializer", None)) as producer:
        producer.send(topic, value, **options)


def send_list(client: quivermq.Client, topic: str, value: Any, **options: Any) -> None:
    if "timestamp" in options:
        options["timestamps"] = [options.pop("timestamp")]
    if "key" in options:
        options["keys"] = [options.pop("key")]
    with client.producer() as producer:
        producer.send_many(topic, [value], **options).result(30)


def produce_list(client: quivermq.Client, topic: str, value: Any, **options: Any) -> None:
    if "timestamp" in options:
        options["timestamps"] = [options.pop("timestamp")]
    if "key" in options:
        options["keys"] = [options.pop("key")]
    client.produce_many(topic, [value], **options)


Call = Callable[..., object]
CALLS: list[Call] = [quivermq.Client.produce, produce_list, send_one, send_list]
every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)


@every_call
def test_a_message_comes_back_with_its_options(
    call: Call, real: quivermq.Client, topic: str
) -> None:
    options = {"content_type": "text/plain", "timestamp": MOMENT, "ttl": 3600, "key": "k"}
    call(real, topic, "väl", **options)
    (read,) = real.read(topic)
    (polled,) = real.poll(topic, group="g")
    with real.consumer(topic, group="s") as consumer:
        sticky = next(consumer)
    polled.reject("no")
    while not (letters := real.dead_letters(topic)):
        real.poll(topic, group="g", wait=0.01)
    for message in (read, polled, sticky, letters[0]):
        assert (message.value, message.key) == ("väl".encode(), b"k")
        assert message.content_type == "text/plain"
        assert message.timestamp == MOMENT_MS
    for message in (read, polled, sticky):
        assert message.expires is not None
        assert 3500 < (message.expires - datetime.now(UTC)).total_seconds() < 3601


def test_a_message_without_options_has_none(real: quivermq.Client, topic: str) -> None:
    real.produce(topic, b"v", headers={"a": b"1"})
    real.produce(topic, b"v")
    for message in real.read(topic):
        assert (message.content_type, message.expires) == (None, None)


@every_call
def test_objects_are_written_as_json(call: Call, real: quivermq.Client, topic: str) -> None:
    order = {"id": 7, "name": "Zoë", "lines": [1.5, None, True]}
    call(real, topic, order, serializer="json")
    call(real, topic, order, serializer="json", content_type="application/vnd.order+json")
    first, second = real.read(topic)
    assert json.loads(first.value) == json.loads(second.value) == order
    assert "Zoë".encode() in first.value
    assert first.content_type == "application/json"
    assert second.content_type == "application/vnd.order+json"


@every_call
def test_a_callable_makes_bytes_of_a_value(call: Call, real: quivermq.Client, topic: str) -> None:
    call(real, topic, Decimal("1.50"), serializer=lambda value: b"decimal " + str(value).encode())
    call(real, topic, Decimal("1.50"), serializer=str)
    values = [(message.value, message.content_type) for message in real.read(topic)]
    assert values == [(b"decimal 1.50", None), (b"1.50", None)]


@every_call
@pytest.mark.parametrize(
    ("value", "options", "says"),
    [
        (Decimal(1), {"serializer": "json"}, "type Decimal cannot be written as JSON.*callable"),
        (b"v", {"serializer": "json"}, "type bytes cannot be written as JSON"),
        (5, {"serializer": float}, "the serializer returned float for a value of type int"),
        (b"v", {"serializer": "xml"}, 'serializer must be "json", or a callable'),
        (b"v", {"content_type": ""}, "content_type is a MIME type"),
        (b"v", {"content_type": "a\nb"}, "content_type is a MIME type"),
        (b"v", {"content_type": b"text/plain"}, "content_type is a MIME type"),
        (b"v", {"ttl": 0}, "ttl must be a number"),
        (b"v", {"ttl": -5}, "ttl must be a number"),
        (b"v", {"ttl": 1e12}, "ttl must be at most"),
        (b"v", {"ttl": 5, "delay": 6}, "is over before the delay"),
        (b"v", {"timestamp": -1}, "timestamp"),
        (b"v", {"timestamp": 1.5}, "timestamp"),
        (b"v", {"timestamp": "2024"}, "timestamp"),
        ({"an": "order"}, {}, "dict.*serializer|serializer.*'dict'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_value_and_what_to_do(
    call: Call,
    value: Any,
    options: dict[str, Any],
    says: str,
    stand_in: StandIn,
    client: quivermq.Client,
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        call(client, "t", value, **options)
    assert stand_in.count("produce") == 0


def test_an_error_of_a_serializer_is_its_callers(client: quivermq.Client) -> None:
    with pytest.raises(ZeroDivisionError):
        client.produce("t", 0, serializer=lambda value: bytes(1 // value))


def test_options_of_many_join_the_headers_that_messages_have(
    real: quivermq.Client, topic: str
) -> None:
    both = [{"a": b"1", "content-type": b"x"}, None]
    real.produce_many(topic, [b"1", b"2"], headers=both, content_type="text/plain")
    real.produce_many(topic, [b"3", b"4"], headers={"a": "for all"}, content_type="text/plain")
    table = pa.table({"value": [b"5"], "key": [b"k"]})
    real.produce_many(topic, table, content_type="text/plain")
    real.produce_many(topic, table.to_batches()[0], content_type="text/plain")
    found = list(real.read(topic))
    assert [message.content_type for message in found] == ["text/plain"] * 6
    assert [message.headers.get("a") for message in found] == [
        b"1", None, b"for all", b"for all", None, None,
    ]  # fmt: skip
    with_headers = table.append_column("headers", pa.array([[]], pa.list_(pa.null())))
    for values, options in (
        (with_headers, {"content_type": "a/b"}),
        ([b"v"], {"content_type": "a/b", "headers": pa.array([None])}),
        (table, {"serializer": "json"}),
    ):
        with pytest.raises(InvalidRequest):
            real.produce_many(topic, values, **options)


def test_times_of_many_may_be_datetimes(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"1", b"2", b"3"], timestamps=[MOMENT, 5, None])
    first, second, third = real.read(topic)
    assert (first.timestamp, second.timestamp) == (MOMENT_MS, 5)
    assert third.time.year > 2024
    # By which messages are found and dropped is the broker's time.
    assert [each.value for each in real.read(topic, 0, start=MOMENT)] == [b"1", b"2", b"3"]


def test_messages_with_and_without_a_time_travel_together(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    with client.producer(linger=60) as producer:
        producer.send("t", b"0")
        producer.send("t", b"1", timestamp=MOMENT)
        producer.send("t", b"2")
        producer.send_many("t", [b"3", b"4"])
    assert stand_in.log().values == [b"0", b"1", b"2", b"3", b"4"]
    assert stand_in.count("produce") == 1


def test_the_asyncio_client_has_the_same_options(broker: BrokerThread, topic: str) -> None:
    options: dict[str, Any] = {"content_type": "text/plain", "ttl": 3600}

    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            await client.produce(topic, "one", timestamp=MOMENT, **options)
            await client.produce_many(topic, ["two"], timestamps=[MOMENT], **options)
            async with client.producer() as producer:
                await producer.send(topic, "three", timestamp=MOMENT, **options)
                await producer.send_many(topic, ["four"], timestamps=[MOMENT], **options)
            async with client.producer(serializer="json") as producer:
                await producer.send(topic, [5], timestamp=MOMENT, **options)
            async for message in client.read(topic):
                assert message.content_type == "text/plain"
                assert message.timestamp == MOMENT_MS
                assert message.expires is not None
            polled = await client.poll(topic, group="g")
            values = [message.value for message in polled]
            assert values == [b"one", b"two", b"three", b"four", b"[5]"]
            assert {message.content_type for message in polled} == {"text/plain"}

    asyncio.run(work())
