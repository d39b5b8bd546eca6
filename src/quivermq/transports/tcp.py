"""The TCP door: packets over sockets."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final

from quivermq.batches import Buffer
from quivermq.errors import Overloaded, QuiverError
from quivermq.node.addresses import split_address
from quivermq.node.figures import Figures
from quivermq.node.service import Service
from quivermq.transports.session import Session, SessionSettings

logger = logging.getLogger("quivermq.tcp")

_UNREAD_BYTES_MAX: Final = 64 << 20
"""Answers that a client does not fetch; past it no more of its requests are read."""
_SWEEP_S: Final = 1.0


class TcpConnection(asyncio.BufferedProtocol):
    """A client's socket."""

    def __init__(self, door: "TcpDoor") -> None:
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self.session = Session(
            door.service, door.settings, door.cluster_id, self._write, loop.time()
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if self._door.is_full:
            self.session.refuse(
                Overloaded(f"{len(self._door.connections)} clients are connected; try again")
            )
            transport.close()
            return
        self._door.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._door.connections.discard(self)
        self.session.close()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self.session.receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self.session.received(nbytes, self._now())
        except QuiverError as error:
            logger.warning("a connection is closed: %s", error)
            self.session.refuse(error)
            self.close()
        else:
            self._pause_or_resume()

    def _write(self, buffers: list[Buffer]) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.writelines(buffers)
            if self._is_paused:
                self._pause_or_resume()

    def pause_writing(self) -> None:
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        """Read no more requests while too many are open, or too many answers unread."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        unread = transport.get_write_buffer_size()
        too_much = self.session.is_full or unread > _UNREAD_BYTES_MAX
        if too_much and not self._is_paused:
            self._is_paused = True
            transport.pause_reading()
        elif self._is_paused and not too_much:
            self._is_paused = False
            transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class TcpDoor:
    """The listener for clients."""

    def __init__(
        self,
        service: Service,
        settings: SessionSettings,
        figures: Figures,
        connections_max: int,
        cluster_id: Callable[[], str],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.service = service
        self.settings = settings
        self.cluster_id = cluster_id
        self.connections: set[TcpConnection] = set()
        self._figures = figures
        self._connections_max = connections_max
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        return len(self.connections) >= self._connections_max

    async def listen(self, address: str) -> str:
        """Accept clients; returns the address with its real port."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: TcpConnection(self), host, port, ssl=self._tls, backlog=1024
        )
        self._sweep()
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    def _sweep(self) -> None:
        """Close who says nothing."""
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)
        self._figures.connections = len(self.connections)
        now = loop.time()
        for connection in [c for c in self.connections if c.session.is_overdue(now)]:
            connection.close()

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
