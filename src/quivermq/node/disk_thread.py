"""Writes to a data directory in a thread, so that the event loop never waits for a disk.

While the work of a log is under way, further work for it gathers, and is then written and synced as
one: the slower the disk, the more gathers. The work of many logs that waits at the same time is
done at the same time: one after the other, a thousand elections would wait for a thousand votes to
be synced, while a disk syncs dozens as fast as one.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, TypeVar

logger = logging.getLogger("quivermq.disk")

S = TypeVar("S")
T = TypeVar("T")
Outcome = tuple[Callable[[object], None], object]

HELPERS_MAX: Final = 16


class _Job(NamedTuple):
    work: Callable[[], object]
    done: Callable[[object], None]
    key: Hashable | None = None


_END: Final = _Job(lambda: None, lambda _: None)


class DiskThread:
    """Jobs in, outcomes back on the event loop. `start` it first.

    In order, except for jobs that have a key: neighbours with different keys may be done together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._outcomes: deque[Outcome] = deque()
        self._is_told = False
        self._is_closed = False
        self._helpers = ThreadPoolExecutor(HELPERS_MAX, thread_name_prefix=name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(
        self,
        work: Callable[[], object],
        done: Callable[[object], None],
        key: Hashable | None = None,
    ) -> None:
        """Do `work` in the thread, then `done(result or exception)` on the loop."""
        self._jobs.put(_Job(work, done, key))

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` in the thread, behind all that was submitted before, and wait for it."""
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: object) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        self.submit(work, done)
        return await future

    def together(self, work: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """For jobs that consist of many: `work` for each item, at the same time, in the thread."""
        return list(self._helpers.map(work, items))

    async def aside(self, work: Callable[[], T]) -> T:
        """Do `work` beside the thread, which goes on: for long work that no request waits for."""
        return await self._loop.run_in_executor(self._helpers, work)

    def submit_aside(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """The same without waiting: then `done(result or exception)` on the loop."""
        if not self._is_closed:
            self._helpers.submit(self._do, _Job(work, done))

    async def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        if self._is_closed:
            return
        await self.run(lambda: None)
        self._is_closed = True
        self._jobs.put(_END)
        self._thread.join()
        self._helpers.shutdown()

    def _run(self) -> None:
        waiting = self._jobs.get()
        while waiting is not _END:
            together, behind = self._neighbours(waiting)
            if len(together) == 1:
                self._do(waiting)
            else:
                # Taken to its end before anything else is begun.
                list(self._helpers.map(self._do, together))
            waiting = behind or self._jobs.get()

    def _neighbours(self, first: _Job) -> tuple[list[_Job], _Job | None]:
        """`first` and what waits and may be done with it; and the job behind them, if one waits."""
        together = [first]
        keys = {first.key}
        while first.key is not None:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job.key is None or job.key in keys:
                return together, job
            together.append(job)
            keys.add(job.key)
        return together, None

    def _do(self, job: _Job) -> None:
        try:
            result: object = job.work()
        except BaseException as error:
            result = error
        self._outcomes.append((job.done, result))
        if not self._is_told:
            self._is_told = True
            try:
                self._loop.call_soon_threadsafe(self._tell)
            except RuntimeError:
                return  # The loop is closed: no callback can run.

    def _tell(self) -> None:
        self._is_told = False
        while self._outcomes:
            done, result = self._outcomes.popleft()
            try:
                done(result)
            except Exception:
                # The others wait for theirs.
                logger.exception("the outcome of disk work could not be told")
