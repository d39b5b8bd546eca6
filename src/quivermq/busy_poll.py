"""Looks for what comes within microseconds, instead of sleeping until it comes.

A thread that sleeps is woken late, and finds its caches cold: on a virtual machine both together
cost several times what a small request does (decision 0071). So where something is expected at
once it is looked for, for a moment. That keeps a core busy meanwhile, and is done only as long as
it pays: ever more seldom after looks in vain, and not while other programs want the core.
"""

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Final

try:
    import resource
except ImportError:
    # Not everywhere does the system count how often a thread had to make way.
    resource = None  # type: ignore[assignment]

WINDOW_S: Final = 0.0002
"""How long a look takes at most. A core that sleeps is not let go of sooner by its host."""
_IN_VAIN_MAX: Final = 5
"""After so many looks in vain in a row, one in 2 ** 5 is tried."""
_ROUNDS: Final = 16
"""Between two questions whether others want the core."""
_ASKED_S: Final = 0.02
"""And the least time between them: the system itself comes in bursts."""
_PREEMPTIONS_A_SECOND: Final = 500
"""A thread that has a core for itself makes way less often than this: for the system alone 40 to 80
times, where others want the core 2,000 times (measured)."""
_REST_ROUNDS: Final = 1_000
_CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> float:
    """Of this process: a container may have less than the machine."""
    get = getattr(os, "sched_getaffinity", None)
    cores = len(get(0)) if get is not None else (os.cpu_count() or 1)
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return min(cores, int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return cores  # there is none, or it is "max"


def preemptions() -> int:
    """How often the calling thread had to make way for another."""
    of_thread = getattr(resource, "RUSAGE_THREAD", None)
    return resource.getrusage(of_thread).ru_nivcsw if of_thread is not None else 0


class LookPolicy:
    """Decides whether to look, by what came of it before. For one thread at a time."""

    __slots__ = ("_asked_at", "_in_vain", "_preempted", "_rounds", "_skip", "_thread")

    def __init__(self) -> None:
        self._skip = 0
        self._in_vain = 0
        self._rounds = 0
        self._thread = 0
        self._preempted = 0
        self._asked_at = 0.0

    def may_look(self) -> bool:
        """Whether to look now; `paid` or `in_vain` follows, if it is."""
        if self._skip:
            self._skip -= 1
            return False
        self._rounds += 1
        if self._rounds % _ROUNDS == 0 and self._is_crowded():
            self._skip = _REST_ROUNDS
            return False
        return True

    def paid(self) -> None:
        """It came while it was looked for."""
        self._in_vain = 0

    def in_vain(self) -> None:
        """It did not."""
        self._in_vain = min(self._in_vain + 1, _IN_VAIN_MAX)
        self._skip = (1 << self._in_vain) - 1

    def _is_crowded(self) -> bool:
        now = time.perf_counter()
        elapsed_s = now - self._asked_at
        if elapsed_s < _ASKED_S:
            return False
        thread, count = threading.get_ident(), preemptions()
        made_way = count - self._preempted if thread == self._thread else 0
        self._thread, self._preempted, self._asked_at = thread, count, now
        return made_way > _PREEMPTIONS_A_SECOND * elapsed_s


class LoopPoll:
    """Keeps an event loop awake for a moment where something is expected."""

    def __init__(self, loop: asyncio.AbstractEventLoop, window_s: float = WINDOW_S) -> None:
        """`window_s`: how long to look; 0: never."""
        self._loop = loop
        self._window_s = window_s if usable_cores() >= 2 else 0.0
        self._policy = LookPolicy()
        self._until = 0.0
        """0: nothing is looked for."""
        self._is_looking = False

    def expect(self) -> None:
        """Something will come, most likely at once: look for it."""
        if self._until or (self._window_s and self._policy.may_look()):
            self._until = time.perf_counter() + self._window_s
            if not self._is_looking:
                self._is_looking = True
                self._loop.call_soon(self._look)

    def came(self) -> None:
        """It is there: look no more."""
        if self._until:
            self._until = 0.0
            self._policy.paid()

    def _look(self) -> None:
        """The loop looks at its sockets before it calls this the next time."""
        if self._until and time.perf_counter() < self._until:
            self._loop.call_soon(self._look)
            return
        self._is_looking = False
        if self._until:
            self._until = 0.0
            self._policy.in_vain()
