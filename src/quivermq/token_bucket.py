"""Token buckets: a rate with a burst, one that may be overdrawn, and a throttle for what waits."""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

GRAIN_S: Final = 0.05
"""No timer is finer than this under load. A fast bucket keeps as many tokens as come in so long,
whatever its burst, or it would never reach its rate."""
_GATHER_S: Final = 0.005
"""So much of a fast rate is gathered before any of it is given: not one message an answer."""


class TokenBucket:
    """Tokens that may be taken at `per_second`, and a burst of them at once."""

    def __init__(self, per_second: float, burst: int, now_s: float) -> None:
        self.per_second = per_second
        self.burst = burst
        # And a part of one token more: a wait for a slow rate ends late by a moment, too.
        late = per_second * GRAIN_S
        self._capacity = max(burst, late) + min(1.0, late)
        self._tokens = float(burst)
        self._at_s = now_s

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            come = (now_s - self._at_s) * self.per_second
            self._tokens = min(self._capacity, self._tokens + come)
            self._at_s = now_s

    def _enough(self, wanted: int) -> int:
        """How many must be there before any are given, if so many are wanted."""
        return max(1, min(wanted, int(self.per_second * _GATHER_S)))

    def take(self, wanted: int, now_s: float) -> int:
        """As many as are there and wanted; 0 if there are too few to be worth while."""
        self._fill(now_s)
        # Sums of fractions fall short of whole tokens by a hair, for ever if that is not forgiven.
        there = int(self._tokens + 1e-9)
        if there < self._enough(wanted):
            return 0
        taken = min(there, wanted)
        self._tokens -= taken
        return taken

    def give_back(self, unused: int) -> None:
        """Tokens that were taken, and with which nothing was done."""
        self._tokens = min(self._capacity, self._tokens + unused)

    def wait_s(self, wanted: int, now_s: float) -> float:
        """How long until any are given, if so many are wanted."""
        self._fill(now_s)
        return max(0.0, self._enough(wanted) - self._tokens) / self.per_second


class Overdraft:
    """A rate of which more may be taken at once than is there: the rest is owed, and nothing may
    be taken before it is paid. For sizes that are known only when it is too late to refuse."""

    def __init__(self, per_second: float, burst: float, now_s: float) -> None:
        self._per_second = per_second
        self._burst_s = burst / per_second
        self._paid_at_s = now_s - self._burst_s
        """When all that was taken will have come in, with the burst at hand."""

    def set_rate(self, per_second: float) -> None:
        """From here on; what is owed is due when it was."""
        self._per_second = per_second

    def owed_s(self, now_s: float) -> float:
        """How long until something may be taken; 0: at once."""
        return max(0.0, self._paid_at_s - now_s)

    def take(self, amount: float, now_s: float) -> None:
        """Take it, whether it is there or not."""
        begin_s = max(self._paid_at_s, now_s - self._burst_s)
        self._paid_at_s = begin_s + amount / self._per_second


_BURST_S: Final = 0.1


class Throttle:
    """A token bucket in front of `send` calls, served in their order."""

    def __init__(
        self,
        bytes_per_second: int,
        now: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._now = now
        self._later = later
        self._account = Overdraft(bytes_per_second, bytes_per_second * _BURST_S, now())
        self._waiting: deque[tuple[int, Callable[[], None], Hashable]] = deque()
        self.waiting_bytes = 0
        self._is_scheduled = False

    def set_rate(self, bytes_per_second: float) -> None:
        """From here on."""
        self._account.set_rate(bytes_per_second)

    def pass_on(self, size: int, send: Callable[[], None], whose: Hashable = None) -> None:
        """Call `send` now, or when its `size` bytes are due."""
        self._waiting.append((size, send, whose))
        self.waiting_bytes += size
        if not self._is_scheduled:
            self._serve()

    def _serve(self) -> None:
        self._is_scheduled = False
        now_s = self._now()
        # One may go whenever the account is not overdrawn, however large it is.
        while self._waiting and not self._account.owed_s(now_s):
            size, send, _ = self._waiting.popleft()
            self.waiting_bytes -= size
            self._account.take(size, now_s)
            send()
        if self._waiting:
            self._is_scheduled = True
            self._later(max(self._account.owed_s(now_s), 0.001), self._serve)

    def let_go(self, whose: Hashable) -> None:
        """Call what waits for one, whether it is due or not."""
        waiting, self._waiting = self._waiting, deque()
        for size, send, of in waiting:
            if of == whose:
                self.waiting_bytes -= size
                send()
            else:
                self._waiting.append((size, send, of))

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._waiting)
