"""The asyncio client: the same names as the blocking one, and they work."""

import asyncio
import inspect

import pytest

import quivermq
import quivermq.aio
from quivermq.client import (
    AsyncLeasedMessage,
    AsyncLeasedTable,
    AsyncProducer,
    AsyncReader,
    AsyncSubscription,
    LeasedMessage,
    LeasedTable,
    Producer,
    Reader,
    Subscription,
)
from quivermq.client.sticky.consumer import AsyncConsumer, Consumer
from quivermq.errors import InvalidRequest
from tests.client.brokers import BrokerThread
from tests.client.derive_aio import SOURCES, derive, target_of


def test_everything_works_on_an_event_loop(broker: BrokerThread) -> None:
    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            info = await client.create_topic("aio", partitions=2)
            assert len(info.partitions) == 2
            receipts = await asyncio.gather(
                *(client.produce("aio", b"%d" % n, partition=0) for n in range(100))
            )
            assert sorted(receipt.offset for receipt in receipts) == list(range(100))
            (receipt,) = await client.produce_many("aio", [b"x"] * 10, partition=1)
            assert receipt == (1, 0, 10)
            async with client.producer() as producer:
                delivery = await producer.send("aio", b"v", partition=1)
                assert (await delivery).offset == 10
            assert len([m async for m in client.read("aio", partition=1)]) == 11
            assert [b.num_rows async for b in client.read("aio", partition=1).batches()] == [10, 1]
            await client.commit("aio", group="g", partition=1, offset=5)
            assert await client.committed("aio", group="g") == {1: 5}
            assert (await client.cluster()).leader == 1
            assert await client.stats()
            assert (await client.alter_topic("aio", partitions=3)).message_count == 111
            assert "aio" in [topic.name for topic in await client.topics()]
            await client.delete_topic("aio")

    asyncio.run(work())


def test_it_can_be_awaited_and_closed(broker: BrokerThread) -> None:
    async def work() -> None:
        client = await quivermq.aio.connect(broker.address)
        await client.ping()
        await client.close()
        with pytest.raises(InvalidRequest, match="closed"):
            await client.ping()

    asyncio.run(work())


def test_many_tasks_produce_at_once_under_few_identities(broker: BrokerThread) -> None:
    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            await client.create_topic("crowd")
            receipts = await asyncio.gather(*(client.produce("crowd", b"v") for _ in range(300)))
            assert sorted(receipt.offset for receipt in receipts) == list(range(300))

    asyncio.run(work())


def test_a_blocking_client_works_inside_a_running_loop(broker: BrokerThread) -> None:
    async def cell() -> None:
        """As a notebook's cell does."""
        with quivermq.connect(broker.address) as client:
            client.create_topic("notebook")
            client.produce("notebook", b"v")
            with client.producer() as producer:
                assert (await producer.send("notebook", b"w")).offset == 1
            assert len(list(client.read("notebook"))) == 2

    asyncio.run(cell())


@pytest.mark.parametrize(
    ("blocking", "awaitable"),
    [
        (quivermq.Client, quivermq.aio.AsyncClient),
        (LeasedMessage, AsyncLeasedMessage),
        (LeasedTable, AsyncLeasedTable),
        (Consumer, AsyncConsumer),
        (Producer, AsyncProducer),
        (Reader, AsyncReader),
        (Subscription, AsyncSubscription),
        (quivermq.connect, quivermq.aio.connect),
    ],
)
def test_both_clients_have_the_same_names_and_parameters(blocking: type, awaitable: type) -> None:
    def parameters(call: object) -> list[tuple[str, object, object]]:
        found = inspect.signature(call).parameters.values()  # type: ignore[arg-type]
        return [(each.name, each.kind, each.default) for each in found]

    if inspect.isfunction(blocking):
        assert parameters(blocking) == parameters(awaitable)
        return
    # Not for users: each ends with its process in its own way.
    internal = {"after_fork", "end", "ends_first"}
    names = {name for name in dir(blocking) if not name.startswith("_")} - internal
    assert names <= {name for name in dir(awaitable) if not name.startswith("_")}
    values = {name for name in names if isinstance(getattr(blocking, name), property)}
    assert all(isinstance(getattr(awaitable, name), property) for name in values)
    # Only threads can be made to wait with a time limit of theirs.
    for name in filter(lambda name: callable(getattr(blocking, name)), names - {"flush"}):
        assert parameters(getattr(blocking, name)) == parameters(getattr(awaitable, name)), name


@pytest.mark.parametrize("source", SOURCES)
def test_the_asyncio_client_is_derived_from_the_blocking_one(source: str) -> None:
    target = target_of(source)
    assert target.read_text() == derive(source), f"{target.name} is not current: run `make aio`"


def test_every_call_of_both_clients_is_documented() -> None:
    for client in (quivermq.Client, quivermq.aio.AsyncClient):
        calls = [name for name in dir(client) if not name.startswith("_")]
        bare = [name for name in calls if not inspect.getdoc(getattr(client, name))]
        assert not bare, f"{client.__name__} has calls without documentation: {bare}"


def test_examples_of_the_asyncio_client_await() -> None:
    document = inspect.getdoc(quivermq.aio.AsyncClient.poll) or ""
    assert '>>> for message in await client.poll("orders", group="billing"):' in document
    assert "...     await message.ack()" in document
