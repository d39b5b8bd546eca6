"""Connects clients and brokers of one event loop without sockets: same packets, sessions, limits.

    client = memory_client([server])        # what `quivermq.aio.connect` gives, over a
    `MemoryTransport` await client.produce("orders", b"an order")

Bytes are copied from one end to the other in turns of the loop, with the flow control of real
transports; nothing else is different for either end.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from quivermq.batches import Buffer
from quivermq.client import (
    AsyncClient,
    AsyncioConnection,
    AsyncioLimiter,
    Connection,
    ConnectOptions,
    first_answered,
)
from quivermq.errors import ConnectionFailed
from quivermq.transports import Server

_HIGH_BYTES: Final = 64 << 10


class _Pipe:
    """Bytes on their way in one direction."""

    def __init__(self) -> None:
        self.size = 0
        self.is_ended = False
        """The writer said its last."""
        self.is_cut = False
        """The writer is gone, and what was on its way is lost."""
        self.is_deaf = False
        """The reader takes nothing more."""
        self.arrived: Callable[[], None] = lambda: None
        self.taken: Callable[[], None] = lambda: None
        self._chunks: deque[memoryview] = deque()

    def put(self, data: Buffer) -> None:
        if data and not self.is_deaf:
            # A copy: the writer may use its buffer again.
            self._chunks.append(memoryview(bytes(data)))
            self.size += len(data)
            self.arrived()

    def take_into(self, buffer: memoryview) -> int:
        chunk = self._chunks[0]
        count = min(len(buffer), len(chunk))
        buffer[:count] = chunk[:count]
        if count == len(chunk):
            self._chunks.popleft()
        else:
            self._chunks[0] = chunk[count:]
        self.size -= count
        return count

    def clear(self) -> None:
        self._chunks.clear()
        self.size = 0


class PipeTransport(asyncio.Transport):
    """One end of a pair: what is written here arrives at the protocol of the other end."""

    def __init__(self, protocol: asyncio.BufferedProtocol, inward: _Pipe, outward: _Pipe) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._inward, self._outward = inward, outward
        inward.arrived, outward.taken = self._schedule, self._relieve
        self._is_reading = True
        self._is_scheduled = False
        self._is_closing = False
        self._is_lost = False
        self._is_full = False
        self.set_write_buffer_limits()

    # Writing.

    def write(self, data: Buffer) -> None:
        if self._is_closing:
            return
        self._outward.put(data)
        if self._outward.size > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self._outward.size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def _relieve(self) -> None:
        """The other end has taken something."""
        if self._is_full and self._outward.size <= self._low:
            self._is_full = False
            self._protocol.resume_writing()
        if self._is_closing and not self._outward.size:
            self._lose(None)

    # Reading.

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """One buffer in one turn of the loop, as sockets do."""
        self._is_scheduled = False
        inward = self._inward
        if inward.is_cut:
            self._is_closing = True
            self._lose(ConnectionResetError("the other end is gone"))
        elif self.is_reading() and inward.size:
            count = inward.take_into(memoryview(self._protocol.get_buffer(-1)))
            self._protocol.buffer_updated(count)
            inward.taken()
            self._schedule()
        elif self.is_reading() and inward.is_ended:
            self._protocol.eof_received()
            self.close()

    # The end.

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Once the other end has taken everything."""
        if self._is_closing:
            return
        self._is_closing = True
        self._stop_reading()
        self._outward.is_ended = True
        self._outward.arrived()
        self._relieve()

    def abort(self) -> None:
        """At once: what is on its way is lost."""
        self._is_closing = True
        self._stop_reading()
        self._outward.clear()
        self._outward.is_cut = True
        self._outward.arrived()
        self._lose(None)

    def _stop_reading(self) -> None:
        self._inward.is_deaf = True
        self._inward.clear()
        # A writer that waits for room waits no more.
        self._inward.taken()

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._loop.call_soon(self._protocol.connection_lost, error)

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
        return default


def connect(one: asyncio.BufferedProtocol, other: asyncio.BufferedProtocol) -> None:
    """Join two protocols, as a socket would."""
    to_one, to_other = _Pipe(), _Pipe()
    near, far = PipeTransport(one, to_one, to_other), PipeTransport(other, to_other, to_one)
    other.connection_made(far)
    one.connection_made(near)


def memory_client(servers: Iterable[Server], timeout: float = 10.0) -> AsyncClient:
    """An asyncio client of brokers of the same process; close it."""
    brokers = list(servers)
    addresses = [server.listen for server in brokers]
    options = ConnectOptions.of(addresses, token="", tls=False, timeout=timeout, zone="")
    return AsyncClient(options, partial(MemoryTransport, brokers))


class MemoryTransport:
    """A client's way to brokers of the same process, each found by the address it listens at."""

    def __init__(
        self,
        servers: Iterable[Server],
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,  # noqa: ARG002  (there is nothing to encrypt)
        client_name: str = "memory",
        busy_poll: bool = False,  # noqa: ARG002  (nothing comes from outside of the event loop)
    ) -> None:
        self._servers = list(servers)
        self._token = token
        self._client_name = client_name
        self._connections: dict[str, AsyncioConnection] = {}
        self._opening = asyncio.Lock()
        self._is_closed = False

    async def connection(self, address: str, deadline: float) -> AsyncioConnection:
        """The connection to this broker; opened if there is none."""
        async with self._opening:
            connection = self._connections.get(address)
            if connection is None or not connection.is_open:
                connection = await self._open(address, deadline)
                self._connections[address] = connection
            return connection

    async def _open(self, address: str, deadline: float) -> AsyncioConnection:
        server = next((server for server in self._servers if server.listen == address), None)
        if (
            server is None
            or server.client_connections is None
            or server.client_connections.is_closed
        ):
            raise ConnectionFailed(f"{address}: no broker listens there")
        if self._is_closed:
            raise ConnectionFailed("the client is closed: connect again")
        connection = AsyncioConnection(address)
        connect(connection, server.client_connections.client())
        try:
            await connection.greet(self._token, self._client_name, deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def release(self, connection: Connection) -> None:
        """Nothing to do: it is shared."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def now(self) -> float:
        """The time."""
        return asyncio.get_running_loop().time()

    async def first_answered(
        self, posted: Sequence[tuple[Connection, int]], deadline: float
    ) -> None:
        """Wait until one of these requests is answered."""
        await first_answered(posted, deadline)

    def limiter(self, places: int) -> AsyncioLimiter:
        """A limiter of calls at a time."""
        return AsyncioLimiter(places)

    async def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections = {}
        await asyncio.sleep(0)
