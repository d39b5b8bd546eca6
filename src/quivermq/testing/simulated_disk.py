"""A disk in memory that knows what was fsynced, and can fail in every way a real one does.

Deterministic: all chance comes from the generator that it is given, so a seed replays a run.

What it models:
- A power loss (`lose_power`) keeps what was synced. Of the rest any part may survive: each
  512-byte sector of each write on its own, torn inside a sector too; file sizes and names in the
  order in which they were changed, up to any point. A killed process (`kill`) loses nothing.
- A failed fsync drops what it should have written, though reads still show it, and the next one
  succeeds without it: what Linux does, and why an fsync is never tried again.
- A block may become unreadable, until it is written anew as a whole.
- `faults` decides on every operation whether it fails, and how.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from quivermq.batches import Buffer
from quivermq.errors import StorageFailed, StorageFull
from quivermq.log import Unreadable

SECTOR_BYTES: Final = 512
BLOCK_BYTES: Final = 4096
"""The unit of reads: a bad sector makes a whole block unreadable."""


class Killed(BaseException):
    """The process died at this operation. Not an `Exception`: no handler may survive it."""


@dataclass(slots=True)
class Faults:
    """The faults in force. Change them at any time."""

    read_only: bool = False
    capacity_bytes: int | None = None
    fail_operation: int | None = None
    """The number of the operation that fails; the first one is 0."""
    failure: Callable[[str], BaseException] = StorageFailed
    fail_read: int | None = None
    """The number of the read that the medium fails, once; the first one is 0."""
    stale_reads: set[str] = field(default_factory=set)
    """Paths whose next read shows what was there before the last fsync."""
    latency_ms: Callable[[str], float] | None = None
    """How long an operation takes, by its name; added up in `SimulatedDisk.busy_ms`."""


@dataclass(slots=True, eq=False)
class Inode:
    """A file's content: as seen, as durable, and what lies between."""

    seen: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    undo: list[tuple[int, bytes | None]] = field(default_factory=list)
    """The writes and changes of size that lead back to the durable content before the last sync, if
    they are made from the last to the first."""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Writes (position, content) and changes of size (size, None) since the last sync."""
    lost_blocks: set[int] = field(default_factory=set)
    """The numbers of blocks that cannot be read."""


def _write(content: bytearray, at: int, data: bytes) -> None:
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class SimulatedFile:
    """An open file of a simulated disk."""

    def __init__(self, disk: "SimulatedDisk", path: str, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._life = disk.life

    def read(self, at: int, size: int) -> bytes:
        self._operate("read")
        lost = self._inode.lost_blocks
        if lost and any(_overlaps(block, at, size) for block in lost):
            raise Unreadable(f"cannot read {self._path}: Input/output error")
        if self._path in self._disk.faults.stale_reads:
            self._disk.faults.stale_reads.discard(self._path)
            old = bytearray(self._inode.durable)
            _replay(old, self._inode.undo[::-1])
            _resize(old, len(self._inode.seen))
            return bytes(old[at : at + size])
        with memoryview(self._inode.seen) as seen:
            return bytes(seen[at : at + size])

    def write(self, at: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        try:
            self._operate("write", grow=at + len(data) - len(self._inode.seen))
        except BaseException:
            # Any part of a write may have happened when it fails.
            self._put(at, data[: self._disk.random.randint(0, len(data))])
            raise
        self._put(at, data)

    def _put(self, at: int, data: bytes) -> None:
        self._write_blocks(at, len(data))
        if data and not self._disk.faults.read_only:
            _write(self._inode.seen, at, data)
            self._inode.pending.append((at, data))

    def _write_blocks(self, at: int, size: int) -> None:
        """A block that is written whole is put elsewhere by the drive, and readable again; one that
        is written in part has to be read first."""
        lost = self._inode.lost_blocks
        for block in [block for block in lost if _overlaps(block, at, size)]:
            if not at <= block * BLOCK_BYTES <= at + size - BLOCK_BYTES:
                raise StorageFailed(f"cannot write {self._path}: Input/output error")
            lost.discard(block)

    def sync(self) -> None:
        inode = self._inode
        try:
            self._operate("sync")
        except StorageFailed:
            self._disk.settle(inode, self._disk.random.random() < 0.5)
            raise
        inode.undo = _replay(inode.durable, inode.pending)
        inode.pending.clear()

    def allocate(self, size: int) -> None:
        self._operate("allocate", grow=size - len(self._inode.seen))
        if size > len(self._inode.seen):
            self._set_size(size)

    def truncate(self, size: int) -> None:
        self._operate("truncate")
        self._set_size(size)

    def _set_size(self, size: int) -> None:
        _resize(self._inode.seen, size)
        self._inode.pending.append((size, None))

    def size(self) -> int:
        return len(self._inode.seen)

    def data_from(self, at: int) -> int | None:
        rest = bytes(self._inode.seen[at:])
        stripped = rest.lstrip(b"\0")
        return at + len(rest) - len(stripped) if stripped else None

    def _operate(self, name: str, grow: int = 0) -> None:
        if self._life != self._disk.life:
            raise Killed("a file that was opened before the crash")
        self._disk.operate(name, self._path, grow)


def _overlaps(block: int, at: int, size: int) -> bool:
    return at < (block + 1) * BLOCK_BYTES and block * BLOCK_BYTES < at + size


def _replay(
    content: bytearray, changes: Sequence[tuple[int, bytes | None]]
) -> list[tuple[int, bytes | None]]:
    """Make changes to a content; returns those that lead back, from the last to the first.

    A file is far larger than what is written between two syncs: copies of all of it would be most
    of what a simulated disk does.
    """
    undo: list[tuple[int, bytes | None]] = []
    for at, data in changes:
        size = len(content)
        end = at if data is None else at + len(data)
        overwritten = bytes(content[at:] if data is None else content[at:end])
        if overwritten:
            undo.append((at, overwritten))
        if end > size:
            undo.append((size, None))
        if data is None:
            _resize(content, at)
        else:
            _write(content, at, data)
    return undo


def surviving(
    pending: Sequence[tuple[int, bytes | None]], dice: Random
) -> Iterator[tuple[int, bytes | None]]:
    """The parts of unsynced writes and changes of size that chance leaves after a power loss."""
    sizes_kept = dice.randint(0, len(pending))
    share = dice.random()
    for number, (at, data) in enumerate(pending):
        if data is None:
            if number < sizes_kept:
                yield at, None
            continue
        start = 0
        while start < len(data):
            # Up to the next sector boundary of the file.
            end = min(len(data), start + SECTOR_BYTES - (at + start) % SECTOR_BYTES)
            if dice.random() < share:
                torn = dice.random() < 0.1
                stop = dice.randint(start, end) if torn else end
                yield at + start, data[start:stop]
            start = end


def _folders_above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition("/")[0]
        yield path


class SimulatedDisk:
    """Files in memory, as programs see them and as a power loss would leave them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.faults = Faults()
        self.operations = 0
        self.reads = 0
        self.busy_ms = 0.0
        self.life = 0
        """Grows with every crash: files opened before it are dead."""
        self._folders: set[str] = {""}
        self._seen: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._changes: list[tuple[set[str], dict[str, Inode]]] = []
        """The folders that a change of names touched and all names after it, not yet durable."""

    def create(self, path: str) -> SimulatedFile:
        self.operate("create", path)
        self._change_names({path}, lambda names: names.__setitem__(path, Inode()))
        return SimulatedFile(self, path, self._seen[path])

    def open(self, path: str) -> SimulatedFile:
        if self.faults.read_only:
            raise StorageFailed(f"cannot open {path}: read-only file system")
        return self.open_to_read(path)

    def open_to_read(self, path: str) -> SimulatedFile:
        self.operate("open", path)
        if path not in self._seen:
            raise StorageFailed(f"cannot open {path}: no such file")
        return SimulatedFile(self, path, self._seen[path])

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        inside = (path[len(prefix) :] for path in self.paths() if path.startswith(prefix))
        return sorted({name.partition("/")[0] for name in inside if name})

    def is_folder(self, path: str) -> bool:
        return path in self._folders

    def make_folder(self, path: str) -> None:
        self.operate("make", path)
        self._folders |= {path, *_folders_above(path)}

    def rename(self, old: str, new: str) -> None:
        self.operate("rename", old)

        def move(names: dict[str, Inode]) -> None:
            for path in [path for path in names if path == old or path.startswith(old + "/")]:
                names[new + path[len(old) :]] = names.pop(path)

        self._change_names({old, new}, move)
        if old in self._folders:
            self._folders = (self._folders - {old}) | {new}

    def remove(self, path: str) -> None:
        self.operate("remove", path)

        def drop(names: dict[str, Inode]) -> None:
            for name in [name for name in names if name == path or name.startswith(path + "/")]:
                del names[name]

        self._change_names({path}, drop)
        self._folders -= {folder for folder in self._folders if folder.startswith(path + "/")}
        self._folders.discard(path)

    def sync_folder(self, path: str) -> None:
        self.operate("sync_folder", path)
        # A journal keeps its order: whatever changed before the last change here goes with it.
        touching = [n for n, (folders, _) in enumerate(self._changes, 1) if path in folders]
        if touching:
            self._durable = self._changes[touching[-1] - 1][1]
            del self._changes[: touching[-1]]

    def operate(self, name: str, path: str, grow: int = 0) -> None:
        """Count one operation; raises if a fault strikes it."""
        number, faults = self.operations, self.faults
        self.operations += 1
        if name == "read":
            self.reads += 1
            if self.reads - 1 == faults.fail_read:
                raise Unreadable(f"cannot read {path}: Input/output error")
        if faults.latency_ms is not None:
            self.busy_ms += faults.latency_ms(name)
        if number == faults.fail_operation:
            raise faults.failure(f"cannot {name} {path}: the simulated disk failed")
        if faults.read_only and name not in {"read", "open"}:
            raise StorageFailed(f"cannot {name} {path}: read-only file system")
        if faults.capacity_bytes is not None and grow > 0:
            used = sum(len(inode.seen) for inode in self._seen.values())
            if used + grow > faults.capacity_bytes:
                raise StorageFull(f"cannot {name} {path}: no space left on device")

    def kill(self) -> None:
        """The process dies; the machine runs on, and so everything written is still there."""
        self.life += 1

    def lose_power(self) -> None:
        """The machine dies: of what was not synced, chance decides what is left."""
        self.life += 1
        kept = self.random.randint(0, len(self._changes))
        self._seen = dict(self._changes[kept - 1][1] if kept else self._durable)
        self._durable = dict(self._seen)
        self._changes.clear()
        for inode in dict.fromkeys(self._seen.values()):
            self._tear(inode, self.random.random())
        self._folders = {folder for path in self._seen for folder in _folders_above(path)} | {""}

    def _tear(self, inode: Inode, mood: float) -> None:
        """Apply a part of what is pending: none, all, or each sector as chance has it."""
        if mood < 0.25:
            inode.pending.clear()
        elif mood >= 0.5:
            inode.pending = list(surviving(inode.pending, self.random))
        inode.undo += _replay(inode.durable, inode.pending)
        inode.seen[:] = inode.durable
        inode.pending.clear()

    def settle(self, inode: Inode, keep_some: bool) -> None:  # noqa: FBT001
        """A failed sync: some sectors are durable, the others never will be, reads show all."""
        pending = list(surviving(inode.pending, self.random)) if keep_some else []
        inode.undo += _replay(inode.durable, pending)
        inode.pending.clear()

    def _change_names(self, paths: set[str], change: Callable[[dict[str, Inode]], object]) -> None:
        change(self._seen)
        folders = {path.rpartition("/")[0] for path in paths}
        self._changes.append((folders, dict(self._seen)))

    def paths(self) -> list[str]:
        """Every file's path, sorted."""
        return sorted(self._seen)

    def content(self, path: str) -> bytes:
        """A file's content as it is seen."""
        return bytes(self._seen[path].seen)

    def replace_content(self, path: str, content: bytes) -> None:
        """Damage a file: what is seen and what is durable both become `content`."""
        inode = self._seen[path]
        inode.seen[:] = content
        inode.undo += _replay(inode.durable, [(0, None), (0, content)])
        inode.pending.clear()

    def flip_bit(self, path: str, bit: int) -> None:
        """Damage one bit of a file."""
        content = bytearray(self.content(path))
        content[bit // 8] ^= 1 << bit % 8
        self.replace_content(path, bytes(content))

    def lose_block(self, path: str, block: int) -> None:
        """Damage a block: it cannot be read until it is written anew as a whole."""
        self._seen[path].lost_blocks.add(block)

    def lose_all(self) -> None:
        """Damage everything: an empty disk is in its place."""
        self._seen.clear()
        self._durable.clear()
        self._changes.clear()
        self._folders = {""}

    def lose_file(self, path: str) -> None:
        """Damage a folder: a file is gone, durably."""
        self._seen.pop(path)
        self._durable = dict(self._seen)
        self._changes.clear()
