"""The wrong clocks through which simulated nodes see virtual time."""

from typing import Final

from quivermq.testing.virtual.virtual_time import US_PER_MS, VirtualTime

EPOCH_MS: Final = 1_700_000_000_000
"""The time on all clocks when a simulation starts."""


class NodeClock:
    """A node's wall clock: runs a little fast or slow, and jumps."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._rate = 1.0
        self._set_at_us = 0
        self._shown_ms: float = EPOCH_MS

    @property
    def now_ms(self) -> int:
        passed_ms = (self._time.now_us - self._set_at_us) / US_PER_MS
        return int(self._shown_ms + passed_ms * self._rate)

    def drift(self, rate: float) -> None:
        """Run at `rate` seconds a second from now on."""
        self._reset(self.now_ms, rate)

    def jump(self, by_ms: int) -> None:
        """Show another time at once, forwards or backwards."""
        self._reset(self.now_ms + by_ms, self._rate)

    def real_ms(self, shown_ms: float) -> float:
        """How long this clock takes to show that `shown_ms` have passed."""
        return shown_ms / self._rate

    def _reset(self, shown_ms: int, rate: float) -> None:
        self._shown_ms, self._rate = shown_ms, rate
        self._set_at_us = self._time.now_us
