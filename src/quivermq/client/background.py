"""One thread with an event loop, for what a blocking client does in the background."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from quivermq.errors import InvalidRequest

T = TypeVar("T")


class Background:
    """An event loop in a thread of its own, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._later: set[asyncio.Task[object]] = set()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and wait for its result; whoever is interrupted cancels it."""
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
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

    def stop(self) -> None:
        """End the thread; everything on it should have been closed before."""
        with self._lock:
            self._is_stopped = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def after_fork(self) -> None:
        """The thread stayed with the parent."""
        self._lock = threading.Lock()
        self._loop = self._thread = None
        self._later = set()

    def _begin(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        task = loop.create_task(work())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _end(self) -> None:
        await asyncio.gather(*self._later, return_exceptions=True)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._is_stopped:
                raise InvalidRequest("the client is closed: connect again")
            if self._loop is None:
                self._loop = _new_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="quivermq", daemon=True
                )
                self._thread.start()
            return self._loop


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415  (not there on every platform)
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
