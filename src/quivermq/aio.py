"""The asyncio client: `async with quivermq.aio.connect(...) as client`."""

from quivermq.client.aio_client import AsyncClient, connect
from quivermq.client.producer import AsyncProducer
from quivermq.client.readers import AsyncReader

__all__ = ["AsyncClient", "AsyncProducer", "AsyncReader", "connect"]
