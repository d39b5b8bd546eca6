"""The asyncio client: `async with quivermq.aio.connect(...) as client`."""

from quivermq.client.aio_client import AsyncClient, connect
from quivermq.client.producer.producer import AsyncProducer
from quivermq.client.reader import AsyncReader
from quivermq.client.shared.aio_subscription import AsyncSubscription
from quivermq.client.shared.leased_message import AsyncLeasedMessage
from quivermq.client.shared.leased_table import AsyncLeasedTable
from quivermq.client.sticky.consumer import AsyncConsumer

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
