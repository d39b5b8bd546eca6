"""Mounts a `FaultyDisk` as a file system, by the kernel's FUSE protocol.

The protocol is spoken to `/dev/fuse` directly: no library and no command is needed, but Linux and
root. Nothing is cached by the kernel (`FOPEN_DIRECT_IO`, names and attributes valid for 0 s), so
each operation of a program meets the disk as it is at that moment.

The structures are those of `include/uapi/linux/fuse.h`, version 7.31.
"""

import ctypes
import errno
import logging
import os
import stat
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from quivermq.testing.disks.faulty_disk import FaultyDisk, StoredFile

logger = logging.getLogger("quivermq.testing")

_DEVICE: Final = Path("/dev/fuse")
_TYPE: Final = "fuse.quiver"
_PREFIX: Final = "quiver-"
_MS_NOSUID_NODEV: Final = 6
_MNT_DETACH: Final = 2
_ROOT: Final = 1
_WRITE_BYTES: Final = 1 << 20
_PAGES: Final = _WRITE_BYTES // 4096
_DIRECT_IO: Final = 1
_INIT_FLAGS: Final = 1 << 3 | 1 << 5 | 1 << 22  # atomic O_TRUNC, big writes, max_pages
_SET_SIZE: Final = 1 << 3

_REQUEST: Final = struct.Struct("<IIQQIIIHH")
_REPLY: Final = struct.Struct("<IiQ")
_ATTRIBUTES: Final = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY: Final = struct.Struct("<QQQQII")
_VALID: Final = struct.Struct("<QII")
_OPENED: Final = struct.Struct("<QII")
_INIT: Final = struct.Struct("<IIIIHHIIHHI28x")
_STATFS: Final = struct.Struct("<QQQQQIIII24x")
_TRANSFER: Final = struct.Struct("<QQIIQII")
_DIRENT: Final = struct.Struct("<QQII")


def why_no_fuse() -> str:
    """Why no file system of ours can be mounted here; empty if one can."""
    if sys.platform != "linux":
        return "FUSE exists on Linux only"
    if os.geteuid() != 0:
        return "mounting needs root"
    try:
        os.close(os.open(_DEVICE, os.O_RDWR))
    except OSError as error:
        return f"cannot open {_DEVICE}: {error.strerror}"
    return _why_no_mount()


