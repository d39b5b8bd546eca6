"""The real disk: POSIX calls below one root folder."""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from quivermq.batches import Buffer
from quivermq.errors import StorageFailed, StorageFull
from quivermq.log.disk import Unreadable
from quivermq.log.system_calls import THIS_SYSTEM, SystemCalls

_NO_SPACE: Final = {errno.ENOSPC, errno.EDQUOT}
# A bad sector, a failed checksum of the file system or of the device, a lost extent.
_LOST_NAMES: Final = ("EIO", "EBADMSG", "EUCLEAN", "EILSEQ", "ENODATA", "EREMOTEIO")
_LOST: Final = {getattr(errno, name) for name in _LOST_NAMES if hasattr(errno, name)}
_READING: Final = {"read", "seek in", "open"}
_BUFFERS_MAX: Final = min(os.sysconf("SC_IOV_MAX"), 1024)

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Placed(Protocol):
    """Something below a folder, to be named in an error."""

    @property
    def place(self) -> Path: ...


_S = TypeVar("_S", bound=_Placed)
_Method = Callable[Concatenate[_S, _P], _R]


def _translating(verb: str) -> Callable[[_Method[_S, _P, _R]], _Method[_S, _P, _R]]:
    """The one place where the operating system's errors become ours."""

    def decorate(method: _Method[_S, _P, _R]) -> _Method[_S, _P, _R]:
        @wraps(method)
        def translated(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return method(self, *args, **kwargs)
            except OSError as error:
                kind = StorageFull if error.errno in _NO_SPACE else StorageFailed
                if verb in _READING and error.errno in _LOST:
                    kind = Unreadable
                where = error.filename or self.place
                raise kind(f"cannot {verb} {where}: {error.strerror or error}") from error

        return translated

    return decorate


class RealFile:
    """An open file descriptor."""

    def __init__(self, path: Path, flags: int, calls: SystemCalls = THIS_SYSTEM) -> None:
        self._descriptor = -1
        self._calls = calls
        self.place = path
        self._open(flags)

    @_translating("open")
    def _open(self, flags: int) -> None:
        self._descriptor = os.open(self.place, flags | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        # The last reference closes, so that a reader in another thread never loses its file.
        if self._descriptor >= 0:
            os.close(self._descriptor)

    @_translating("read")
    def read(self, at: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, at)
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), at + len(data))
            if not more:
                break
            data += more
        return data

    @_translating("write")
    def write(self, at: int, buffers: Sequence[Buffer]) -> None:
        for start in range(0, len(buffers), _BUFFERS_MAX):
            group = buffers[start : start + _BUFFERS_MAX]
            total = sum(map(len, group))
            written = self._calls.write(self._descriptor, group, at)
            if written < total:
                # Rare: a signal, or the last bytes before the disk is full.
                rest = memoryview(b"".join(group))
                while written < total:
                    written += os.pwrite(self._descriptor, rest[written:], at + written)
            at += total

    @_translating("fsync")
    def sync(self) -> None:
        self._calls.sync(self._descriptor)

    @_translating("allocate")
    def allocate(self, size: int) -> None:
        old = os.fstat(self._descriptor).st_size
        if size > old:
            self._calls.allocate(self._descriptor, old, size - old)

    @_translating("truncate")
    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    @_translating("stat")
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    @_translating("seek in")
    def data_from(self, at: int) -> int | None:
        if self._calls.seek_data is not None:
            try:
                return os.lseek(self._descriptor, at, self._calls.seek_data)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return None
                if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
                    raise
        return at if at < os.fstat(self._descriptor).st_size else None


class RealDisk:
    """The files below a root folder."""

    def __init__(self, root: Path | str, calls: SystemCalls = THIS_SYSTEM) -> None:
        self.place = Path(root)
        self._calls = calls

    def file(self, path: str, flags: int) -> RealFile:
        """An open file; every one comes from here."""
        return RealFile(self.place / path, flags, self._calls)

    def create(self, path: str) -> RealFile:
        return self.file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open(self, path: str) -> RealFile:
        return self.file(path, os.O_RDWR)

    def open_to_read(self, path: str) -> RealFile:
        return self.file(path, os.O_RDONLY)

    @_translating("list")
    def names(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in (self.place / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    @_translating("look at")
    def is_folder(self, path: str) -> bool:
        return (self.place / path).is_dir()

    @_translating("make")
    def make_folder(self, path: str) -> None:
        (self.place / path).mkdir(parents=True, exist_ok=True)

    @_translating("rename")
    def rename(self, old: str, new: str) -> None:
        (self.place / old).replace(self.place / new)

    @_translating("remove")
    def remove(self, path: str) -> None:
        target = self.place / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    @_translating("fsync")
    def sync_folder(self, path: str) -> None:
        descriptor = os.open(self.place / path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._calls.sync_folder(descriptor)
        finally:
            os.close(descriptor)


class ReadOnlyDisk(RealDisk):
    """The same files, for tools that look and never touch."""

    def open(self, path: str) -> RealFile:
        return self.open_to_read(path)
