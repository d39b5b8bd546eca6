"""One thread with an event loop, for what a blocking client does in the background."""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar, TypeVarTuple
from weakref import WeakSet

from quivermq.client import fork_safety
from quivermq.client.exit_hooks import endings, park_if_ending
from quivermq.errors import InvalidRequest

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Tasks that were cancelled at the end of the program have so long to end.
_CANCEL_SECONDS: Final = 0.25


class LoopUser(Protocol):
    """Lives on the event loop of a background."""

    ends_first: bool
    """Others may be needed for its work."""

    async def end(self, deadline: float) -> None:
        """The program ends: finish by the deadline, as well as that goes."""


class _Running(NamedTuple):
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread


class BackgroundLoop:
    """An event loop in a thread of its own, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: _Running | None = None
        """Until the thread has ended."""
        self._is_stopped = False
        self._tasks: set[asyncio.Task[object]] = set()
        self._users: WeakSet[LoopUser] = WeakSet()
        self._ending: concurrent.futures.Future[None] | None = None
        fork_safety.watch(self)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and wait for its result; an interrupt cancels it."""
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            park_if_ending()
            raise

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Call something there, without waiting for it."""
        self._running_loop().call_soon_threadsafe(call, *arguments)

    def later(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Do something there that only `stop` waits for. Takes no lock: the garbage collector, too,
        may call this, at any point of any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it was closed meanwhile, and everything with it
                loop.call_soon_threadsafe(self._begin, loop, work)

    def add_user(self, user: LoopUser) -> None:
        """Call its `end` there if the program ends before `stop`, and if it lives by then."""
        self._users.add(user)

    def stop(self) -> None:
        """End the thread; everything on it should have been closed before."""
        with self._lock:
            self._is_stopped = True
            loop, running = self._loop, self._running
            self._loop = None
        if loop is not None and running is not None:
            try:
                asyncio.run_coroutine_threadsafe(self._end(), loop).result()
                loop.call_soon_threadsafe(loop.stop)
            except BaseException:
                park_if_ending()
                raise
            running.thread.join()
            self._close_loop(running)

    def after_fork(self) -> None:
        """The thread stayed with the parent."""
        self._lock = threading.Lock()
        if self._running is not None:
            # Taken apart in the child, it would complain that it was not closed.
            _loops_of_parents.append(self._running.loop)
        self._loop = self._running = self._ending = None
        self._tasks = set()

    # ---- the end of the program

    def begin_ending(self, deadline: float) -> None:
        """Let every user of the loop finish."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it was closed meanwhile
                self._ending = _call_soon(self._end_users(deadline), loop)

    def await_ending(self, deadline: float) -> None:
        """Wait until they have."""
        if self._ending is not None:
            concurrent.futures.wait([self._ending], max(0.0, deadline - time.monotonic()))

    def halt(self, deadline: float) -> None:
        """Stop the loop, whatever is under way, and join the thread."""
        self._is_stopped = True
        running, self._loop = self._running, None
        if running is None:
            return
        with suppress(RuntimeError):  # it was closed meanwhile
            _call_soon(self._cancel_and_stop(running.loop), running.loop)
        running.thread.join(max(0.0, deadline - time.monotonic()))
        if not running.thread.is_alive():
            self._close_loop(running)

    async def _end_users(self, deadline: float) -> None:
        users = list(self._users)
        first = [user for user in users if user.ends_first]
        others = [user for user in users if not user.ends_first]
        # Those behind must have some time too.
        now = time.monotonic()
        await _end_together(first, now + (deadline - now) / 2 if others else deadline)
        await _end_together(others, deadline)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, deadline - time.monotonic()))

    async def _cancel_and_stop(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=_CANCEL_SECONDS)
        finally:
            loop.stop()

    def _close_loop(self, running: _Running) -> None:
        running.loop.close()
        self._running = None
        endings.remove_thread(self)

    # ---- the loop

    def _begin(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        task = loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None and not self._is_stopped and not endings.is_ending:
                self._loop = self._start()
            loop = self._loop
        if loop is None:
            park_if_ending()
            raise InvalidRequest(
                "the client is closed: connect again"
                if self._is_stopped and not endings.is_ending
                else "the program is ending: nothing can be done in the background any more"
            )
        return loop

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = _Loop()
        thread = threading.Thread(target=loop.run_forever, name="quivermq", daemon=True)
        self._running = _Running(loop, thread)
        thread.start()
        endings.add_thread(self)
        return loop


class _Loop(asyncio.SelectorEventLoop):
    """Python's own event loop. A thread that runs it waits in Python, which is safe at the end of
    the program; a loop that is not Python's own may come back to an interpreter that is gone."""

    def run_in_executor(
        self,
        executor: concurrent.futures.Executor | None,  # noqa: ARG002  (asyncio calls it so)
        func: Callable[[*Ts], T],
        *args: *Ts,
    ) -> asyncio.Future[T]:
        """Call it on a daemon thread of its own. Python's pool has threads that it joins at the
        end, however long they take, and takes nothing on from then on, such as asking for the
        address of a broker."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            outcome: Callable[[], None]
            try:
                result = func(*args)
            except Exception as error:
                failure = error
                outcome = lambda: future.set_exception(failure)  # noqa: E731
            except BaseException as error:
                # It would end the thread of the loop, instead of this one.
                raised = RuntimeError(f"{func!r} raised {error!r}")
                outcome = lambda: future.set_exception(raised)  # noqa: E731
            else:
                outcome = lambda: future.set_result(result)  # noqa: E731
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self.call_soon_threadsafe(lambda: None if future.done() else outcome())

        threading.Thread(target=work, name="quivermq-call", daemon=True).start()
        return future


_loops_of_parents: Final[list[asyncio.AbstractEventLoop]] = []


async def _end_together(users: list[LoopUser], deadline: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await asyncio.gather(*(user.end(deadline) for user in users), return_exceptions=True)


def _call_soon(
    coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop
) -> "concurrent.futures.Future[T]":
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except BaseException:
        coroutine.close()
        raise
