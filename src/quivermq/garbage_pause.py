"""Pauses the garbage collector of Python for a moment, which several threads may want at a time.

The collector has one switch for the process. Two threads that each note how it stands, turn it off
and put it back can leave it off for ever: between the note and the turn another thread may run.
"""

import gc
import os
import threading
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final


class GarbagePause(AbstractContextManager[None]):
    """No garbage is collected by itself while any thread is in it."""

    def __init__(self) -> None:
        # The thread that has it may be interrupted by a signal whose handler wants it too.
        self._lock = threading.RLock()
        self._threads = 0
        self._was_collecting = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._threads:
                self._was_collecting = gc.isenabled()
                gc.disable()
            self._threads += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._threads -= 1
            if not self._threads and self._was_collecting:
                gc.enable()

    def begin_anew(self) -> None:
        """In the child of a fork: the other threads are not there to leave it."""
        self._lock = threading.RLock()
        if self._threads and self._was_collecting:
            gc.enable()
        self._threads = 0


GARBAGE_PAUSE: Final = GarbagePause()
"""Of this process."""

os.register_at_fork(after_in_child=GARBAGE_PAUSE.begin_anew)
