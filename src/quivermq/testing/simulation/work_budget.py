"""Counts the work of each callback of a simulated broker or gateway: none may hold its event loop
for long.

    with WorkBudget() as budget:
        ...                # simulated brokers
        budget.check()     # raises `Violation` that names the callback

Virtual time does not pass in a callback, and real time is not the same twice, so calls are counted:
each call of a function, of Python or C, counts once, and so does its return. A profiler of C counts
them, by a "clock" that ticks when it is looked at. Equal runs have equal counts. A loop in C that
calls nothing counts as one call, however long it is: those are found by soaks, by the clock.
"""

import asyncio
from cProfile import Profile
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

from quivermq.testing import Violation
from quivermq.testing.virtual.loop import VirtualLoop

WORK_MAX: Final = 400_000
"""Of one callback. A core does three millions in a second or more: so this is two thirds of the
stall budget of 200 ms. A replica that catches up after its disk was lost needs 210,000."""


_JUDGED: Final = ("broker", "gateway")


class WorkBudget:
    """Counts in the `with` of it; only one at a time."""

    def __init__(self, work_max: int = WORK_MAX) -> None:
        self._work_max = work_max
        self._tick = count().__next__
        self._profile = Profile(self._tick, 1.0)
        self._original: Any = None
        self._found: list[str] = []
        self.most = 0
        """The work of the callback with most of it."""

    def __enter__(self) -> Self:
        self._original = original = asyncio.Handle._run  # noqa: SLF001  (nothing else sees them)
        tick = self._tick

        def run_counted(handle: asyncio.Handle) -> None:
            began = tick()
            original(handle)
            self._judge(handle, tick() - began)

        asyncio.Handle._run = run_counted  # type: ignore[method-assign,assignment]  # noqa: SLF001
        self._profile.enable(subcalls=False, builtins=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._profile.disable()
        asyncio.Handle._run = self._original  # type: ignore[method-assign]  # noqa: SLF001

    def _judge(self, handle: Any, work: int) -> None:
        if work <= self.most and work <= self._work_max:
            return
        loop = handle._loop  # noqa: SLF001
        if not isinstance(loop, VirtualLoop) or not loop.process.name.startswith(_JUDGED):
            return
        self.most = max(self.most, work)
        if work > self._work_max:
            name = _name_of(handle._callback)  # noqa: SLF001
            self._found.append(
                f"stall: {name} of {loop.process.name} made {work:,} calls in one go"
            )

    def check(self) -> None:
        """Raise `Violation` for the first callback that did too much."""
        if self._found:
            raise Violation(f"{self._found[0]}; {self._work_max:,} are the limit")


def _name_of(callback: Any) -> str:
    """The coroutine of the task that a callback takes a step of, or the callback itself."""
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return str(getattr(task.get_coro(), "__qualname__", task))
    return str(getattr(callback, "__qualname__", callback))
