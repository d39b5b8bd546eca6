"""Finds callbacks of in-process brokers that hold the event loop for too long.

    budget = StallBudget(0.2)
    budget.install()
    ...                      # brokers on asyncio's own loop, or on uvloop
    found = budget.take()    # descriptions of what held a loop for longer, with stacks

On asyncio's own loop every callback is measured alone, by the processor time of its thread. On
uvloop, which has no place to measure at, the broker's own `LoopWatch` tells. Tests share their loop
with their brokers: only what was seen inside a broker counts.
"""

import asyncio
import gc
import logging
import re
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

from quivermq.node import BLOCKED_FACTOR, Calls, calls_of, waited_s

_SAMPLE_S: Final = 0.025
_CALLS_MAX: Final = 1_000
_COLLECTED_LATELY_S: Final = 1.0
_BROKER: Final = re.compile(r"quivermq/(node|transports|queue|replica|raft|log|cluster)/")
_CLIENT: Final = re.compile(
    r"quivermq/(client|spark|lakehouse|pipelines|testing)/(?!memory_|simulated_disk)"
)


class _Run:
    """The callback that runs in one thread."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self.thread)
        self._looked = 0.0, 0.0
        self.begin()
        self.began_s = 0.0

    def begin(self) -> None:
        self._calls: Calls = []
        self.blocked_s = 0.0
        self.began_s = time.monotonic()

    @property
    def stack(self) -> str:
        """Where it was last seen, as text: files are read for it, which may take long."""
        return "".join(traceback.StackSummary.extract(reversed(self._calls)).format())

    def look(self, now_s: float, calls: Calls) -> None:
        """Note where it is, and how long it has been there without wanting the processor."""
        before, self._calls = self._calls, calls
        used_s = time.clock_gettime(self._clock) + waited_s()
        before_s, used_before_s = self._looked
        if calls == before:
            # The sampling thread may have been late itself.
            passed_s = min(now_s - before_s, 2 * _SAMPLE_S)
            self.blocked_s += max(0.0, passed_s - (used_s - used_before_s))
        self._looked = now_s, used_s


class StallBudget:
    """Measures every callback of this process's loops, once installed."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._found: list[str] = []
        self.longest_s = 0.0
        """The duration of the longest callback, of brokers and tests; set it back at will."""
        self._runs: dict[int, _Run] = {}
        # What the collector of garbage took: most of it is that of the tests.
        self._collected_s = 0.0
        self._collecting_s = 0.0
        self._long_collection_at = float("-inf")
        self._handler = _Listener(self._found, self._has_collected)
        self._original: Any = None
        self._ended = threading.Event()

    def install(self) -> None:
        self._original = original = asyncio.Handle._run  # noqa: SLF001  (nothing else sees them)
        threads, budget_s = threading.local(), self._budget_s

        def run_measured(handle: asyncio.Handle) -> None:
            run = getattr(threads, "run", None)
            if run is None:
                run = threads.run = self._runs[threading.get_ident()] = _Run()
            run.begin()
            collected_s, cpu_s = self._collected_s, time.thread_time()
            try:
                original(handle)
            finally:
                cpu_s = time.thread_time() - cpu_s - (self._collected_s - collected_s)
                run.began_s = 0.0
                self.longest_s = max(self.longest_s, cpu_s)
                if cpu_s > budget_s or run.blocked_s > BLOCKED_FACTOR * budget_s:
                    self._judge(handle, cpu_s, run)

        asyncio.Handle._run = run_measured  # type: ignore[method-assign,assignment]  # noqa: SLF001
        logging.getLogger("quivermq.stalls").addHandler(self._handler)
        gc.callbacks.append(self._note_collection)
        threading.Thread(target=self._sample, name="stall budget", daemon=True).start()

    def remove(self) -> None:
        self._ended.set()
        gc.callbacks.remove(self._note_collection)
        asyncio.Handle._run = self._original  # type: ignore[method-assign]  # noqa: SLF001
        logging.getLogger("quivermq.stalls").removeHandler(self._handler)

    def take(self) -> list[str]:
        """The findings since the last call."""
        found = list(self._found)
        self._found.clear()
        return found

    def _note_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_s = time.thread_time()
        else:
            took_s = max(0.0, time.thread_time() - self._collecting_s)
            self._collected_s += took_s
            if took_s > self._budget_s / 4:
                self._long_collection_at = time.monotonic()

    def _has_collected(self) -> bool:
        return time.monotonic() - self._long_collection_at < _COLLECTED_LATELY_S

    def _judge(self, handle: asyncio.Handle, cpu_s: float, run: _Run) -> None:
        stack = run.stack
        if is_of_a_broker(stack):
            self._found.append(
                f"one callback worked for {cpu_s:.2f} s and was blocked for {run.blocked_s:.2f} s: "
                f"{handle!r}, seen at\n{stack}"
            )

    def _sample(self) -> None:
        """Look at callbacks that take long: where they are, and whether they wait."""
        while not self._ended.wait(_SAMPLE_S):
            now_s = time.monotonic()
            for run in list(self._runs.values()):
                began_s = run.began_s
                if not began_s or now_s - began_s < self._budget_s / 2:
                    continue
                calls = calls_of(run.thread, _CALLS_MAX)
                if calls and run.began_s == began_s:
                    run.look(now_s, calls)


class _Listener(logging.Handler):
    """Hears what the brokers' own watches say of loops whose callbacks cannot be measured."""

    def __init__(self, found: list[str], is_excused: Callable[[], bool]) -> None:
        super().__init__()
        self._found = found
        self._is_excused = is_excused

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        is_unseen = getattr(record, "loop", "").startswith("uvloop")
        if is_unseen and is_of_a_broker(text) and not self._is_excused():
            self._found.append(text)


def is_of_a_broker(stack: str) -> bool:
    """Whether a stack was seen at the work of a broker, and not at that of a test or a client."""
    inner = stack.rpartition("cluster/stall_budget.py")[2]
    return bool(_BROKER.search(inner)) and not _CLIENT.search(inner)
