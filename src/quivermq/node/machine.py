"""The machine that a broker runs on, as far as it is more than clocks, chance and sockets.

The simulator gives brokers machines of its own: with a disk in memory, and work that threads would
do done at times that a seed decides.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quivermq.busy_poll import LoopPoll
from quivermq.errors import StorageFailed
from quivermq.log import Disk, RealDisk
from quivermq.node.disk_thread import DiskThread
from quivermq.node.loop_watch import LoopWatch, Stalls
from quivermq.tracing import broker_tracer

if TYPE_CHECKING:
    from quivermq.tracing import BrokerTracer

logger = logging.getLogger("quivermq.broker")

_LOCK: Final = "lock"


class Machine:
    """The one that this process runs on."""

    def open_disk(self, data_dir: str) -> Disk:
        return RealDisk(data_dir)

    def lock(self, data_dir: str) -> Callable[[], None]:
        """Take a data directory for this process alone; returns how to let go of it."""
        path = Path(data_dir) / _LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageFailed(f"cannot open {path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise StorageFailed(
                f"another process uses {data_dir}: stop it, or name another --data-dir"
            ) from None
        if path.with_name(_LOCK.upper()).exists():
            logger.warning(
                "%s is on a file system that takes A for a: topics whose names differ in nothing "
                "else cannot both be kept here",
                data_dir,
            )
        return partial(os.close, descriptor)

    def start_disk_thread(self) -> DiskThread:
        thread = DiskThread(asyncio.get_running_loop(), "quiver-disk")
        thread.start()
        return thread

    def start_tracer(self, node: int) -> "BrokerTracer":
        """Trace; raises `InvalidRequest` if what that needs is not installed."""
        return broker_tracer(node)

    def poll_busily(self, window_s: float) -> LoopPoll:
        """Keep the event loop awake for so long where something is expected."""
        return LoopPoll(asyncio.get_running_loop(), window_s)

    def watch_loop(self, budget_s: float, stalls: Stalls) -> LoopWatch | None:
        """Count what holds the event loop for longer than the budget."""
        watch = LoopWatch(budget_s, stalls)
        watch.start()
        return watch
