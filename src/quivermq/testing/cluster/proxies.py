"""TCP proxies whose links tests can cut, clog and delay.

A link listens on a port of its own and leads to one address. Each of its two directions can be
disturbed alone. All links of a test share one thread with one event loop.
"""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from quivermq.node import close_listener

_CHUNK_BYTES: Final = 1 << 20
_CALL_S: Final = 30.0

T = TypeVar("T")


class LinkDirection:
    """One direction of a link."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self._is_open = asyncio.Event()
        self._is_open.set()

    def shut(self) -> None:
        self._is_open.clear()

    def open(self) -> None:
        self.delay_s = 0.0
        self._is_open.set()

    async def wait_open(self) -> None:
        """Wait until bytes may pass."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._is_open.wait()


class ProxiedLink:
    """A port that leads to an address. Its methods may be called from any thread."""

    def __init__(self, proxies: "Proxies", target: str) -> None:
        self._proxies = proxies
        self._target = target
        self._there, self._back = LinkDirection(), LinkDirection()
        self._is_severed = False
        self._drops = False
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.address = ""

    # Disturbing.

    def cut(self) -> None:
        """Let nothing through in either direction, silently. Bytes under way are lost: once healed,
        both ends find their connections gone."""
        self._proxies.call(self._shut(there=True, back=True, drops=True))

    def cut_answers(self) -> None:
        """Let requests through and no answers, silently."""
        self._proxies.call(self._shut(there=False, back=True, drops=True))

    def clog(self) -> None:
        """Let nothing through; once healed all of it arrives, late."""
        self._proxies.call(self._shut(there=True, back=True, drops=False))

    def delay(self, seconds: float) -> None:
        """Delay everything by so much, each way."""
        self._proxies.call(self._delay(seconds))

    def sever(self) -> None:
        """Break all connections, and accept none."""
        self._proxies.call(self._sever())

    def heal(self) -> None:
        """Let everything through again."""
        self._proxies.call(self._heal())

    async def _shut(self, *, there: bool, back: bool, drops: bool) -> None:
        if there:
            self._there.shut()
        if back:
            self._back.shut()
        self._drops |= drops

    async def _delay(self, seconds: float) -> None:
        self._there.delay_s = self._back.delay_s = seconds

    async def _sever(self) -> None:
        self._is_severed = True
        await self._end_connections()

    async def _heal(self) -> None:
        if self._drops:
            await self._end_connections()
        self._drops = self._is_severed = False
        self._there.open()
        self._back.open()

    # Forwarding.

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def end(self) -> None:
        if self._server is not None:
            await close_listener(self._server)
        await self._sever()

    async def _end_connections(self) -> None:
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._connections.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                if not self._is_severed:
                    await self._carry(reader, writer)
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect, and carry bytes both ways until either end closes."""
        await self._there.wait_open()
        host, _, port = self._target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        ways = [
            asyncio.create_task(_pump(reader, far_writer, self._there)),
            asyncio.create_task(_pump(far_reader, writer, self._back)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # First, because the end of all connections may cancel the wait below.
            far_writer.transport.abort()
            for task in ways:
                task.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: LinkDirection
) -> None:
    while True:
        data = await reader.read(_CHUNK_BYTES)
        await way.wait_open()
        if not data:
            return
        writer.write(data)
        await writer.drain()


class Proxies:
    """The thread in which all links run."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._links: list[ProxiedLink] = []

    def link(self, target: str) -> ProxiedLink:
        """A link to an address."""

        async def make() -> ProxiedLink:
            link = ProxiedLink(self, target)
            await link.listen()
            return link

        link = self.call(make())
        self._links.append(link)
        return link

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

    def close(self) -> None:
        for link in self._links:
            self.call(link.end())
        self.call(self._wait_for_accepted())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _wait_for_accepted(self) -> None:
        """A connection that was accepted just before its listener was closed begins only now; it
        finds its link severed, and ends by itself."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        # Transports close their sockets one turn of the loop later.
        await asyncio.sleep(0)
