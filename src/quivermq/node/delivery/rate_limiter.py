"""Limits the rate at which one topic delivers messages, first come, first served.

Kept by the broker that leads the topic's partition 0, for all partitions. A limiter begins with one
full burst; another one takes over only with the leadership, so that a failover costs no more.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from quivermq.token_bucket import TokenBucket


@dataclass(eq=False, slots=True)
class _TokenWaiter:
    wanted: int
    given: asyncio.Future[int]


class RateLimiter:
    """One token bucket, and the requests that wait for tokens."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._bucket = TokenBucket(per_second, burst, self._loop.time())
        self._waiting: deque[_TokenWaiter] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def is_for(self, per_second: float, burst: int) -> bool:
        """Whether it has this limit."""
        return (self._bucket.per_second, self._bucket.burst) == (per_second, burst)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def take(self, wanted: int, wait_s: float) -> int:
        """Up to `wanted` tokens; 0 if there are none in time."""
        if not self._waiting and (taken := self._bucket.take(wanted, self._loop.time())):
            return taken
        waiter = _TokenWaiter(wanted, self._loop.create_future())
        self._waiting.append(waiter)
        self._serve()
        try:
            async with asyncio.timeout(wait_s):
                return await waiter.given
        except TimeoutError:
            return self._withdraw(waiter)
        except asyncio.CancelledError:
            self.give_back(self._withdraw(waiter))
            raise

    def _withdraw(self, waiter: _TokenWaiter) -> int:
        """End a wait: returns what it was given in the last moment."""
        if waiter.given.done() and not waiter.given.cancelled():
            return waiter.given.result()
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        self._serve()
        return 0

    def give_back(self, unused: int) -> None:
        if unused:
            self._bucket.give_back(unused)
            self._serve()

    def again_s(self, wanted: int) -> float:
        """When to ask again, if no other request comes first."""
        return self._bucket.wait_s(wanted, self._loop.time())

    def _serve(self) -> None:
        """Give what is there to those who came first, and look again when there is more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            first = self._waiting[0]
            if not first.given.done():
                now_s = self._loop.time()
                taken = self._bucket.take(first.wanted, now_s)
                if not taken:
                    self._timer = self._loop.call_later(
                        self._bucket.wait_s(first.wanted, now_s), self._serve
                    )
                    return
                first.given.set_result(taken)
            self._waiting.popleft()

    def close(self) -> None:
        """Answer all that wait with nothing: they have to ask the next leader."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.given.done():
                waiter.given.set_result(0)
