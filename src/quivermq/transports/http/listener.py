"""Runs uvicorn inside a broker: on its loop, started and stopped with it, silent."""

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Final

import uvicorn

from quivermq.addresses import join_address, split_address
from quivermq.node import Broker, listening_at
from quivermq.transports.http.app import make_app
from quivermq.transports.http.protocol import BoundedConfig, HttpLimits
from quivermq.transports.metrics import Metrics

_FINISH_S: Final = 1.0
"""How long requests that are under way may take once the listener closes."""
_DATE_S: Final = 1.0


class HttpListener:
    """The listener for HTTP."""

    def __init__(self, broker: Broker, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.metrics = Metrics(broker, lambda: len(self._server.server_state.connections))
        settings = broker.settings
        limits = HttpLimits(
            connections_max=settings.http_connections_max,
            body_bytes_max=settings.http_body_bytes_max,
            timeout_s=settings.http_timeout_ms / 1000,
        )
        config = BoundedConfig(make_app(broker, self.metrics), limits)
        self._server = uvicorn.Server(config)
        self._dating: asyncio.Task[None] | None = None

    async def listen(self, address: str) -> str:
        """Answer requests; returns the address with its real port."""
        host, port = split_address(address)
        with listening_at(address):
            bound = await _bound(host, port)
        try:
            await self._start(bound)
        except BaseException:
            bound.close()
            raise
        return join_address(host, bound.getsockname()[1])

    async def _start(self, bound: socket.socket) -> None:
        """Start as `uvicorn.Server.serve` does, but for signals, which are the process's own."""
        server, config = self._server, self._server.config
        config.load()
        config.ssl = self._tls
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[bound])
        self._dating = asyncio.create_task(self._keep_date(), name="http date")

    async def _keep_date(self) -> None:
        while True:
            await self._server.on_tick(0)
            await asyncio.sleep(_DATE_S)

    async def close(self) -> None:
        """Accept no more connections, finish what is under way, and close."""
        if self._dating is None:
            return
        self._dating.cancel()
        with suppress(asyncio.CancelledError):
            await self._dating
        state = self._server.server_state
        for listener in self._server.servers:
            listener.close()
        for connection in list(state.connections):
            connection.shutdown()
        await self._finish()
        for connection in list(state.connections):
            connection.transport.abort()
        # Those that waited for their clients end with them.
        await self._finish()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        # Transports close their sockets one turn of the loop later.
        await asyncio.sleep(0)

    async def _finish(self) -> None:
        if self._server.server_state.tasks:
            await asyncio.wait(list(self._server.server_state.tasks), timeout=_FINISH_S)


async def _bound(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    family, kind, protocol, _, place = (
        await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound
