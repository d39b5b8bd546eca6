"""Accepts TLS connections, within limits that hold before and during the handshake.

An event loop's own TLS server counts a connection only after its handshake: until then any number
could wait, and shake hands at the same time. Here a connection that says nothing costs a socket; it
has until the hello timeout to complete its handshake; and handshakes begin a few at a time, because
each takes milliseconds of the loop. A connection that does not begin with TLS is told so.
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from quivermq.addresses import join_address, split_address
from quivermq.node.listener import Accepted, listening_at
from quivermq.tls import explain

logger = logging.getLogger("quivermq.tls")

HANDSHAKE_BYTE: Final = b"\x16"
"""The first byte of TLS. That of a packet is the highest of its length, and 0 before a hello."""
_BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 32
_HANDSHAKES_AT_ONCE: Final = 2
"""In one turn of the loop."""
_ACCEPT_AGAIN_S: Final = 1.0
"""After the system refused: there are too many open files."""
_LAST_WORDS_S: Final = 1.0
_LOG_AGAIN_S: Final = 10.0


@dataclass(slots=True, eq=False)
class Stranger:
    """A connection that has not completed its handshake."""

    socket: socket.socket
    address: str
    is_handed_over: bool = False
    """The event loop has the socket, and closes it."""


class TlsListener:
    """A listener whose connections have shaken hands when their protocol hears of them."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        context: Callable[[], ssl.SSLContext],
        strangers: "Accepted[Stranger]",
        hello_s: float,
        plain_refusal: bytes,
    ) -> None:
        """`context` is asked at each handshake; `strangers` counts the connections that have not
        completed theirs, the oldest of which goes when there are too many; `plain_refusal` is sent
        to those that begin without TLS."""
        self._protocol = protocol
        self._context = context
        self._strangers = strangers
        self._hello_s = hello_s
        self._plain_refusal = plain_refusal
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._admitting: dict[Stranger, asyncio.Task[None]] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turn_planned = False
        self._again: asyncio.TimerHandle | None = None
        self._failures = 0
        self._logged_at = float("-inf")

    async def listen(self, address: str) -> str:
        """Accept connections; returns the address with its real port."""
        host, port = split_address(address)
        with listening_at(address):
            found = await self._loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            try:
                for family, kind, protocol, _, place in dict.fromkeys(found):
                    self._bind(family, kind, protocol, place)
            except BaseException:
                self.close()
                raise
        self._resume()
        return join_address(host, self._sockets[0].getsockname()[1])

    def _bind(self, family: int, kind: int, protocol: int, place: "tuple[object, ...]") -> None:
        bound = socket.socket(family, kind, protocol)
        self._sockets.append(bound)
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(place)
        bound.listen(_BACKLOG)

    def close(self) -> None:
        """Accept no more, and end handshakes; connections past theirs stay."""
        self._pause()
        for bound in self._sockets:
            bound.close()
        self._sockets = []
        for task in self._admitting.values():
            task.cancel()

    def _resume(self) -> None:
        for bound in self._sockets:
            self._loop.add_reader(bound, self._accept, bound)

    def _pause(self) -> None:
        if self._again is not None:
            self._again.cancel()
        for bound in self._sockets:
            self._loop.remove_reader(bound)

    def _accept(self, bound: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                stranger, address = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("no connection can be accepted: %s", error.strerror)  # noqa: TRY400
                self._pause()
                self._again = self._loop.call_later(_ACCEPT_AGAIN_S, self._resume)
                return
            stranger.setblocking(False)
            self._enter(Stranger(stranger, str(address[0])))

    def _enter(self, stranger: Stranger) -> None:
        oldest = self._strangers.surplus(stranger.address)
        if oldest is not None:
            self._strangers.leave(oldest)
            self._admitting[oldest].cancel()
        self._strangers.enter(stranger, stranger.address)
        self._admitting[stranger] = task = self._loop.create_task(self._admit(stranger))
        # Not in the task itself: one that is cancelled before it has begun runs no line.
        task.add_done_callback(lambda _: self._left(stranger))

    def _left(self, stranger: Stranger) -> None:
        self._strangers.leave(stranger)
        del self._admitting[stranger]
        if not stranger.is_handed_over:
            stranger.socket.close()

    async def _admit(self, stranger: Stranger) -> None:
        """Shake hands, and hand the connection over to its protocol."""
        deadline = self._loop.time() + self._hello_s
        try:
            async with asyncio.timeout_at(deadline):
                if not await self._begins_with_tls(stranger):
                    return
                await self._turn()
            await self._shake_hands(stranger, deadline)
        except TimeoutError:
            self._failed(stranger, "it says nothing")
        except OSError as error:
            self._failed(stranger, explain(error))

    async def _shake_hands(self, stranger: Stranger, deadline: float) -> None:
        stranger.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = self._context()
        stranger.is_handed_over = True
        await self._loop.connect_accepted_socket(
            self._protocol,
            stranger.socket,
            ssl=context,
            ssl_handshake_timeout=max(0.001, deadline - self._loop.time()),
            ssl_shutdown_timeout=_LAST_WORDS_S,
        )

    async def _begins_with_tls(self, stranger: Stranger) -> bool:
        await self._readable(stranger.socket)
        first = stranger.socket.recv(1, socket.MSG_PEEK)
        if first == HANDSHAKE_BYTE:
            return True
        if first:
            self._failed(stranger, "it does not speak TLS")
            await self._refuse(stranger.socket)
        return False

    async def _refuse(self, stranger: socket.socket) -> None:
        """Say that TLS is expected. What it sent is read: the system would else take back the
        answer together with the connection."""
        with suppress(BlockingIOError):
            stranger.send(self._plain_refusal)
        stranger.shutdown(socket.SHUT_WR)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                while True:
                    await self._readable(stranger)
                    if not stranger.recv(1 << 16):
                        return

    async def _readable(self, stranger: socket.socket) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(stranger, _set_done, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(stranger)

    async def _turn(self) -> None:
        """Wait until it is this handshake's turn to begin."""
        mine: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(mine)
        if not self._is_turn_planned:
            self._is_turn_planned = True
            self._loop.call_soon(self._begin_some)
        await mine

    def _begin_some(self) -> None:
        begun = 0
        while self._waiting and begun < _HANDSHAKES_AT_ONCE:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                begun += 1
        self._is_turn_planned = bool(self._waiting)
        if self._waiting:
            self._loop.call_soon(self._begin_some)

    def _failed(self, stranger: Stranger, reason: str) -> None:
        """One line for many: anybody can make connections fail."""
        self._failures += 1
        now = self._loop.time()
        if now - self._logged_at >= _LOG_AGAIN_S:
            self._logged_at = now
            text = "no TLS with %s: %s (%d such connections since the last such line)"
            logger.warning(text, stranger.address, reason, self._failures)
            self._failures = 0


def _set_done(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
