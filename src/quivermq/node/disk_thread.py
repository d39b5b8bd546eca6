"""The one thread that writes to a data directory. The event loop never waits for a disk.

While a group's work is under way, whatever the group wants next gathers, and is then written and
synced as one: the slower the disk, the larger the groups.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

logger = logging.getLogger("quivermq.disk")

T = TypeVar("T")
Outcome = tuple[Callable[[object], None], object]


class DiskThread:
    """Jobs in, outcomes back on the event loop, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[Callable[[], object], Callable[[object], None]] | None] = (
            SimpleQueue()
        )
        self._outcomes: deque[Outcome] = deque()
        self._is_told = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], object], done: Callable[[object], None]) -> None:
        """Do `job` in the thread, then `done(result or exception)` on the loop."""
        self._jobs.put((job, done))

    async def run(self, job: Callable[[], T]) -> T:
        """Do `job` in the thread and wait for it."""
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: object) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        self.submit(job, done)
        return await future

    async def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        if self._is_closed:
            return
        await self.run(lambda: None)
        self._is_closed = True
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._jobs.get()) is not None:
            job, done = work
            try:
                result: object = job()
            except BaseException as error:
                result = error
            self._outcomes.append((done, result))
            if not self._is_told:
                self._is_told = True
                try:
                    self._loop.call_soon_threadsafe(self._tell)
                except RuntimeError:
                    return  # The loop is closed: nobody is left to be told.

    def _tell(self) -> None:
        self._is_told = False
        while self._outcomes:
            done, result = self._outcomes.popleft()
            try:
                done(result)
            except Exception:
                # The others wait for theirs.
                logger.exception("the outcome of disk work could not be told")
