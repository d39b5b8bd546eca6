"""The connections of all clients of a broker, whatever the transport, with their limits.

A connection that says nothing for too long is closed; so is one that takes no answers.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from quivermq.batches import Buffer
from quivermq.busy_poll import LoopPoll
from quivermq.errors import Overloaded, QuiverError
from quivermq.node import Accepted, AccessControl, Counters, Service, address_of
from quivermq.transports.session import Session, SessionSettings
from quivermq.wire import StallWatch

logger = logging.getLogger("quivermq.connections")

_SWEEP_S: Final = 1.0
_JOINED_BYTES_MAX: Final = 64 << 10
"""Up to here a copy is cheaper than many buffers."""
_LINGER_S: Final = 1.0
"""How long a connection that is being closed may take to deliver its last words."""


class ClientConnection(asyncio.BufferedProtocol):
    """One client: a session on a transport."""

    def __init__(self, client_connections: "ClientConnections") -> None:
        self._client_connections = client_connections
        self._transport: asyncio.Transport | None = None
        self.address = ""
        self._is_paused = False
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._polling = client_connections.polling
        # Answers of this turn of the loop, which leave together.
        self._unsent: list[Buffer] = []
        self._unsent_bytes = 0
        self._unread_before = 0
        self._moved_at = self._now()
        self.session = Session(
            client_connections.service,
            client_connections.access,
            client_connections.settings,
            client_connections.cluster_id,
            self._write,
            self._unread,
            self.close,
            self._now(),
        )
        self._stall = StallWatch(self.session.receiver)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transports are known to be what they are.
        self._transport = transport = cast("asyncio.Transport", transport)
        self.address = self.session.address = address_of(transport)
        transport.set_write_buffer_limits(high=self.session.backlog.high_bytes)
        self._client_connections.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.session.close()
        self._client_connections.leave(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self.session.receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._polling.came()
        try:
            self.session.received(nbytes, self._now())
        except QuiverError as error:
            logger.warning(
                "the connection of %s is closed: %s", self._who, error, extra=self._extra
            )
            self.close()
        else:
            self._pause_or_resume()

    @property
    def _who(self) -> str:
        return self.session.client or "a client without a name"

    @property
    def _extra(self) -> dict[str, str]:
        return {"connection": self.session.name, "address": self.address}

    def _write(self, buffers: list[Buffer]) -> None:
        """At once if nothing more is to come, else together with more of this turn of the loop."""
        is_first = not self._unsent
        self._unsent += buffers
        self._unsent_bytes += sum(map(len, buffers))
        if not self.session.has_open_requests or self._unsent_bytes > _JOINED_BYTES_MAX:
            self._flush()
        elif is_first:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """One call of the system for all: each costs as much as making a small answer."""
        unsent, size = self._unsent, self._unsent_bytes
        self._unsent, self._unsent_bytes = [], 0
        transport = self._transport
        if unsent and transport is not None and not transport.is_closing():
            if size <= _JOINED_BYTES_MAX:
                transport.write(b"".join(unsent))
            else:
                transport.writelines(unsent)
            self._polling.expect()
            if self._is_paused:
                self._pause_or_resume()

    def _unread(self) -> int:
        if self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + self._unsent_bytes

    def pause_writing(self) -> None:
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self.session.backlog.look_again()
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        """Listen to the client only while it leaves room for what it asks."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.session.is_full and not self._is_paused:
            self._is_paused = True
            transport.pause_reading()
        elif self._is_paused and not self.session.is_full:
            self._is_paused = False
            transport.resume_reading()

    def sweep(self, now: float) -> None:
        """Close it if it is overdue; abort it if it takes nothing."""
        if self._transport is None:
            return
        unread = self._unread()
        if not unread or unread != self._unread_before:
            self._unread_before, self._moved_at = unread, now
        settings = self._client_connections.settings
        patience_s = _LINGER_S if self._transport.is_closing() else settings.idle_timeout_s
        if unread and now - self._moved_at > patience_s:
            logger.warning(
                "%s does not read its answers and is cut off", self._who, extra=self._extra
            )
            self.abort()
        elif self.session.is_overdue(now):
            self.close()
        elif self._is_paused:
            self._stall.forget(now)
        elif self._stall.is_stalled(now):
            text = "a packet of %s does not arrive: the connection is closed"
            logger.warning(text, self._who, extra=self._extra)
            self.abort()

    def close(self) -> None:
        """Once everything that was said is delivered."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()


class ClientConnections:
    """Lets clients in; `open` it before the first, `close` it after the last."""

    def __init__(
        self,
        service: Service,
        access: AccessControl,
        settings: SessionSettings,
        counters: Counters,
        connections_max: int,
        cluster_id: Callable[[], str],
        polling: LoopPoll,
    ) -> None:
        """`polling`: who was answered often asks again at once."""
        self.polling = polling
        self.service = service
        self.access = access
        self.settings = settings
        self.cluster_id = cluster_id
        self.connections: dict[ClientConnection, None] = {}
        self._counters = counters
        self._accepted: Accepted[ClientConnection] = Accepted(connections_max)
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_s = min(_SWEEP_S, settings.hello_timeout_s / 2, settings.idle_timeout_s / 2)
        self.is_closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    def client(self) -> ClientConnection:
        """The broker's end of a client's connection, for whatever transport has one."""
        return ClientConnection(self)

    def enter(self, connection: ClientConnection) -> None:
        """A client is there; closed at once if there are too many."""
        objection = self._accepted.objection(connection.address)
        self._accepted.enter(connection, connection.address)
        self.connections[connection] = None
        self._empty.clear()
        self._counters.connections = len(self.connections)
        if self.is_closed:
            connection.abort()
        elif objection:
            connection.session.refuse(Overloaded(f"clients: {objection}"))
            connection.close()

    def leave(self, connection: ClientConnection) -> None:
        self.connections.pop(connection, None)
        self._accepted.leave(connection)
        self._counters.connections = len(self.connections)
        if not self.connections:
            self._empty.set()

    def open(self) -> None:
        """Begin to look after timeouts."""
        self._sweep()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(self._sweep_s, self._sweep)
        now = loop.time()
        for connection in list(self.connections):
            connection.sweep(now)

    async def close(self) -> None:
        """Close all connections, and wait until they are."""
        self.is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.close()
        try:
            async with asyncio.timeout(_LINGER_S):
                await self._empty.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()
            await self._empty.wait()
