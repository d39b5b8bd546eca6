"""Decides when a broker's process collects garbage in cycles.

Python's full collections walk over every object that there is. With ten thousand partitions that
holds the event loop for hundreds of milliseconds, mostly for nothing: a broker's state has no
cycles. Young objects, among them the few cycles that exceptions and tasks leave, are collected as
ever. What outlived that is looked through only once the process has grown, so memory stays
bounded.
"""

import asyncio
import gc
import logging
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

logger = logging.getLogger("quivermq.garbage")

YOUNG_OBJECTS: Final = 10_000
YOUNG_ROUNDS: Final = 10
NEVER: Final = 1_000_000_000
GROWTH: Final = 1.5
GROWTH_BYTES_MIN: Final = 256 << 20
"""A process that is so many times as large as after the last full collection, and by so many bytes
larger, is due for the next."""
LOOK_S: Final = 30.0


class GarbagePolicy:
    """Of a process that runs one broker. Applies from `start` on, for as long as the loop runs."""

    def __init__(self, memory_bytes: Callable[[], int] | None = None) -> None:
        self._memory_bytes = memory_bytes or resident_bytes
        self._after_full = 0
        self.full_collections = 0

    def start(self) -> None:
        """Freeze what was made so far, modules mostly: it is never looked at again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, NEVER)
        self._after_full = self._memory_bytes()
        self._look_later()

    def _look_later(self) -> None:
        asyncio.get_running_loop().call_later(LOOK_S, self.look)

    def look(self) -> None:
        """Collect everything if the process has grown enough."""
        due_bytes = max(self._after_full * GROWTH, self._after_full + GROWTH_BYTES_MIN)
        if self._memory_bytes() > due_bytes:
            began = time.monotonic()
            found = gc.collect()
            self._after_full = self._memory_bytes()
            self.full_collections += 1
            logger.info(
                "a full garbage collection found %d objects in %.2f s; the process takes %d MiB",
                found,
                time.monotonic() - began,
                self._after_full >> 20,
            )
        self._look_later()


def resident_bytes() -> int:
    """The memory of this process; where the system does not tell, the most that it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()
