"""Disks that a broker puts in front of the real one: timed, and with deferred syncs."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from quivermq.batches import Buffer
from quivermq.errors import StorageFailed
from quivermq.log import SEGMENT, TEMPORARY, File, RealDisk, RealFile
from quivermq.node.counters import Histogram


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


_MAKING: Final = SEGMENT + TEMPORARY
"""How a segment's name ends until it is complete."""


class DeferredFile:
    """A segment whose `sync` only remembers that there is something to sync."""

    def __init__(self, file: File, unsynced: "set[DeferredFile]") -> None:
        self._file = file
        self._unsynced = unsynced
        self._failure = ""
        self.read = file.read
        self.allocate = file.allocate
        self.truncate = file.truncate
        self.size = file.size
        self.data_from = file.data_from

    def write(self, at: int, buffers: Sequence[Buffer]) -> None:
        self._check()
        self._file.write(at, buffers)

    def sync(self) -> None:
        self._check()
        self._unsynced.add(self)

    def sync_now(self) -> None:
        """The sync that was put off. If it fails, the log that writes here learns it at its next
        word: it is not known what the disk holds."""
        try:
            self._file.sync()
        except StorageFailed as error:
            self._failure = str(error)
            raise

    def _check(self) -> None:
        if self._failure:
            raise StorageFailed(f"an earlier sync failed: {self._failure}")


class FreshFile(DeferredFile):
    """A segment that is being made: its first sync counts, because a segment without its header
    would be taken for damage."""

    def __init__(self, file: File, unsynced: set[DeferredFile]) -> None:
        super().__init__(file, unsynced)
        self._is_made = False

    def sync(self) -> None:
        if self._is_made:
            super().sync()
        else:
            self._file.sync()
            self._is_made = True


class DeferredSyncDisk(TimedDisk):
    """The real disk, with segments synced when `sync_now` is called."""

    def __init__(self, root: Path | str, syncs: Histogram) -> None:
        super().__init__(root, syncs)
        self._unsynced: set[DeferredFile] = set()

    def create(self, path: str) -> File:  # type: ignore[override]
        file = super().create(path)
        return FreshFile(file, self._unsynced) if path.endswith(_MAKING) else file

    def open(self, path: str) -> File:  # type: ignore[override]
        file = super().open(path)
        return DeferredFile(file, self._unsynced) if path.endswith(SEGMENT) else file

    def forget(self) -> None:
        """Let the system write when it likes."""
        self._unsynced.clear()

    def sync_now(self) -> None:
        """Make everything durable that was written until now, and nothing that is written
        meanwhile. Raises the first failure, at the end."""
        failed = [error for file in self.unsynced() if (error := self.sync_one(file)) is not None]
        if failed:
            raise failed[0]

    def unsynced(self) -> list[DeferredFile]:
        """Files to sync by now; what comes later is for the next time."""
        return list(self._unsynced)

    def sync_one(self, file: DeferredFile) -> StorageFailed | None:
        """Sync one of them; returns why that failed, which its log learns too."""
        # Forgotten first: what is written while it is synced is for the next time.
        self._unsynced.discard(file)
        try:
            file.sync_now()
        except StorageFailed as error:
            return error
        return None
