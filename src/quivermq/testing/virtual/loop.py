"""An event loop of asyncio on virtual time: one for each simulated process.

It runs a turn when the simulator says so. Connections, listeners and work in threads are those of
its machine; all else is as in any event loop, so whatever runs on asyncio runs here.
"""

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from quivermq.testing.virtual.process import Process

_T = TypeVar("_T")

_TASKS_MIN: Final = 100
"""With fewer tasks than that, those that are done are kept as well."""
_get_running_loop = events._get_running_loop  # noqa: SLF001  (what loops use)
_set_running_loop = events._set_running_loop  # noqa: SLF001


class _Handle(asyncio.Handle):
    """A callback that is ready. Does without the questions for the debug mode of asyncio."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "VirtualLoop",
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of a process."""

    def __init__(self, process: "Process") -> None:
        self.process = process
        self.ready: deque[asyncio.Handle] = deque()
        """Callbacks for the next turn."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._is_closed = False
        # A task that nothing refers to is closed, and runs what it has in `finally`: a process
        # that was killed does not.
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_swept = _TASKS_MIN

    # Turns.

    def run_turn(self) -> None:
        """Run what is ready now, and not what becomes ready by it."""
        ready, timers = self.ready, self._timers
        if timers:
            now = self.process.steady_s()
            while timers and (timers[0][0] <= now or timers[0][2].cancelled()):
                ready.append(heappop(timers)[2])
        before = _get_running_loop()
        _set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001
        finally:
            _set_running_loop(before)

    def next_timer(self) -> float | None:
        """When the first timer is due, by the clock of this loop."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        return timers[0][0] if timers else None

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self.process.steady_s()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self.ready.append(handle)
        self.process.plan_turn()
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.process.steady_s() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._numbers), timer))
        self.process.plan_turn()
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Asyncio tells; it is dropped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_swept:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks_swept = max(_TASKS_MIN, 2 * len(self._tasks))
        return task

    def run_in_executor(  # type: ignore[override]
        self,
        executor: object,  # noqa: ARG002
        func: Callable[..., _T],
        *args: Any,
    ) -> asyncio.Future[_T]:
        """Work that a thread would do is done a little later."""
        future: asyncio.Future[_T] = self.create_future()

        def done(outcome: object) -> None:
            if future.done():
                return
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)  # type: ignore[arg-type]

        self.process.work_aside(lambda: func(*args), done)
        return future

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        **_: object,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self.process.dial(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,  # noqa: ARG002  (a process listens at its own host)
        port: int,
        **_: object,
    ) -> Any:
        return self.process.listen(protocol_factory, port)

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """The process is gone: nothing that it planned happens."""
        self._is_closed = True

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.process.unhandled(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.process.unhandled(context)
