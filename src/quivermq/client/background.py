"""One thread with an event loop, for what a blocking client does in the background."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """An event loop in a thread of its own, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine there, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running_loop()).result(timeout)

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Call something there, without waiting for it."""
        self._running_loop().call_soon_threadsafe(call, *arguments)

    def stop(self) -> None:
        """End the thread; everything on it must have been closed before."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def after_fork(self) -> None:
        """The thread stayed with the parent."""
        self._lock = threading.Lock()
        self._loop = self._thread = None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
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
