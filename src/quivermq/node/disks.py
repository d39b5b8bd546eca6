"""Disks that a broker puts in front of its machine's: timed, and with deferred syncs."""

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from quivermq.batches import Buffer
from quivermq.errors import StorageFailed
from quivermq.log import SEGMENT, TEMPORARY, Disk, File
from quivermq.node.counters import Histogram


class TimedFile:
    """A file whose syncs are timed."""

    def __init__(self, file: File, took: Callable[[float], None]) -> None:
        self._sync = file.sync
        self._took = took
        self.read = file.read
        self.write = file.write
        self.allocate = file.allocate
        self.truncate = file.truncate
        self.size = file.size
        self.data_from = file.data_from

    def sync(self) -> None:
        began = time.perf_counter()
        self._sync()
        self._took(time.perf_counter() - began)


class TimedDisk:
    """A disk; `syncs` learns what each sync of a file took."""

    def __init__(self, disk: Disk, syncs: Histogram) -> None:
        self._disk = disk
        self._syncs = syncs
        # Most syncs happen in the disk thread, some where a broker starts.
        self._lock = Lock()
        self.open_to_read = disk.open_to_read
        self.names = disk.names
        self.is_folder = disk.is_folder
        self.make_folder = disk.make_folder
        self.rename = disk.rename
        self.remove = disk.remove
        self.sync_folder = disk.sync_folder

    def create(self, path: str) -> File:
        return TimedFile(self._disk.create(path), self._took)

    def open(self, path: str) -> File:
        return TimedFile(self._disk.open(path), self._took)

    def _took(self, seconds: float) -> None:
        with self._lock:
            self._syncs.observe(seconds)


_MAKING: Final = SEGMENT + TEMPORARY
"""How a segment's name ends until it is complete."""


class DeferredFile:
    """A segment whose `sync` only remembers that there is something to sync."""

    def __init__(self, file: File, unsynced: "dict[DeferredFile, None]") -> None:
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
        self._unsynced[self] = None

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

    def __init__(self, file: File, unsynced: dict[DeferredFile, None]) -> None:
        super().__init__(file, unsynced)
        self._is_made = False

    def sync(self) -> None:
        if self._is_made:
            super().sync()
        else:
            self._file.sync()
            self._is_made = True


class DeferredSyncDisk(TimedDisk):
    """A disk with segments that are synced when `sync_now` is called."""

    def __init__(self, disk: Disk, syncs: Histogram) -> None:
        super().__init__(disk, syncs)
        # In the order in which they were written.
        self._unsynced: dict[DeferredFile, None] = {}

    def create(self, path: str) -> File:
        file = super().create(path)
        return FreshFile(file, self._unsynced) if path.endswith(_MAKING) else file

    def open(self, path: str) -> File:
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
        self._unsynced.pop(file, None)
        try:
            file.sync_now()
        except StorageFailed as error:
            return error
        return None
