"""Virtual time, as an event queue in one thread.

Time is in whole microseconds, so that no sum depends on rounding. Events of the same moment happen
in the order in which they were planned. That alone makes a run repeat itself exactly.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

US_PER_MS = 1000

EVENTS_MAX = 1_000_000
"""More than any run needs."""

Action = Callable[[], None]


class VirtualTime:
    """The planned events, and the current time."""

    def __init__(self) -> None:
        self.now_us = 0
        self.events = 0
        """How many events have happened."""
        self._numbers = count()
        self._planned: list[tuple[int, int, Action]] = []

    @property
    def now_ms(self) -> int:
        return self.now_us // US_PER_MS

    def after_ms(self, delay_ms: float, action: Action) -> None:
        """Plan an action after a delay; a negative delay counts as none."""
        self.at_us(self.now_us + round(delay_ms * US_PER_MS), action)

    def at_us(self, due_us: int, action: Action) -> None:
        """Plan an action at a moment; one that is past counts as now."""
        heappush(self._planned, (max(due_us, self.now_us), next(self._numbers), action))

    def run_for_ms(self, duration_ms: int) -> None:
        """Let time pass."""
        end_us = self.now_us + duration_ms * US_PER_MS
        planned = self._planned
        while planned and planned[0][0] <= end_us:
            self.now_us, _, action = heappop(planned)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise RuntimeError(f"{EVENTS_MAX:,} events: the run does not end")
            action()
        self.now_us = end_us
