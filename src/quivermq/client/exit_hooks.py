"""Exit hooks: finish the work of clients that were not closed when the program ends.

Python takes the interpreter apart around daemon threads: one that still runs an event loop then
may crash the process. So before that happens every client's thread is stopped and joined. First
there is a little time to finish: producers send what they hold and log what they could not store,
consumers leave their groups, leases go back.

Python joins threads that are not daemons before it calls functions of `atexit`, so programs whose
threads outlive the main one work on undisturbed. Children of `multiprocessing` call other functions
at their end, and these are registered there. `os._exit` and signals that kill leave no time.
"""

import atexit
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet

from quivermq.client import fork_safety

logger = logging.getLogger("quivermq.client")

ENDING_SECONDS: Final = 2.0
"""The time that all clients of a program have together to finish."""

# What a thread has to stop once that is over; it takes milliseconds, unless a callback is stuck.
_HALT_SECONDS: Final = 1.0
# Clients that were not closed; the leases of more than these expire by themselves.
_KEPT_MAX: Final = 100
# Behind everything else that children of multiprocessing do at their end.
_FINALIZER_PRIORITY: Final = -100


class EndingThread(Protocol):
    """Runs in the background of a client."""

    def begin_ending(self, deadline: float) -> None:
        """Begin to finish what is under way, without waiting for it."""

    def await_ending(self, deadline: float) -> None:
        """Wait until it is finished, but no longer than this."""

    def halt(self, deadline: float) -> None:
        """Stop, whatever is under way, and join the thread if it stops in time."""


class ClosesAtExit(Protocol):
    """Holds what should not be lost at the end."""

    def end(self, deadline: float) -> None:
        """Give it back, or log what is lost; by the deadline."""


class ExitHooks:
    """Everything of this process that has something to do at its end."""

    def __init__(self) -> None:
        self.is_ending = False
        self._threads: set[EndingThread] = set()
        self._holders: WeakSet[ClosesAtExit] = WeakSet()
        self._kept: list[ClosesAtExit] = []
        self._registered_in = 0
        fork_safety.watch(self)

    def hold(self, holder: ClosesAtExit) -> None:
        """Call its `end` at the end, if it lives by then."""
        self._register()
        self._holders.add(holder)

    def keep(self, holder: ClosesAtExit) -> None:
        """Keep a holder that the program dropped, until the end. The garbage collector may call
        this, at any point of any thread."""
        self._kept = [*self._kept, holder][-_KEPT_MAX:]

    def add_thread(self, thread: EndingThread) -> None:
        """It runs, and must not when the interpreter is taken apart."""
        self._register()
        self._threads.add(thread)

    def remove_thread(self, thread: EndingThread) -> None:
        """It runs no more."""
        self._threads.discard(thread)

    def end(self) -> None:
        """The program ends. Ctrl-C cuts the finishing short; threads are stopped all the same."""
        self.is_ending = True
        threads = list(self._threads)
        deadline = time.monotonic() + ENDING_SECONDS
        with suppress(KeyboardInterrupt):
            for thread in threads:
                thread.begin_ending(deadline)
            for holder in list(self._holders):
                _end_holder(holder, deadline)
            for thread in threads:
                thread.await_ending(deadline)
        deadline = time.monotonic() + _HALT_SECONDS
        for thread in threads:
            _halt_thread(thread, deadline)

    def after_fork(self) -> None:
        """The threads stayed with the parent."""
        self.is_ending = False
        self._threads = set()
        self._kept = []

    def _register(self) -> None:
        if self._registered_in == os.getpid():
            return
        self._registered_in = os.getpid()
        # A child has what its parent registered, unless that was cleared.
        atexit.unregister(self.end)
        atexit.register(self.end)
        processes = sys.modules.get("multiprocessing.process")
        if processes is not None and processes.parent_process() is not None:
            from multiprocessing.util import Finalize  # noqa: PLC0415  (few programs need it)

            Finalize(None, self.end, exitpriority=_FINALIZER_PRIORITY)


def park_if_ending() -> None:
    """Do not return to a daemon thread while the program ends: it is about to end wherever it is,
    and an error there is of no use."""
    if endings.is_ending and threading.current_thread().daemon:
        while True:
            threading.Event().wait()


def _end_holder(holder: ClosesAtExit, deadline: float) -> None:
    try:
        holder.end(deadline)
    except Exception:
        # The threads must be stopped all the same.
        logger.exception("%r could not end", holder)


def _halt_thread(thread: EndingThread, deadline: float) -> None:
    while True:
        try:
            thread.halt(deadline)
        except KeyboardInterrupt:
            continue
        return


endings: Final = ExitHooks()
