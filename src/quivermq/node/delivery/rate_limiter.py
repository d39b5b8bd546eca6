"""The rate limit of one topic: who may deliver how many messages, first come, first served.

Kept by the broker that leads the topic's partition 0, for all partitions. A keeper begins with one
full burst; another one takes over only with the leadership, so that a failover costs no more.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from quivermq.node.token_bucket import TokenBucket


@dataclass(eq=False, slots=True)
class _Asker:
    wanted: int
    given: asyncio.Future[int]


class RateLimiter:
    """One bucket, and those who wait for tokens from it."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._bucket = TokenBucket(per_second, burst, self._loop.time())
        self._asking: deque[_Asker] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def is_for(self, per_second: float, burst: int) -> bool:
        """Whether this is the limit that it keeps."""
        return (self._bucket.per_second, self._bucket.burst) == (per_second, burst)

    @property
    def asking(self) -> int:
        """How many wait."""
        return len(self._asking)

    async def take(self, wanted: int, wait_s: float) -> int:
        """Up to `wanted` tokens; 0 if there are none in time."""
        if not self._asking and (taken := self._bucket.take(wanted, self._loop.time())):
            return taken
        asker = _Asker(wanted, self._loop.create_future())
        self._asking.append(asker)
        self._serve()
        try:
            async with asyncio.timeout(wait_s):
                return await asker.given
        except TimeoutError:
            return self._ended(asker)
        except asyncio.CancelledError:
            self.give_back(self._ended(asker))
            raise

    def _ended(self, asker: _Asker) -> int:
        """An asker waits no more: what it was given in the last moment."""
        if asker.given.done() and not asker.given.cancelled():
            return asker.given.result()
        if asker in self._asking:
            self._asking.remove(asker)
        self._serve()
        return 0

    def give_back(self, unused: int) -> None:
        if unused:
            self._bucket.give_back(unused)
            self._serve()

    def again_s(self, wanted: int) -> float:
        """When to ask again, if nobody else does."""
        return self._bucket.wait_s(wanted, self._loop.time())

    def _serve(self) -> None:
        """Give what is there to those who came first, and look again when there is more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._asking:
            first = self._asking[0]
            if not first.given.done():
                now_s = self._loop.time()
                taken = self._bucket.take(first.wanted, now_s)
                if not taken:
                    self._timer = self._loop.call_later(
                        self._bucket.wait_s(first.wanted, now_s), self._serve
                    )
                    return
                first.given.set_result(taken)
            self._asking.popleft()

    def close(self) -> None:
        """Whoever waits has to ask the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._asking:
            asker = self._asking.popleft()
            if not asker.given.done():
                asker.given.set_result(0)
