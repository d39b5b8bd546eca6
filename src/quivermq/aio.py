"""The asyncio client: `async with quivermq.aio.connect(...) as client`."""

from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any

from quivermq.batches import load_arrow
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

# Rather now than in an event loop.
load_arrow()


def connect(
    servers: str | Iterable[str] | None = None,
    *,
    token: str | None = None,
    tls: ClientTls = None,
    timeout: float | None = None,
    tracing: Tracing = None,
    zone: str | None = None,
    busy_poll: bool = True,
) -> "Connecting":
    """Connect to a cluster by any of its brokers: await the result, or use `async with`.

    >>> async with quivermq.aio.connect("127.0.0.1:7600,127.0.0.1:7601") as client:
    ...     await client.produce("orders", b"an order")

    What is not given is as the environment says (`QUIVER_SERVERS`, `QUIVER_TOKEN`,
    `QUIVER_TLS_CA`), then the file `~/.config/quiver/client.toml`, which the command line reads
    too. Operations are tried again for up to `timeout` seconds (10), unless a failure is permanent.
    `token` is for brokers with users. `tls` is for brokers with TLS: a file with the certificate of
    their CA, True for the CAs of the system, or an `ssl.SSLContext`. `tracing=True` (default:
    `QUIVER_TRACING`), or a tracer provider, makes spans of OpenTelemetry. `zone` (default:
    `QUIVER_ZONE`) is where this program runs: `read` and `read_range` ask brokers of it first.
    With `busy_poll` the event loop looks for the answer to a lone message for up to 0.2 ms before
    it sleeps, as long as answers come so soon and the processor is free; without, it sleeps at
    once.
    Raises `ConnectionFailed` if no server can be reached.
    """
    return Connecting(
        ConnectOptions.of(
            servers,
            token=token,
            tls=tls,
            timeout=timeout,
            tracing=tracing,
            zone=zone,
            busy_poll=busy_poll,
        )
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