def _why_no_mount() -> str:
    """A container may have the device and not the right to mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Without options the kernel refuses the call with EINVAL, but only to those who may mount.
    libc.mount(b"quiver", b"/", b"fuse", 0, b"")
    number = ctypes.get_errno()
    return "" if number == errno.EINVAL else f"cannot mount: {os.strerror(number)}"


def unmount_left_over() -> None:
    """Unmount file systems of processes that ended without doing so."""
    for line in Path("/proc/mounts").read_text().splitlines():
        source, place, kind, *_ = line.split()
        owner = source.removeprefix(_PREFIX)
        if kind == _TYPE and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with suppress(OSError):
                _unmount(place)


def _unmount(place: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(place.encode(), _MNT_DETACH):
        raise OSError(ctypes.get_errno(), f"cannot unmount {place}")


@dataclass(slots=True, eq=False)
class _Name:
    """An inode of the kernel: a name below another one, or none any more."""

    parent: int
    name: str
    file: StoredFile | None = None
    """While it is open."""


class FuseDoor:
    """A mounted disk."""

    def __init__(self, disk: FaultyDisk, place: Path) -> None:
        self._disk = disk
        self._place = place
        self._numbers = count(_ROOT + 1)
        self._names: dict[int, _Name] = {}
        self._children: dict[tuple[int, str], int] = {}
        self._open: dict[int, StoredFile] = {}
        self._listings: dict[int, bytes] = {}
        self._life = disk.life
        self._answers = self._make_answers()
        place.mkdir(parents=True, exist_ok=True)
        self._device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
        self._mount()
        threading.Thread(target=self._serve, name=f"fuse {place}", daemon=True).start()

    def _mount(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,default_permissions"
        source, place = f"{_PREFIX}{os.getpid()}", str(self._place)
        if libc.mount(
            source.encode(), place.encode(), _TYPE.encode(), _MS_NOSUID_NODEV, options.encode()
        ):
            number = ctypes.get_errno()
            os.close(self._device)
            raise OSError(number, f"cannot mount {place}: {os.strerror(number)}")

    def close(self) -> None:
        """Unmount. Programs that still use it get errors once this process ends."""
        with suppress(OSError):
            _unmount(str(self._place))

    # Requests.

    def _make_answers(self) -> dict[int, Callable[[int, memoryview], bytes]]:
        return {
            1: self._lookup,
            3: self._get_attributes,
            4: self._set_attributes,
            9: self._make_folder,
            10: self._remove_file,
            11: self._remove_folder,
            12: self._rename,
            14: self._open_file,
            15: self._read,
            16: self._write,
            17: self._statfs,
            18: self._release,
            20: self._sync,
            25: lambda _node, _body: b"",
            26: self._init,
            27: self._open_folder,
            28: self._read_folder,
            29: self._release_folder,
            30: self._sync_folder,
            35: self._create,
            43: self._allocate,
            45: self._rename_with_flags,
            46: self._seek,
        }

    def _serve(self) -> None:
        buffer = bytearray(_WRITE_BYTES + 65_536)
        view = memoryview(buffer)
        while True:
            try:
                size = os.readv(self._device, [buffer])
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.EINTR, errno.EAGAIN}:
                    continue
                # ENODEV: unmounted.
                os.close(self._device)
                return
            self._answer(view[:size])

    def _answer(self, request: memoryview) -> None:
        _, opcode, unique, node, *_ = _REQUEST.unpack_from(request)
        if opcode in {2, 36, 42}:  # forget, interrupt, batch of forgets: without an answer
            return
        error, body = 0, b""
        try:
            answer = self._answers.get(opcode)
            if answer is None:
                error = -errno.ENOSYS
            else:
                with self._disk.lock:
                    self._notice_power_loss()
                    body = answer(node, request[_REQUEST.size :])
        except OSError as failed:
            error = -(failed.errno or errno.EIO)
        except Exception:
            logger.exception("operation %d on %s", opcode, self._place)
            error = -errno.EIO
        head = _REPLY.pack(_REPLY.size + (0 if error else len(body)), error, unique)
        # The program that asked may be gone.
        with suppress(OSError):
            os.writev(self._device, [head, b"" if error else body])

    def _notice_power_loss(self) -> None:
        if self._life != self._disk.life:
            self._life = self._disk.life
            self._names.clear()
            self._children.clear()

    def _init(self, _node: int, _body: memoryview) -> bytes:
        return _INIT.pack(7, 31, 0, _INIT_FLAGS, 16, 12, _WRITE_BYTES, 1, _PAGES, 0, 0)

    # Names.

    def _path(self, node: int) -> str:
        parts: list[str] = []
        while node != _ROOT:
            known = self._names.get(node)
            if known is None or not known.name:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            parts.append(known.name)
            node = known.parent
        return "/".join(reversed(parts))

    def _below(self, node: int, name: str) -> str:
        return f"{path}/{name}" if (path := self._path(node)) else name

    def _place_of(self, path: str) -> Path:
        return self._disk.root / path

    def _entry(self, parent: int, name: str) -> bytes:
        found = self._place_of(self._below(parent, name)).lstat()
        node = self._children.get((parent, name))
        if node is None:
            node = next(self._numbers)
            self._children[parent, name] = node
            self._names[node] = _Name(parent, name)
        return _ENTRY.pack(node, 0, 0, 0, 0, 0) + _attributes(node, found)

    def _lookup(self, node: int, body: memoryview) -> bytes:
        return self._entry(node, _text(body))

    def _forget(self, parent: int, name: str) -> None:
        node = self._children.pop((parent, name), None)
        if node is not None:
            self._names[node].name = ""

    def _make_folder(self, node: int, body: memoryview) -> bytes:
        name = _text(body[8:])
        self._disk.make_folder(self._below(node, name))
        self._forget(node, name)
        return self._entry(node, name)

    def _remove_file(self, node: int, body: memoryview) -> bytes:
        name = _text(body)
        self._disk.remove_file(self._below(node, name))
        self._forget(node, name)
        return b""

    def _remove_folder(self, node: int, body: memoryview) -> bytes:
        name = _text(body)
        self._disk.remove_folder(self._below(node, name))
        self._forget(node, name)
        return b""

    def _rename(self, node: int, body: memoryview) -> bytes:
        (target,) = struct.unpack_from("<Q", body)
        return self._move(node, target, body[8:])

    def _rename_with_flags(self, node: int, body: memoryview) -> bytes:
        target, flags, _ = struct.unpack_from("<QII", body)
        if flags:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._move(node, target, body[16:])

    def _move(self, node: int, target: int, names: memoryview) -> bytes:
        old, new, _ = bytes(names).split(b"\0", 2)
        old_name, new_name = os.fsdecode(old), os.fsdecode(new)
        self._disk.rename(self._below(node, old_name), self._below(target, new_name))
        self._forget(target, new_name)
        moved = self._children.pop((node, old_name), None)
        if moved is not None:
            self._children[target, new_name] = moved
            self._names[moved].parent, self._names[moved].name = target, new_name
        return b""

    # Attributes.

    def _stat(self, node: int) -> os.stat_result:
        known = self._names.get(node)
        if known is not None and known.file is not None and not known.file.is_gone:
            return os.fstat(known.file.descriptor)
        return self._place_of(self._path(node)).lstat()

    def _get_attributes(self, node: int, _body: memoryview) -> bytes:
        return _VALID.pack(0, 0, 0) + _attributes(node, self._stat(node))

    def _set_attributes(self, node: int, body: memoryview) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & _SET_SIZE:
            known = self._names[node]
            file = known.file or self._disk.open(self._path(node), os.O_RDWR)
            try:
                self._disk.truncate(file, size)
            finally:
                if known.file is None:
                    self._disk.close(file)
        return self._get_attributes(node, body)

    def _statfs(self, _node: int, _body: memoryview) -> bytes:
        found = os.statvfs(self._disk.root)
        is_full = self._disk.fault is not None and self._disk.fault.kind == "full"
        free, available = (0, 0) if is_full else (found.f_bfree, found.f_bavail)
        return _STATFS.pack(
            *(found.f_blocks, free, available, found.f_files, found.f_ffree),
            *(found.f_bsize, found.f_namemax, found.f_frsize, 0),
        )

    # Files.

    def _opened(self, node: int, file: StoredFile) -> bytes:
        handle = next(self._numbers)
        self._open[handle] = self._names[node].file = file
        return _OPENED.pack(handle, _DIRECT_IO, 0)

    def _open_file(self, node: int, body: memoryview) -> bytes:
        flags, _ = struct.unpack_from("<II", body)
        return self._opened(node, self._disk.open(self._path(node), flags & ~os.O_CREAT))

    def _create(self, node: int, body: memoryview) -> bytes:
        (flags,), name = struct.unpack_from("<I", body), _text(body[16:])
        path = self._below(node, name)
        if flags & os.O_EXCL and self._place_of(path).exists():
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        file = self._disk.open(path, flags | os.O_CREAT)
        entry = self._entry(node, name)
        return entry + self._opened(self._children[node, name], file)

    def _file(self, handle: int) -> StoredFile:
        return self._open[handle]

    def _read(self, _node: int, body: memoryview) -> bytes:
        handle, at, size, *_ = _TRANSFER.unpack_from(body)
        return self._disk.read(self._file(handle), at, size)

    def _write(self, _node: int, body: memoryview) -> bytes:
        handle, at, size, *_ = _TRANSFER.unpack_from(body)
        data = bytes(body[_TRANSFER.size : _TRANSFER.size + size])
        self._disk.write(self._file(handle), at, data)
        return struct.pack("<II", size, 0)

    def _sync(self, _node: int, body: memoryview) -> bytes:
        self._disk.sync(self._file(*struct.unpack_from("<Q", body)))
        return b""

    def _allocate(self, _node: int, body: memoryview) -> bytes:
        handle, at, length, mode, _ = struct.unpack_from("<QQQII", body)
        if mode:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        self._disk.allocate(self._file(handle), at + length)
        return b""

    def _seek(self, _node: int, body: memoryview) -> bytes:
        handle, at, whence, _ = struct.unpack_from("<QQII", body)
        return struct.pack("<Q", os.lseek(self._file(handle).descriptor, at, whence))

    def _release(self, node: int, body: memoryview) -> bytes:
        file = self._open.pop(*struct.unpack_from("<Q", body))
        self._disk.close(file)
        known = self._names.get(node)
        if known is not None and not file.users:
            known.file = None
        return b""

    # Folders.

    def _open_folder(self, node: int, _body: memoryview) -> bytes:
        handle, listing = next(self._numbers), bytearray()
        for entry in sorted(os.scandir(self._place_of(self._path(node))), key=lambda e: e.name):
            name = os.fsencode(entry.name)
            kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) >> 12
            padded = name.ljust((len(name) + 7) & ~7, b"\0")
            end = len(listing) + _DIRENT.size + len(padded)
            listing += _DIRENT.pack(entry.inode(), end, len(name), kind) + padded
        self._listings[handle] = bytes(listing)
        return _OPENED.pack(handle, 0, 0)

    def _read_folder(self, _node: int, body: memoryview) -> bytes:
        handle, at, size, *_ = _TRANSFER.unpack_from(body)
        listing = self._listings[handle]
        end = at
        while end < len(listing):
            (_, following, *_) = _DIRENT.unpack_from(listing, end)
            if following - at > size:
                break
            end = following
        return listing[at:end]

    def _release_folder(self, _node: int, body: memoryview) -> bytes:
        self._listings.pop(*struct.unpack_from("<Q", body))
        return b""

    def _sync_folder(self, node: int, _body: memoryview) -> bytes:
        self._disk.sync_folder(self._path(node))
        return b""


def _text(body: memoryview) -> str:
    return os.fsdecode(bytes(body).split(b"\0", 1)[0])


def _attributes(node: int, found: os.stat_result) -> bytes:
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    return _ATTRIBUTES.pack(
        *(node, found.st_size, found.st_blocks),
        *(ns // 10**9 for ns in times),
        *(ns % 10**9 for ns in times),
        *(found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, found.st_blksize, 0),
    )
