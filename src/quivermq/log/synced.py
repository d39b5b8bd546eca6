"""A file that tells how far the last segment was fsynced: a copy of its last mark.

A mark stands right behind the entries that it vouches for. What takes both, a block that reads as
zeros, say, would leave a log that looks as if it ended earlier. So the same is written to a file of
its own. Like a mark it costs no fsync: it survives the death of the process at once. It may be
older than the truth, after a power loss, and is never younger: what it tells was fsynced before.
"""

from typing import Final, NamedTuple

from quivermq.batches import Index
from quivermq.errors import Corrupt, UnsupportedFormat
from quivermq.log.disk import Disk, File, Unreadable
from quivermq.log.edge import Edge
from quivermq.log.layout import SYNCED
from quivermq.log.marks import Mark
from quivermq.log.records import Record

_RECORD: Final = Record(b"QUIVRSYN", "16sQQQQQQQ", 128, version_1="16sQQQQQQQ")


class Synced(NamedTuple):
    """A mark that stood in a segment."""

    segment: Index
    """The first index of the segment; 0 if nothing is told."""
    position: int
    mark: Mark


NOTHING: Final = Synced(Index(0), 0, Mark(Edge(), Index(0)))


class SyncedFile:
    """The file that holds a `Synced`. It is opened at the first word: a log that nothing is
    written to needs no open file for it."""

    def __init__(
        self, disk: Disk, folder: str, log_id: bytes, told: Synced, file: File | None = None
    ) -> None:
        self._disk = disk
        self._path = f"{folder}/{SYNCED}"
        self._file = file
        self._log_id = log_id
        self.told = told

    @classmethod
    def create(cls, disk: Disk, folder: str, log_id: bytes) -> "SyncedFile":
        file = disk.create(f"{folder}/{SYNCED}")
        file.allocate(_RECORD.size)
        created = cls(disk, folder, log_id, NOTHING, file)
        created.retract()
        return created

    @classmethod
    def open(cls, disk: Disk, folder: str, log_id: bytes) -> "SyncedFile":
        """Open the file; it tells nothing if it is damaged or that of another log."""
        told, fault = read_synced(disk, folder, log_id)
        if fault:
            return cls.create(disk, folder, log_id)
        return cls(disk, folder, log_id, told)

    def tell(self, synced: Synced) -> None:
        """Everything before a mark was fsynced."""
        self.told = synced
        self._write()

    def retract(self) -> None:
        """Tell nothing, durably: before entries are taken out of the log."""
        self.told = NOTHING
        self._write().sync()

    def _write(self) -> File:
        file = self._file = self._file or self._disk.open(self._path)
        file.write(0, [packed_synced(self._log_id, self.told)])
        return file


def packed_synced(log_id: bytes, told: Synced) -> bytes:
    """The content of the file."""
    segment, position, mark = told
    return _RECORD.pack(log_id, segment, position, *mark.edge, mark.commit_index)


def read_synced(disk: Disk, folder: str, log_id: bytes) -> tuple[Synced, str]:
    """The content of the file, and its fault if it has one; `UnsupportedFormat` if it is of
    another release."""
    if SYNCED not in disk.names(folder):
        return NOTHING, "missing"
    path = f"{folder}/{SYNCED}"
    try:
        file = disk.open_to_read(path)
        named, segment, position, *edge, commit = _RECORD.unpack(file.read(0, _RECORD.size))
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{path}: {error}") from error
    except (Corrupt, Unreadable) as error:
        return NOTHING, f"damaged ({error})"
    if named != log_id:
        return NOTHING, f"that of another log, {named.hex()}"
    return Synced(segment, position, Mark(Edge(*edge), commit)), ""
