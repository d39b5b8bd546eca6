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
from quivermq.transports.http.connection import HttpConnection
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
    b"/v1/topics/orders/partitions/0/messages?offset=0&limit=5&encoding=base64",
    b"/v1/topics/orders/groups/g/stream",
    b"/v1/topics/orders/dead-letters",
)
_POST = (
    b"POST /v1/topics/orders/%s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s"
)
_BODIES = {
    b"messages": b'{"messages":[{"value":"a","key":"k","headers":{"h":"1"},"priority":3}]}',
    b"groups/g/poll": b'{"max_messages":10,"wait":0}',
    b"groups/g/ack": b'{"leases":[{"partition":0,"lease":"%032x","offsets":["1",2]}]}' % 17,
    b"groups/g/seek": b'{"to":"@1","partition":0}',
    b"dead-letters/redrive": b"{}",
}
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
        bytes([size]) + said for said in (*_OTHERS, *_posts()) for size in (0, 7)
    ]


def _posts() -> list[bytes]:
    return [_POST % (path, len(body), body) for path, body in _BODIES.items()]


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

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def can_write_eof(self) -> bool:
        return False

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
        for name in ("quivermq", "asyncio"):
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
        self._serving = self._server._http.serving

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
        protocol = HttpConnection(self._serving)
        protocol.connection_made(transport)
        for piece in _pieces(data):
            protocol.data_received(piece)
            await asyncio.sleep(0)
        await self._finish_tasks(protocol, transport)
        protocol.eof_received()
        protocol.connection_lost(None)
        await self._finish_tasks(protocol, transport)
        assert protocol not in self._serving.connections
        return transport

    async def _finish_tasks(self, protocol: HttpConnection, transport: _Transport) -> None:
        """Let requests be answered. One whose body does not come waits until its client is gone."""
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(200):
                if protocol.task is None or protocol.task.done():
                    return
                await asyncio.sleep(0)
            if transport.is_closing():
                await asyncio.wait([protocol.task])


def _pieces(data: bytes) -> Iterator[bytes]:
    size = data[0] if data else 0
    for at in range(1, len(data), size or INPUT_BYTES_MAX):
        yield data[at : at + (size or INPUT_BYTES_MAX)]


@cache
def _stage() -> _Stage:
    return _Stage()


HTTP_TARGETS = {"http": Target(_samples, _read)}
