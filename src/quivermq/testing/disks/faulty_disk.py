"""A folder that fails when told to, and knows what a power loss would leave of it.

All changes are made to real files at once, so the folder shows what programs see. Beside it lies
what is needed to take back each change that was not synced:

- of a file's content, what each write replaced, until the file is synced;
- of names, each creation, renaming and removal, in their order, until a folder is synced that the
  change touched, or that a later change touched which is synced: a journal keeps its order. What
  was removed is kept in a second folder until then.

A power loss takes all of that back. With a generator of chance a part of it survives, as a real
disk may have it: see `simulated_disk`, which has the same rules. A failed sync of a file drops what
it should have written, though reads still show it, and the next one succeeds without it.
"""

import errno
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import RLock
from typing import Final, NamedTuple

from quivermq.log import THIS_SYSTEM
from quivermq.testing.simulated_disk import surviving

_READING: Final = frozenset({"read", "open"})
_RECENT: Final = 4
"""How many writes are looked at for one to the same place."""
FAULTS: Final = ("full", "read_only", "read_errors", "write_errors", "sync_errors", "slow")


@dataclass(frozen=True, slots=True)
class DiskFault:
    """One of `FAULTS`, until it is replaced."""

    kind: str
    delay_ms: float = 0.0
    """The time that each operation takes longer."""
    share: float = 1.0
    """The share of the operations concerned that fails."""

    def __post_init__(self) -> None:
        if self.kind not in FAULTS:
            raise ValueError(f"there is no disk fault {self.kind!r}, but {', '.join(FAULTS)}")

    def error_of(self, operation: str, grow: int) -> int:
        """The error number that an operation fails with; 0: it does not."""
        match self.kind:
            case "full" if grow > 0:
                return errno.ENOSPC
            case "read_only" if operation not in _READING:
                return errno.EROFS
            case "read_errors" if operation == "read":
                return errno.EIO
            case "write_errors" if operation in {"write", "allocate"}:
                return errno.EIO
            case "sync_errors" if operation in {"sync", "sync_folder"}:
                return errno.EIO
        return 0


class Write(NamedTuple):
    """A change of a file's content that was not synced."""

    at: int
    """Where the content was put; of a change of size, the new size."""
    new: bytes | None
    """None: the size was changed."""
    old: bytes
    """The content that was replaced, from `at` on."""
    old_size: int


class NameChange(NamedTuple):
    """A change of names that was not synced."""

    folders: frozenset[str]
    take_back: Callable[[], object]
    settle: Callable[[], None]
    """Called when it can no more be taken back."""


@dataclass(slots=True, eq=False)
class StoredFile:
    """A file by its inode, whatever its names are. Open while a program has it open, and while
    something of it is not synced."""

    descriptor: int
    durable_size: int
    users: int = 0
    pending: list[Write] = field(default_factory=list)
    doomed: list[tuple[int, bytes]] = field(default_factory=list)
    """Where a failed sync left what will not be there after a power loss, and what will."""
    is_gone: bool = False
    """Opened before a power loss."""

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    @property
    def is_clean(self) -> bool:
        return not self.pending and not self.doomed and self.durable_size == self.size

    def add(self, write: Write) -> None:
        """A file that is never synced may be written again and again in the same places: of such
        writes one is kept, with what the first replaced."""
        data = write.new or b""
        for number in range(len(self.pending) - 1, max(-1, len(self.pending) - _RECENT - 1), -1):
            before = self.pending[number]
            if before.new is None or before.at + len(before.new) > write.old_size:
                break
            if before.at == write.at and len(before.new) == len(data) == len(before.old):
                self.pending[number] = before._replace(new=data)
                return
            if before.at < write.at + len(data) and write.at < before.at + len(before.new):
                break
        self.pending.append(write)

    def settle(self) -> None:
        """A sync: what is pending is durable."""
        for write in self.pending:
            if write.new is None:
                self.durable_size = write.at
            else:
                end = write.at + len(write.new)
                self.durable_size = max(self.durable_size, end)
                self.doomed = [
                    part for piece in self.doomed for part in _outside(piece, write.at, end)
                ]
        self.pending.clear()

    def doom(self) -> None:
        """A failed sync: what is pending will never be durable."""
        for write in self.pending:
            size = len(write.old) if write.new is None else len(write.new)
            self.doomed.append((write.at, write.old.ljust(size, b"\0")))
        self.pending.clear()

    def take_back(self, dice: Random | None) -> None:
        """A power loss."""
        for write in reversed(self.pending):
            os.ftruncate(self.descriptor, write.old_size)
            os.pwrite(self.descriptor, write.old, write.at)
        for at, old in reversed(self.doomed):
            os.pwrite(self.descriptor, old, at)
        os.ftruncate(self.descriptor, self.durable_size)
        if dice is not None:
            self._put_back([(write.at, write.new) for write in self.pending], dice)
        self.pending.clear()
        self.doomed.clear()

    def _put_back(self, lost: Sequence[tuple[int, bytes | None]], dice: Random) -> None:
        """None of it, all, or each sector as chance has it."""
        mood = dice.random()
        if mood < 0.25:
            return
        for at, data in lost if mood < 0.5 else surviving(lost, dice):
            if data is None:
                os.ftruncate(self.descriptor, at)
            else:
                os.pwrite(self.descriptor, data, at)


