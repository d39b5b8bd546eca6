"""The asyncio client: `async with quivermq.aio.connect(...) as client`."""

from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any

from quivermq.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncLeasedMessage,
    AsyncLeasedTable,
    AsyncProducer,
    AsyncReader,
    AsyncSubscription,
    ConnectOptions,
)
from quivermq.tls import ClientTls
from quivermq.tracing import Tracing

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


def connect(
    servers: str | Iterable[str] = "127.0.0.1:7600",
    *,
    token: str | None = None,
    tls: ClientTls = None,
    timeout: float = 10.0,
    tracing: Tracing = None,
) -> "Connecting":
    """Connect to a cluster by any of its brokers: await the result, or use `async with`.

    >>> async with quivermq.aio.connect("127.0.0.1:7600,127.0.0.1:7601") as client:
    ...     await client.produce("orders", b"an order")

    The client tries every operation again for up to `timeout` seconds, unless its failure is
    permanent. `tls` is for brokers that expect TLS: a file with the certificate of their CA, True
    for the CAs of the system, or an `ssl.SSLContext`; by default what `QUIVER_TLS_CA` names. With
    `tracing=True`, or a tracer provider, calls make spans of OpenTelemetry; by default they do if
    `QUIVER_TRACING` is set. Raises `ConnectionFailed` if no server can be reached.
    """
    return Connecting(
        ConnectOptions.of(servers, token=token, tls=tls, timeout=timeout, tracing=tracing)
    )


class Connecting:
    """A client that connects when it is awaited or entered."""

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncClient:
        return await self._connect()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> AsyncClient:
        client = AsyncClient(self._options)
        try:
            await client.ping()
        except BaseException:
            await client.close()
            raise
        self._client = client
        return client
