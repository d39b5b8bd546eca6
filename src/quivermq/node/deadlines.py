"""One timer for the deadlines of many requests: most of them end long before theirs."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class HasDeadline(Protocol):
    """A request that waits."""

    deadline_s: float
    """By the clock of the event loop."""


_W = TypeVar("_W", bound=HasDeadline)


class Deadlines(Generic[_W]):
    """Requests that wait; `end` is called with each that is overdue, after it was taken out."""

    def __init__(self, end: Callable[[_W], None], look_again_s: float) -> None:
        """`look_again_s`: how late a request may be told that its time is over."""
        self._end = end
        self._look_again_s = look_again_s
        self._loop = asyncio.get_running_loop()
        # In the order in which they came: of two that are overdue the older one ends first.
        self._waiting: dict[_W, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: _W) -> None:
        self._waiting[request] = None
        if self._timer is None or request.deadline_s < self._due:
            self._look_at(request.deadline_s)

    def discard(self, request: _W) -> None:
        self._waiting.pop(request, None)

    def _look_at(self, due: float) -> None:
        self.close()
        self._due = due
        self._timer = self._loop.call_at(due, self._end_overdue)

    def _end_overdue(self) -> None:
        now = self._loop.time()
        self._timer = None
        for request in [each for each in self._waiting if each.deadline_s <= now]:
            del self._waiting[request]
            self._end(request)
        if self._waiting and self._timer is None:
            first = min(request.deadline_s for request in self._waiting)
            self._look_at(max(first, now + self._look_again_s))

    def close(self) -> None:
        """Look at no deadline any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
