"""The asyncio client: `async with quivermq.aio.connect(...) as client`."""

from quivermq.client.aio_client import AsyncClient, connect
from quivermq.client.aio_subscriptions import AsyncSubscription
from quivermq.client.leased import AsyncLeasedMessage
from quivermq.client.leased_tables import AsyncLeasedTable
from quivermq.client.producer import AsyncProducer
from quivermq.client.readers import AsyncReader
from quivermq.client.sticky_consumer import AsyncConsumer

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncLeasedMessage",
    "AsyncLeasedTable",
    "AsyncProducer",
    "AsyncReader",
    "AsyncSubscription",
    "connect",
]
