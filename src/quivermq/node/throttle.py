"""A limit on what copying replicas may cost: bytes a second, the rest waits its turn.

What waits is bounded by consensus, which sends a learner only so much ahead of its answers.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

_BURST_S: Final = 0.1


class Throttle:
    """A token bucket in front of `send` calls, served in their order."""

    def __init__(
        self,
        bytes_per_second: int,
        now: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._rate = bytes_per_second
        self._now = now
        self._later = later
        self._burst = max(bytes_per_second * _BURST_S, 1.0)
        self._tokens = self._burst
        self._filled_at = now()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._is_scheduled = False

    def pass_on(self, size: int, send: Callable[[], None]) -> None:
        """Call `send` now, or when its `size` bytes are due."""
        self._waiting.append((size, send))
        if not self._is_scheduled:
            self._serve()

    def _serve(self) -> None:
        self._is_scheduled = False
        now = self._now()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        # One may go whenever the account is not overdrawn, however large it is.
        while self._waiting and self._tokens > 0:
            size, send = self._waiting.popleft()
            self._tokens -= size
            send()
        if self._waiting:
            self._is_scheduled = True
            self._later(max(-self._tokens / self._rate, 0.001), self._serve)

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._waiting)
