"""A disk that keeps count of how long its syncs take."""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from quivermq.log import RealDisk
from quivermq.log.real_disk import RealFile
from quivermq.node.figures import Histogram


class TimedFile(RealFile):
    """A file whose syncs are timed."""

    def __init__(self, path: Path, flags: int, took: Callable[[float], None]) -> None:
        super().__init__(path, flags)
        self._took = took

    def sync(self) -> None:
        began = time.perf_counter()
        super().sync()
        self._took(time.perf_counter() - began)


class TimedDisk(RealDisk):
    """The real disk; `syncs` learns what each sync of a file took."""

    def __init__(self, root: Path | str, syncs: Histogram) -> None:
        super().__init__(root)
        self._syncs = syncs
        # Most syncs happen in the disk thread, some where a broker starts.
        self._lock = Lock()

    def file(self, path: str, flags: int) -> RealFile:
        return TimedFile(self.place / path, flags, self._took)

    def _took(self, seconds: float) -> None:
        with self._lock:
            self._syncs.observe(seconds)
