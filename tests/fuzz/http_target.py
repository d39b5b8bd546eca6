"""HTTP: any bytes, to the real protocol and pages of a broker that runs in this process."""

import asyncio
import logging
import tempfile
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from quivermq.transports import Server
from quivermq.transports.http.protocol import BoundedProtocol
from tests.fuzz.target import INPUT_BYTES_MAX, Target
from tests.transports.stage import PATIENCE_S, Talker, make_topic, settings, until

_GET = b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n"
_PAGES = (
    b"/",
    b"/health",
    b"/ready",
    b"/metrics",
    b"/docs",
    b"/openapi.json",
    b"/v1/cluster",
    b"/v1/topics",
    b"/v1/topics/orders",
    b"/v1/topics/none?x=%41",
    b"/nothing/%2e%2e/here",
)
_OTHERS = (
    b"HEAD /health HTTP/1.0\r\n\r\n",
    b"POST /health HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello" + _GET % b"/ready",
    b"PUT /v1/topics HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"GET /health HTTP/1.1\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n\x81\x00",
    b"POST /health HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\nabc",
    b"GET http://other:80/health HTTP/1.1\r\nconnection: close\r\n\r\n",
    b"CONNECT other:443 HTTP/1.1\r\nhost: other\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nx: " + b"y" * 17_000,
)


def _samples() -> list[bytes]:
    """How many bytes arrive at a time, by the first one, then what arrives."""
    return [b"\x00" + _GET % page for page in _PAGES] + [
        bytes([size]) + said for said in _OTHERS for size in (0, 7)
    ]


def _read(data: bytes) -> None:
    _stage().hear(data)


class _Transport(asyncio.Transport):
    """Keeps what is written before it is closed."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = bytearray()
        self._is_closed = False

    def write(self, data: Any) -> None:
        if not self._is_closed:
            self.written += data

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class _Failures(logging.Handler):
    """What a broker logs as its own failure."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1]:
            text += "\n" + "".join(traceback.format_exception(record.exc_info[1]))
        self.texts.append(text)


class _Stage:
    """A broker with a topic, on a loop that runs only while something is read."""

    def __init__(self) -> None:
        self._failures = _Failures()
        for name in ("quivermq", "uvicorn.error", "asyncio"):
            logging.getLogger(name).addHandler(self._failures)
        self._folder = tempfile.TemporaryDirectory()
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._server = Server(settings(Path(self._folder.name), http="127.0.0.1:0"))
        await self._server.start()
        await until(lambda: self._server.broker.is_ready)
        talker = await Talker.in_memory(self._server)
        await make_topic(talker, "orders")
        assert self._server._http is not None
        listener = self._server._http._server
        self._config, self._state = listener.config, listener.server_state

    def hear(self, data: bytes) -> None:
        # Other targets in this process have their errors logged too.
        self._failures.texts.clear()
        transport = self._loop.run_until_complete(self._talk(data))
        assert not self._failures.texts, self._failures.texts.pop()
        written = bytes(transport.written)
        assert not written or written.startswith(b"HTTP/1.1 "), written[:80]
        assert b"HTTP/1.1 500" not in written, written[:2_000]

    async def _talk(self, data: bytes) -> _Transport:
        transport = _Transport()
        protocol = BoundedProtocol(self._config, self._state, {}, self._loop)
        protocol.connection_made(transport)
        for piece in _pieces(data):
            protocol.data_received(piece)
            await asyncio.sleep(0)
        await self._finish_tasks(transport)
        protocol.eof_received()
        protocol.connection_lost(None)
        await self._finish_tasks(transport)
        assert protocol not in self._state.connections
        return transport

    async def _finish_tasks(self, transport: _Transport) -> None:
        """Let requests be answered. One whose body does not come waits until its client is gone."""
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(200):
                if not self._state.tasks:
                    return
                await asyncio.sleep(0)
            if transport.is_closing():
                await asyncio.wait(self._state.tasks)


def _pieces(data: bytes) -> Iterator[bytes]:
    size = data[0] if data else 0
    for at in range(1, len(data), size or INPUT_BYTES_MAX):
        yield data[at : at + (size or INPUT_BYTES_MAX)]


@cache
def _stage() -> _Stage:
    return _Stage()


HTTP_TARGETS = {"http": Target(_samples, _read)}
