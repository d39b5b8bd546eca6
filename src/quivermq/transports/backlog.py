"""Bounds the answers on their way to one client: none is made before there is room for it.

A client may ask for much at once and then take nothing. Whatever reads from disk for it asks here
first, and waits while too much is unread or promised.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class _Waiter:
    request_id: int
    size: int
    granted: asyncio.Future[None]


class BacklogRoom:
    """Room for the answer to one request, among those that wait for its client."""

    __slots__ = ("_backlog", "_request_id")

    def __init__(self, backlog: "Backlog", request_id: int) -> None:
        self._backlog = backlog
        self._request_id = request_id

    async def __call__(self, size: int) -> None:
        """Wait until an answer of about `size` bytes may be made."""
        await self._backlog.room(self._request_id, size)

    def fits(self, size: int) -> bool:
        """Whether it may be made in this turn of the event loop, without waiting."""
        return self._backlog.fits(size)

    def reserve(self, size: int) -> None:
        """Promise room that was found to fit in this turn."""
        self._backlog.reserve(self._request_id, size)


class Backlog:
    """The bytes that wait for one client, and those that are promised."""

    def __init__(self, bytes_max: int, unread: Callable[[], int]) -> None:
        self._bytes_max = bytes_max
        # The most that can be asked room for at once. So a request that waits is sure to be woken:
        # a promise comes due, or the transport reports that less than this is unread.
        self.high_bytes = bytes_max // 2
        self._unread = unread
        self._promised: dict[int, int] = {}
        self._promised_bytes = 0
        self._waiting: deque[_Waiter] = deque()

    @property
    def unread(self) -> int:
        """Bytes that the client has not taken."""
        return self._unread()

    @property
    def is_full(self) -> bool:
        """Whether so much is unread that the client should not be listened to."""
        return self._unread() > self._bytes_max

    async def room(self, request_id: int, size: int) -> None:
        """Wait until an answer of about `size` bytes may be made; `settle` when it was written.

        Asked again for the same request, it waits for what is wanted more, or gives back what is
        wanted less.
        """
        promised = self._promised.get(request_id, 0)
        size = min(size, self.high_bytes) - promised
        if promised and size <= 0:
            self._promise(request_id, size)
            self.look_again()
            return
        if not self._waiting and self._fits(size):
            self._promise(request_id, size)
            return
        waiter = _Waiter(request_id, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            self.settle(request_id)
            raise

    def fits(self, size: int) -> bool:
        """Whether there is room for an answer that is written at once."""
        return not self._waiting and self._fits(min(size, self.high_bytes))

    def reserve(self, request_id: int, size: int) -> None:
        """Promise room for an answer, where `fits` has just said that there is some."""
        self._promise(request_id, min(size, self.high_bytes))

    def _fits(self, size: int) -> bool:
        return self._promised_bytes + self._unread() + size <= self._bytes_max

    def _promise(self, request_id: int, size: int) -> None:
        if size:
            self._promised[request_id] = self._promised.get(request_id, 0) + size
            self._promised_bytes += size

    def settle(self, request_id: int) -> None:
        """The answer was written, or will never be."""
        self._promised_bytes -= self._promised.pop(request_id, 0)
        self.look_again()

    def look_again(self) -> None:
        """The client may have taken something: let the requests go on that fit, in their order."""
        while self._waiting and self._fits(self._waiting[0].size):
            waiter = self._waiting.popleft()
            if not waiter.granted.done():
                self._promise(waiter.request_id, waiter.size)
                waiter.granted.set_result(None)
