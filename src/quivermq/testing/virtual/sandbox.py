"""Puts virtual clocks and seeded chance in the place of the system's, while a simulation runs.

Code that runs in a simulated process is the same as in production: it asks `time` for the time, and
the system for random bytes. Inside the `with` of `sandbox()` these answer by the process whose
event loop is running, and as always where none is. So nothing has to be handed down through all
layers, and code that is written later cannot forget to ask.
"""

import gc
import os
import random
import sys
import time
import warnings
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from quivermq import log_context
from quivermq.testing.virtual.loop import VirtualLoop
from quivermq.testing.virtual.process import Process

_get_running_loop = events._get_running_loop  # noqa: SLF001  (what loops use)


def _by_process(
    of_process: Callable[..., Any], of_system: Callable[..., Any]
) -> Callable[..., Any]:
    def answer(*args: Any) -> Any:
        loop = _get_running_loop()
        return of_process(loop.process, *args) if type(loop) is VirtualLoop else of_system(*args)

    return answer


def _in_ns(seconds: float) -> int:
    return round(seconds * 1_000_000) * 1_000


_ANSWERS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (time, "time", Process.wall_s),
    (time, "time_ns", lambda process: _in_ns(process.wall_s())),
    (time, "monotonic", Process.steady_s),
    (time, "monotonic_ns", lambda process: _in_ns(process.steady_s())),
    (time, "clock_gettime", lambda process, _: process.steady_s()),
    (time, "clock_gettime_ns", lambda process, _: _in_ns(process.steady_s())),
    (time, "perf_counter", Process.count_work_s),
    (os, "urandom", lambda process, size: process.dice.randbytes(size)),
    (random, "_urandom", lambda process, size: process.dice.randbytes(size)),
    (os, "getpid", lambda process: process.number),
)


@contextmanager
def sandbox() -> Iterator[None]:
    """Simulated processes see their own clocks, chance and process number, and all have one name:
    clients say theirs."""
    arguments, sys.argv = sys.argv, ["simulated"]
    ids = log_context._START, log_context._numbers  # noqa: SLF001  (requests have ids of these)
    _set_ids("simulated", count(1))
    before = [(module, name, getattr(module, name)) for module, name, _ in _ANSWERS]
    for (module, name, answer), (_, _, of_system) in zip(_ANSWERS, before, strict=True):
        setattr(module, name, _by_process(answer, of_system))
    try:
        yield
    finally:
        sys.argv = arguments
        _set_ids(*ids)
        for module, name, of_system in before:
            setattr(module, name, of_system)


def _set_ids(start: str, numbers: "count[int]") -> None:
    vars(log_context).update(_START=start, _numbers=numbers)


@contextmanager
def without_collection() -> Iterator[None]:
    """Nothing is collected in a run: what `__del__` does would happen at moments that depend on
    other runs. Afterwards the tasks of killed processes are closed, and complain of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def silently() -> Iterator[None]:
    """Around the end of simulated processes: their tasks are closed in the middle of something."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
            gc.collect()
            # Closing them leaves more of them.
            gc.collect()
    finally:
        sys.unraisablehook = hook
