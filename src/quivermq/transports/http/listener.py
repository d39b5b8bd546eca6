"""Listens for HTTP inside a broker: on its loop, started and stopped with it."""

import asyncio
import ssl
from typing import Final

from quivermq.addresses import join_address, split_address
from quivermq.errors import BrokenInvariant, ConnectionFailed
from quivermq.log_context import choose_request_id
from quivermq.node import Accepted, Host, TlsListener, close_listener, listening_at
from quivermq.transports.http.app import make_app
from quivermq.transports.http.backend import Backend
from quivermq.transports.http.connection import (
    HttpConnection,
    HttpLimits,
    HttpServing,
    refusal_of,
)
from quivermq.transports.metrics import Metrics

TLS_EXPECTED: Final = "this broker expects TLS: ask with https, and with the certificate of its CA"
_FINISH_S: Final = 1.0
"""How long requests that are under way may take once the listener closes."""


class HttpListener:
    """The listener for HTTP."""

    def __init__(self, broker: Host, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.metrics = Metrics(broker, lambda: len(self.serving.connections))
        settings = broker.settings
        limits = HttpLimits(
            connections_max=settings.http_connections_max,
            body_bytes_max=settings.http_body_bytes_max,
            timeout_s=settings.http_timeout_ms / 1000,
        )
        self._backend = Backend(broker)
        self.serving = HttpServing(
            _unready,
            limits,
            Accepted(limits.connections_max),
            passed=broker.counters.doors["http"],
        )
        self._listening: asyncio.Server | TlsListener | None = None

    async def listen(self, address: str) -> str:
        """Answer requests; returns the address with its real port."""
        self.serving.app = await asyncio.to_thread(make_app, self._backend, self.metrics)
        if self._tls is not None:
            return await self._listen_with(self._tls, address)
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        with listening_at(address):
            self._listening = await loop.create_server(self._connection, host, port, backlog=1024)
        return join_address(host, self._listening.sockets[0].getsockname()[1])

    async def _listen_with(self, tls: ssl.SSLContext, address: str) -> str:
        limits = self.serving.limits
        refusal = refusal_of(400, ConnectionFailed(TLS_EXPECTED), choose_request_id(""))
        self._listening = TlsListener(
            self._connection,
            lambda: tls,
            Accepted(limits.connections_max),
            limits.timeout_s,
            refusal,
        )
        return await self._listening.listen(address)

    def _connection(self) -> HttpConnection:
        return HttpConnection(self.serving)

    async def close(self) -> None:
        """Accept no more connections, finish what is under way, and close."""
        if self._listening is None:
            return
        self.serving.is_closing = True
        await close_listener(self._listening)
        for connection in list(self.serving.connections):
            connection.finish()
        await self._finish()
        tasks = self._tasks()
        for connection in list(self.serving.connections):
            connection.abort()
        # Those that wait for their clients end with them.
        if tasks:
            await asyncio.wait(tasks, timeout=_FINISH_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Transports close their sockets one turn of the loop later.
        await asyncio.sleep(0)

    async def _finish(self) -> None:
        tasks = self._tasks()
        if tasks:
            await asyncio.wait(tasks, timeout=_FINISH_S)

    def _tasks(self) -> list[asyncio.Task[None]]:
        tasks = (connection.task for connection in self.serving.connections)
        return [task for task in tasks if task is not None and not task.done()]


async def _unready(*_: object) -> None:
    raise BrokenInvariant("a connection was accepted before there was an application")
