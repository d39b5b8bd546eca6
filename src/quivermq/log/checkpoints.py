"""Checkpoint files: the state machine as it was before a segment's first entry."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from crc32c import crc32c

from quivermq.batches import Index
from quivermq.errors import Corrupt, TooLarge, UnsupportedFormat
from quivermq.log.disk import Disk, File, Unreadable, undoing
from quivermq.log.edge import Edge
from quivermq.log.layout import CHECKPOINT, TEMPORARY, file_name, index_of
from quivermq.log.records import Record

_HEADER: Final = Record(b"QUIVRCKP", "16sQQQQQI", 96, version_1="16sQQQQQI")
RESET: Final = ".new"
"""Behind the name of a checkpoint that is about to replace the whole log."""


class Checkpoint(NamedTuple):
    """A state, and the edge up to which it was applied."""

    edge: Edge
    data: bytes


class CheckpointSummary(NamedTuple):
    """What a checkpoint's header says."""

    edge: Edge
    size: int
    checksum: int


class Checkpoints:
    """The checkpoint files of one log."""

    def __init__(self, disk: Disk, folder: str, log_id: bytes, bytes_max: int) -> None:
        self._disk = disk
        self._folder = folder
        self._log_id = log_id
        self._bytes_max = bytes_max

    def indexes(self) -> list[Index]:
        """The edges, by next index, for which there is a file; whether it is intact shows on
        loading it."""
        found = (index_of(name, CHECKPOINT) for name in self._disk.names(self._folder))
        return [index for index in found if index is not None]

    def save(self, checkpoint: Checkpoint, suffix: str = "") -> None:
        """Write a checkpoint; durable, name included, when this returns."""
        if len(checkpoint.data) > self._bytes_max:
            raise TooLarge(
                f"a checkpoint of {len(checkpoint.data):,} bytes is above the limit of "
                f"{self._bytes_max:,} (checkpoint_bytes_max)"
            )
        path = self.path(checkpoint.edge.next_index) + suffix
        size, checksum = len(checkpoint.data), crc32c(checkpoint.data)
        header = _HEADER.pack(self._log_id, *checkpoint.edge, size, checksum)
        with undoing():
            file = self._disk.create(path + TEMPORARY)
            file.write(0, [header, checkpoint.data])
            file.sync()
        self._disk.rename(path + TEMPORARY, path)
        self._disk.sync_folder(self._folder)

    def load(self, index: Index, suffix: str = "") -> Checkpoint:
        """The checkpoint before entry `index`, or `Corrupt` unless every byte of it is intact."""
        with self._opened(index, suffix) as (file, summary):
            data = file.read(_HEADER.size, summary.size)
            if crc32c(data) != summary.checksum:
                raise Corrupt("the checkpoint's content fails its checksum")
            return Checkpoint(summary.edge, data)

    def summary(self, index: Index) -> CheckpointSummary:
        """What its header says of a checkpoint; its content is not looked at."""
        with self._opened(index) as (_, summary):
            return summary

    def part(self, index: Index, at: int, size: int) -> bytes:
        """A part of a checkpoint's content, unchecked; fewer bytes only where it ends."""
        with self._opened(index) as (file, summary):
            size = min(size, summary.size - at)
            return file.read(_HEADER.size + at, size) if at >= 0 and size > 0 else b""

    @contextmanager
    def _opened(self, index: Index, suffix: str = "") -> Iterator[tuple[File, CheckpointSummary]]:
        """A checkpoint's file and header. What cannot be read counts as damaged."""
        path = self.path(index) + suffix
        try:
            file = self._disk.open_to_read(path)
            log_id, *edge, size, checksum = _HEADER.unpack(file.read(0, _HEADER.size))
            if log_id != self._log_id or edge[0] != index:
                raise Corrupt("a checkpoint of another log or place")
            if file.size() != _HEADER.size + size:
                raise Corrupt(f"the file has {file.size()} bytes instead of {_HEADER.size + size}")
            yield file, CheckpointSummary(Edge(*edge), size, checksum)
        except (Corrupt, Unreadable) as error:
            raise Corrupt(f"{path}: {error}") from error
        except UnsupportedFormat as error:
            raise UnsupportedFormat(f"{path}: {error}") from error

    def remove_where(self, *, before: Index = Index(0), after: Index | None = None) -> None:
        """Remove the checkpoints before an index, or after one."""
        for index in self.indexes():
            if index < before or (after is not None and index > after):
                self._disk.remove(self.path(index))

    def path(self, index: Index) -> str:
        """The path of the checkpoint before entry `index`."""
        return f"{self._folder}/{file_name(index, CHECKPOINT)}"


def check_release(file: File) -> None:
    """Raise `UnsupportedFormat` for a checkpoint of another release."""
    _HEADER.unpack(file.read(0, _HEADER.size))
