"""Handlers in memory by `TestQuiverBroker`, and the AsyncAPI document: nothing is connected."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from faststream.specification import AsyncAPI
from pydantic import BaseModel

import quivermq
from quivermq.integrations.faststream import (
    QuiverBroker,
    QuiverMessage,
    QuiverRouter,
    TestQuiverBroker,
)
from tests.integrations.test_faststream import until


class Order(BaseModel):
    id: int


class Shop:
    """A program of a user."""

    def __init__(self, servers: str = "127.0.0.1:7600") -> None:
        self.broker = broker = QuiverBroker(servers, logger=None)
        self.invoices = broker.publisher("invoices", title="Invoices")

        @broker.subscriber("orders", group="billing", description="Bills orders.")
        @self.invoices
        async def bill(order: Order) -> Order:
            if order.id < 0:
                raise ValueError("a negative order")
            return Order(id=order.id + 1000)

        @broker.subscriber("orders", group="counting", batch=True)
        async def count(orders: list[Order]) -> None: ...

        @broker.subscriber("orders", group="counting", batch=True)
        async def count_elsewhere(orders: list[Order]) -> None: ...

        self.bill, self.counters = bill, (count, count_elsewhere)


def test_handlers_run_in_memory_one_of_each_group() -> None:
    async def main() -> None:
        shop = Shop()
        async with TestQuiverBroker(shop.broker) as broker:
            first = await broker.publish({"id": 7}, "orders", key="k", correlation_id="c")
            assert first == quivermq.Receipt("orders", 0, 0)
            shop.bill.mock.assert_called_once_with({"id": 7})
            await shop.bill.assert_called_once_with(Order(id=7), correlation_id="c")
            shop.invoices.mock.assert_called_once_with({"id": 1007})
            receipts = await broker.publish_batch(Order(id=8), Order(id=9), topic="orders")
            assert receipts == [quivermq.BatchReceipt(0, 1, 2)]
            assert shop.bill.mock.call_count == 3
            lists = [call.args[0] for each in shop.counters for call in each.mock.call_args_list]
            assert lists == [[{"id": 7}], [{"id": 8}, {"id": 9}]]
        # Outside it, the broker is as it was.
        assert not shop.broker.running
        assert len(shop.broker.subscribers) == 3

    asyncio.run(main())


def test_what_a_handler_raises_reaches_the_test_and_messages_can_be_settled() -> None:
    async def main() -> None:
        shop = Shop()
        settled: list[Any] = []

        @shop.broker.subscriber("settled", group="g")
        async def settle(message: QuiverMessage) -> None:
            await message.reject("unreadable")
            settled.append((message.committed, message.raw_message.key))

        async with TestQuiverBroker(shop.broker) as broker:
            with pytest.raises(ValueError, match="a negative order"):
                await broker.publish(Order(id=-1), "orders")
            await broker.publish("x", "settled", key="k")
            assert settled == [("REJECTED", b"k")]
            await broker.publish("x", "a topic that no handler has")

    asyncio.run(main())


def test_with_real_the_cluster_is_used(servers: str, client: quivermq.Client, topic: str) -> None:
    client.create_topic(f"{topic}.out")

    async def main() -> None:
        broker = QuiverBroker(servers, logger=None)
        out = broker.publisher(f"{topic}.out")

        @broker.subscriber(topic, group="g")
        @out
        async def handle(number: int) -> int:
            return number + 1

        async with TestQuiverBroker(broker, with_real=True) as real:
            await real.publish(1, topic)
            await until(lambda: out.mock.called)
            handle.mock.assert_called_once_with(1)
            out.mock.assert_called_once_with(2)
        assert [m.value for m in client.read(f"{topic}.out")] == [b"2"]

    asyncio.run(main())


def document(version: str) -> dict[str, Any]:
    shop = Shop("one:7600,two:7601")
    router = QuiverRouter(prefix="eu.")
    router.publisher("returns", schema=Order)
    shop.broker.include_router(router)
    asyncapi = AsyncAPI(shop.broker, schema_version=version)
    made: dict[str, Any] = asyncapi.to_specification().to_jsonable()
    return made


def test_the_asyncapi_document_shows_topics_groups_and_payloads() -> None:
    made = document("3.0.0")
    assert {server["host"] for server in made["servers"].values()} == {"one:7600", "two:7601"}
    assert {server["protocol"] for server in made["servers"].values()} == {"quiver"}
    channels = {
        (channel["address"], channel["bindings"]["x-quiver"].get("group")): channel
        for channel in made["channels"].values()
    }
    assert set(channels) == {
        ("orders", "billing"),
        ("orders", "counting"),
        ("invoices", None),
        ("eu.returns", None),
    }
    assert channels["orders", "billing"]["description"] == "Bills orders."
    assert channels["orders", "counting"]["bindings"] == {
        "x-quiver": {"topic": "orders", "group": "counting", "batch": True}
    }
    assert made["components"]["schemas"]["Order"]["properties"]["id"] == {
        "title": "Id",
        "type": "integer",
    }


def test_the_older_asyncapi_has_the_binding_too() -> None:
    made = document("2.6.0")
    bindings = [channel["bindings"] for channel in made["channels"].values()]
    assert {"x-quiver": {"topic": "orders", "group": "billing"}} in bindings
    assert {"x-quiver": {"topic": "eu.returns"}} in bindings


def test_without_faststream_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["faststream"] = None  # as if it were not installed
try:
    import quivermq.integrations.faststream
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'quivermq[faststream]'" in done.stdout
