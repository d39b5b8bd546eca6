"""The real disk: POSIX calls below one root folder."""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from quivermq.batches import Buffer
from quivermq.errors import StorageFailed, StorageFull

_NO_SPACE: Final = {errno.ENOSPC, errno.EDQUOT}
_BUFFERS_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024)


class RealFile:
    """An open file descriptor."""

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        self._descriptor = -1
        with _translated("open", path):
            self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        # The last reference closes, so that a reader in another thread never loses its file.
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def read(self, at: int, size: int) -> bytes:
        with _translated("read", self._path):
            data = os.pread(self._descriptor, size, at)
            while len(data) < size:
                more = os.pread(self._descriptor, size - len(data), at + len(data))
                if not more:
                    break
                data += more
            return data

    def write(self, at: int, buffers: Sequence[Buffer]) -> None:
        with _translated("write", self._path):
            for start in range(0, len(buffers), _BUFFERS_MAX):
                at = self._write_group(at, buffers[start : start + _BUFFERS_MAX])

    def _write_group(self, at: int, buffers: Sequence[Buffer]) -> int:
        total = sum(map(len, buffers))
        written = os.pwritev(self._descriptor, buffers, at)
        if written < total:
            # Rare: a signal, or the last bytes before the disk is full. One buffer from here on.
            rest = memoryview(b"".join(buffers))
            while written < total:
                written += os.pwrite(self._descriptor, rest[written:], at + written)
        return at + total

    def sync(self) -> None:
        with _translated("fsync", self._path):
            _sync(self._descriptor)

    def allocate(self, size: int) -> None:
        with _translated("allocate", self._path):
            old = os.fstat(self._descriptor).st_size
            if size <= old:
                return
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._descriptor, old, size - old)
            else:
                os.ftruncate(self._descriptor, size)

    def truncate(self, size: int) -> None:
        with _translated("truncate", self._path):
            os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        with _translated("stat", self._path):
            return os.fstat(self._descriptor).st_size

    def data_from(self, at: int) -> int | None:
        with _translated("seek in", self._path):
            try:
                return os.lseek(self._descriptor, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return None
                if error.errno in {errno.EINVAL, errno.ENOTSUP}:
                    return at if at < os.fstat(self._descriptor).st_size else None
                raise


class RealDisk:
    """The files below a root folder."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def create(self, path: str) -> RealFile:
        return RealFile(self.root / path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open(self, path: str) -> RealFile:
        return RealFile(self.root / path, os.O_RDWR)

    def names(self, folder: str) -> list[str]:
        with _translated("list", self.root / folder):
            try:
                return sorted(entry.name for entry in (self.root / folder).iterdir())
            except (FileNotFoundError, NotADirectoryError):
                return []

    def is_folder(self, path: str) -> bool:
        return (self.root / path).is_dir()

    def make_folder(self, path: str) -> None:
        with _translated("make", self.root / path):
            (self.root / path).mkdir(parents=True, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        with _translated("rename", self.root / old):
            (self.root / old).replace(self.root / new)

    def remove(self, path: str) -> None:
        target = self.root / path
        with _translated("remove", target):
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)

    def sync_folder(self, path: str) -> None:
        with _translated("fsync", self.root / path):
            descriptor = os.open(self.root / path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class ReadOnlyDisk(RealDisk):
    """The same files, for tools that look and never touch."""

    def open(self, path: str) -> RealFile:
        return RealFile(self.root / path, os.O_RDONLY)


@contextmanager
def _translated(what: str, path: Path) -> Iterator[None]:
    """The one place where the operating system's errors become ours."""
    try:
        yield
    except OSError as error:
        kind = StorageFull if error.errno in _NO_SPACE else StorageFailed
        raise kind(f"cannot {what} {path}: {error.strerror or error}") from error


def _sync(descriptor: int) -> None:
    with suppress(ImportError):
        import fcntl  # noqa: PLC0415  (absent on some platforms)

        if hasattr(fcntl, "F_FULLFSYNC"):
            # macOS: fsync alone leaves the data in the drive's cache.
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fdatasync(descriptor)
