"""Lets a program use a `FaultyDisk` through a socket, where no file system can be mounted.

A request and its answer are each a header, in JSON, and bytes: `[name, arguments]` with the data of
a write; `[error number, value]` with the data of a read.
"""

import errno
import json
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from quivermq.batches import Buffer
from quivermq.errors import StorageFailed, StorageFull
from quivermq.log import THIS_SYSTEM, Unreadable
from quivermq.testing.disks.faulty_disk import FaultyDisk, StoredFile

_SIZES: Final = struct.Struct("<II")


class _Connection:
    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def __del__(self) -> None:
        self.socket.close()

    def send(self, header: Any, data: bytes = b"") -> None:
        text = json.dumps(header).encode()
        self.socket.sendall(_SIZES.pack(len(text), len(data)) + text + data)

    def receive(self) -> tuple[Any, bytes]:
        text_size, data_size = _SIZES.unpack(self._take(_SIZES.size))
        return json.loads(self._take(text_size)), self._take(data_size)

    def _take(self, size: int) -> bytes:
        taken = bytearray()
        while len(taken) < size:
            more = self.socket.recv(size - len(taken))
            if not more:
                raise EOFError("the other end of the disk's socket is gone")
            taken += more
        return bytes(taken)


class SocketDoor:
    """Serves one program after another: a dead one's last words are heard before the next comes."""

    def __init__(self, disk: FaultyDisk, place: Path) -> None:
        self._disk = disk
        self._place = place
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place))
        self._listener.listen()
        self._numbers = count(1)
        self._open: dict[int, StoredFile] = {}
        threading.Thread(target=self._serve, name=f"disk {place}", daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        self._place.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            with end, suppress(OSError, EOFError):
                self._serve_one(_Connection(end), self._disk.life)
            self._close_files(list(self._open))

    def _serve_one(self, connection: _Connection, life: int) -> None:
        while True:
            (name, arguments, closed), data = connection.receive()
            number = 0
            value: Any = None
            with self._disk.lock:
                if life != self._disk.life:
                    return
                self._close_files(closed)
                try:
                    value = getattr(self, f"_do_{name}")(*arguments, *([data] if data else ()))
                except OSError as error:
                    number = error.errno or errno.EIO
            if isinstance(value, bytes):
                connection.send([number, None], value)
            else:
                connection.send([number, value])

    def _close_files(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self._disk.close(self._open.pop(handle))

    def _path(self, path: str) -> Path:
        return self._disk.root / path

    def _do_open(self, path: str, flags: int) -> int:
        handle = next(self._numbers)
        self._open[handle] = self._disk.open(path, flags)
        return handle

    def _do_read(self, handle: int, at: int, size: int) -> bytes:
        return self._disk.read(self._open[handle], at, size)

    def _do_write(self, handle: int, at: int, data: bytes = b"") -> None:
        self._disk.write(self._open[handle], at, data)

    def _do_sync(self, handle: int) -> None:
        self._disk.sync(self._open[handle])

    def _do_allocate(self, handle: int, size: int) -> None:
        self._disk.allocate(self._open[handle], size)

    def _do_truncate(self, handle: int, size: int) -> None:
        self._disk.truncate(self._open[handle], size)

    def _do_size(self, handle: int) -> int:
        return self._open[handle].size

    def _do_data_from(self, handle: int, at: int) -> int | None:
        if THIS_SYSTEM.seek_data is None:
            return at if at < self._open[handle].size else None
        try:
            return os.lseek(self._open[handle].descriptor, at, THIS_SYSTEM.seek_data)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def _do_names(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in self._path(folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _do_is_folder(self, path: str) -> bool:
        return self._path(path).is_dir()

    def _do_make_folder(self, path: str) -> None:
        self._disk.root.mkdir(parents=True, exist_ok=True)
        parts = path.split("/") if path else []
        for end in range(1, len(parts) + 1):
            above = "/".join(parts[:end])
            if not self._path(above).is_dir():
                self._disk.make_folder(above)

    def _do_rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def _do_remove(self, path: str) -> None:
        if self._path(path).is_dir():
            for name in self._do_names(path):
                self._do_remove(f"{path}/{name}")
            self._disk.remove_folder(path)
        elif self._path(path).exists():
            self._disk.remove_file(path)

    def _do_sync_folder(self, path: str) -> None:
        self._disk.sync_folder(path)


class RemoteFile:
    """An open file of a `RemoteDisk`."""

    def __init__(self, disk: "RemoteDisk", path: str, flags: int) -> None:
        self._disk = disk
        self._path = path
        self._handle: int | None = None
        self._handle = disk.ask("open", path, path, flags)

    def __del__(self) -> None:
        if self._handle is not None:
            self._disk.closed.append(self._handle)

    def read(self, at: int, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._ask("read", at + len(data), size - len(data))
            if not more:
                break
            data += more
        return bytes(data)

    def write(self, at: int, buffers: Sequence[Buffer]) -> None:
        self._ask("write", at, data=b"".join(buffers))

    def sync(self) -> None:
        self._ask("sync")

    def allocate(self, size: int) -> None:
        self._ask("allocate", size)

    def truncate(self, size: int) -> None:
        self._ask("truncate", size)

    def size(self) -> int:
        size: int = self._ask("size")
        return size

    def data_from(self, at: int) -> int | None:
        found: int | None = self._ask("data_from", at)
        return found

    def _ask(self, name: str, *arguments: Any, data: bytes = b"") -> Any:
        return self._disk.ask(name, self._path, self._handle, *arguments, data=data)


class RemoteDisk:
    """The `Disk` of a program that reaches it through a socket."""

    def __init__(self, place: Path | str) -> None:
        end = socket.socket(socket.AF_UNIX)
        end.connect(str(place))
        self._connection = _Connection(end)
        self._lock = threading.Lock()
        self.closed: deque[int] = deque()
        """Files to close with the next request: a destructor must not wait for one."""

    def names(self, folder: str) -> list[str]:
        names: list[str] = self.ask("names", folder, folder)
        return names

    def is_folder(self, path: str) -> bool:
        is_folder: bool = self.ask("is_folder", path, path)
        return is_folder

    def make_folder(self, path: str) -> None:
        self.ask("make_folder", path, path)

    def remove(self, path: str) -> None:
        self.ask("remove", path, path)

    def sync_folder(self, path: str) -> None:
        self.ask("sync_folder", path, path)

    def create(self, path: str) -> RemoteFile:
        return RemoteFile(self, path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open(self, path: str) -> RemoteFile:
        return RemoteFile(self, path, os.O_RDWR)

    def open_to_read(self, path: str) -> RemoteFile:
        return RemoteFile(self, path, os.O_RDONLY)

    def rename(self, old: str, new: str) -> None:
        self.ask("rename", old, old, new)

    def ask(self, name: str, path: str, *arguments: Any, data: bytes = b"") -> Any:
        """Ask for an operation; raises what a `Disk` raises, naming the path."""
        with self._lock:
            closed = [self.closed.popleft() for _ in range(len(self.closed))]
            self._connection.send([name, arguments, closed], data)
            (number, value), read = self._connection.receive()
        if number:
            raise _error(name, path, number)
        return read if name == "read" else value


def _error(name: str, path: str, number: int) -> StorageFailed:
    kind: type[StorageFailed] = StorageFailed
    if number == errno.ENOSPC:
        kind = StorageFull
    elif number == errno.EIO and name in {"open", "read", "data_from"}:
        kind = Unreadable
    return kind(f"cannot {name} {path}: {os.strerror(number)}")