def _outside(piece: tuple[int, bytes], start: int, end: int) -> list[tuple[int, bytes]]:
    """The parts of a piece that lie before `start` and from `end` on."""
    at, old = piece
    before, after = old[: max(0, start - at)], old[max(0, end - at) :]
    parts = [(at, before), (at + len(old) - len(after), after)]
    return [part for part in parts if part[1]]


class FaultyDisk:
    """The files below a folder. Paths are relative to it, with `/`. Raises `OSError`."""

    def __init__(self, root: Path, removed: Path) -> None:
        """Files that were removed and may come back are in `removed`, on the same file system."""
        self.root = root
        self._removed = removed
        self._removals = 0
        self._files: dict[int, StoredFile] = {}
        """By inode number, which stays taken while the file is open here."""
        self._changes: list[NameChange] = []
        self.fault: DiskFault | None = None
        self.struck = 0
        """How many operations failed because of a fault."""
        self.life = 0
        """Grows with every power loss."""
        self._dice = Random(0)
        self.lock = RLock()
        """Held by every operation: a disk does one at a time."""
        root.mkdir(parents=True, exist_ok=True)
        removed.mkdir(parents=True, exist_ok=True)

    # Files.

    def open(self, path: str, flags: int) -> StoredFile:
        """Open a file, with `O_CREAT` and `O_TRUNC` as the system does."""
        with self.lock:
            place = self.root / path
            is_new = bool(flags & os.O_CREAT) and not place.exists()
            is_read = flags & os.O_ACCMODE == os.O_RDONLY and not is_new
            self._operate("open" if is_read else "change")
            how = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if is_new else 0)
            file = self._known(os.open(place, how, 0o644))
            file.users += 1
            if is_new:
                self._changed([path], place.unlink)
            elif flags & os.O_TRUNC:
                self._resize(file, 0)
            return file

    def _known(self, descriptor: int) -> StoredFile:
        stat = os.fstat(descriptor)
        file = self._files.get(stat.st_ino)
        if file is None:
            file = self._files[stat.st_ino] = StoredFile(descriptor, stat.st_size)
        else:
            os.close(descriptor)
        return file

    def close(self, file: StoredFile) -> None:
        with self.lock:
            file.users -= 1
            if not file.is_gone and not file.users and file.is_clean:
                self._let_go(file)

    def _let_go(self, file: StoredFile) -> None:
        self._files.pop(os.fstat(file.descriptor).st_ino)
        os.close(file.descriptor)
        file.is_gone = True

    def read(self, file: StoredFile, at: int, size: int) -> bytes:
        with self.lock:
            self._operate("read", file)
            return os.pread(file.descriptor, size, at)

    def write(self, file: StoredFile, at: int, data: bytes) -> None:
        with self.lock:
            size = file.size
            self._operate("write", file, at + len(data) - size)
            file.add(Write(at, data, os.pread(file.descriptor, len(data), at), size))
            os.pwrite(file.descriptor, data, at)

    def allocate(self, file: StoredFile, size: int) -> None:
        """Make it at least `size` bytes long."""
        with self.lock:
            old = file.size
            self._operate("allocate", file, size - old)
            if size > old:
                THIS_SYSTEM.allocate(file.descriptor, old, size - old)
                file.pending.append(Write(size, None, b"", old))

    def truncate(self, file: StoredFile, size: int) -> None:
        """Make it exactly `size` bytes long."""
        with self.lock:
            self._operate("truncate", file, size - file.size)
            self._resize(file, size)

    def _resize(self, file: StoredFile, size: int) -> None:
        old_size = file.size
        old = os.pread(file.descriptor, max(0, old_size - size), size)
        file.pending.append(Write(size, None, old, old_size))
        os.ftruncate(file.descriptor, size)

    def sync(self, file: StoredFile) -> None:
        with self.lock:
            try:
                self._operate("sync", file)
            except OSError:
                file.doom()
                raise
            file.settle()

    # Names.

    def make_folder(self, path: str) -> None:
        with self.lock:
            self._operate("change")
            place = self.root / path
            place.mkdir()
            self._changed([path], place.rmdir)

    def remove_folder(self, path: str) -> None:
        with self.lock:
            self._operate("change")
            place = self.root / path
            place.rmdir()
            self._changed([path], place.mkdir)

    def remove_file(self, path: str) -> None:
        with self.lock:
            self._operate("change")
            place = self.root / path
            kept = self._put_aside(place)
            self._changed([path], lambda: kept.rename(place), lambda: self._forget(kept))

    def rename(self, old: str, new: str) -> None:
        with self.lock:
            self._operate("change")
            source, target = self.root / old, self.root / new
            kept = None if target.is_dir() or not target.exists() else self._put_aside(target)
            source.rename(target)

            def take_back() -> None:
                target.rename(source)
                if kept is not None:
                    kept.rename(target)

            self._changed(
                [old, new], take_back, lambda: None if kept is None else self._forget(kept)
            )

    def sync_folder(self, path: str) -> None:
        with self.lock:
            self._operate("sync_folder")
            touching = [n for n, change in enumerate(self._changes, 1) if path in change.folders]
            if touching:
                self._settle(touching[-1])

    def _changed(
        self,
        paths: Sequence[str],
        take_back: Callable[[], object],
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        folders = frozenset(path.rpartition("/")[0] for path in paths)
        self._changes.append(NameChange(folders, take_back, settle))

    def _settle(self, count: int) -> None:
        for change in self._changes[:count]:
            change.settle()
        del self._changes[:count]

    def _put_aside(self, place: Path) -> Path:
        self._removals += 1
        return place.rename(self._removed / str(self._removals))

    def _forget(self, kept: Path) -> None:
        """A file is removed for good."""
        with suppress(FileNotFoundError):
            file = self._files.get(kept.stat().st_ino)
            kept.unlink()
            if file is not None and not file.users:
                self._let_go(file)

    # Faults.

    def _operate(self, operation: str, file: StoredFile | None = None, grow: int = 0) -> None:
        if file is not None and file.is_gone:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        fault = self.fault
        if fault is None:
            return
        if fault.delay_ms:
            time.sleep(fault.delay_ms / 1000)
        number = fault.error_of(operation, grow)
        if number and (fault.share >= 1 or self._dice.random() < fault.share):
            self.struck += 1
            raise OSError(number, os.strerror(number))

    def lose_power(self, seed: int | None = None) -> int:
        """Take back all that was not synced; with a seed, chance decides what of it survives.
        Returns how many changes of content and of names were pending. The programs that used the
        disk must be gone."""
        dice = None if seed is None else Random(seed)
        with self.lock:
            self.life += 1
            pending = len(self._changes) + sum(len(f.pending) for f in self._files.values())
            for file in self._files.values():
                file.take_back(dice)
            self._settle(0 if dice is None else dice.randint(0, len(self._changes)))
            for change in reversed(self._changes):
                # A test may have removed files behind our back.
                with suppress(FileNotFoundError):
                    change.take_back()
            self._changes.clear()
            for file in list(self._files.values()):
                self._let_go(file)
            return pending
