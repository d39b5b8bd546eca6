"""Small subscriptions of one client share its connections."""

import asyncio

import pytest

import quivermq
import quivermq.aio
from quivermq.client.shared import shared_core
from quivermq.client.shared.shared_core import SHARED_PREFETCH_MAX
from tests.client.brokers import BrokerThread
from tests.client.group_stand_in import GroupStandIn
from tests.client.stand_in import DROP
from tests.client.test_subscription import until


def test_they_share_a_connection_that_the_last_one_closes() -> None:
    async def consume(address: str) -> None:
        async with quivermq.aio.connect(address) as client:
            await client.produce_many("t", [b"v"] * 3)
            subscriptions = [client.subscribe("t", group=f"g{number}") for number in range(3)]
            for number, subscription in enumerate(subscriptions):
                async for message in subscription:
                    await message.ack()
                    break
                # It closes, and the others go on.
                await subscription.close()
                assert len(stand_in.hellos) == 2, number
            again = client.subscribe("t", group="again")
            await anext(again)
            assert len(stand_in.hellos) == 3
            await again.close()

    with GroupStandIn() as stand_in:
        asyncio.run(consume(stand_in.address))
        assert all(len(stand_in.lot(group=f"g{number}").done) == 1 for number in range(3))
        # Each gives back what is its own.
        assert not any(any(lot.leases.values()) for lot in stand_in.lots.values())


def test_what_fetches_much_has_a_connection_of_its_own(broker: BrokerThread, topic: str) -> None:
    with quivermq.connect(broker.address) as client:
        client.produce_many(topic, [b"v"] * 3)
        small = client.subscribe(topic, group="small")
        other = client.subscribe(topic, group="other")
        large = client.subscribe(topic, group="large", prefetch=SHARED_PREFETCH_MAX + 1)
        several = client.subscribe([topic], group="several")
        pattern = client.subscribe(topic, group="pattern", pattern=True)
        transports = [
            each._prefetcher._core.transport for each in (small, other, large, several, pattern)
        ]
        assert transports[0] is transports[1]
        assert len(set(map(id, transports))) == 4
        for each in (small, other, large, several, pattern):
            next(each).ack()


def test_not_more_share_one_than_a_broker_takes_requests_of(
    broker: BrokerThread, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_core, "BORROWERS_MAX", 2)
    with quivermq.connect(broker.address) as client:
        client.create_topic(topic)
        opened = [client.subscribe(topic, group=f"g{number}") for number in range(5)]
        assert len({id(each._prefetcher._core.transport) for each in opened}) == 3


def test_a_lost_connection_is_replaced_for_all() -> None:
    with GroupStandIn() as stand_in, quivermq.connect(stand_in.address, timeout=5.0) as client:
        client.produce_many("t", [b"v"] * 4)
        first = client.subscribe("t", group="a", prefetch=2)
        second = client.subscribe("t", group="b", prefetch=2)
        for each in (first, second):
            next(each).ack()
        stand_in.script("poll", DROP)
        stand_in.drop_all()
        for each in (first, second):
            for _ in range(3):
                next(each).ack()
        until(lambda: len(stand_in.lot(group="b").done) == 4)
        assert len(stand_in.lot(group="a").done) == 4
