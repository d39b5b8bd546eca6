"""Checkpoint files: the state machine as it was before a segment's first entry.

What a later checkpoint holds can be had again, from an earlier one and the entries behind it. The
first has nothing before it, so it is kept twice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, TypeVar

from crc32c import crc32c

from quivermq.batches import Buffer, Index
from quivermq.errors import Corrupt, StorageFailed, TooLarge, UnsupportedFormat
from quivermq.log.disk import Disk, File, Unreadable, undoing
from quivermq.log.edge import Edge
from quivermq.log.layout import CHECKPOINT, TEMPORARY, file_name, index_of
from quivermq.log.records import Record

_HEADER: Final = Record(b"QUIVRCKP", "16sQQQQQI", 96, version_1="16sQQQQQI")
T = TypeVar("T")
RESET: Final = ".new"
"""Behind the name of a checkpoint that is about to replace the whole log."""
COPY: Final = ".copy"
"""Behind the name of the second copy of the first checkpoint."""


class Checkpoint(NamedTuple):
    """A state, and the edge up to which it was applied."""

    edge: Edge
    data: bytes


class CheckpointSummary(NamedTuple):
    """The header of a checkpoint."""

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
        names = self._disk.names(self._folder)
        found = {index_of(name.removesuffix(COPY), CHECKPOINT) for name in names}
        return sorted(index for index in found if index is not None)

    def save(self, checkpoint: Checkpoint, suffix: str = "") -> None:
        """Write a checkpoint; durable, name included, when this returns."""
        packed = packed_checkpoint(self._log_id, checkpoint, self._bytes_max)
        path = self.path(checkpoint.edge.next_index) + suffix
        with undoing():
            file = self._disk.create(path + TEMPORARY)
            file.write(0, packed)
            file.sync()
        self._disk.rename(path + TEMPORARY, path)
        self._disk.sync_folder(self._folder)

    def save_copy(self, index: Index) -> None:
        """Keep the checkpoint before entry `index`, the first one, in a second file as well."""
        if not self._has_copy(index):
            self.save(self.load_file(index), COPY)

    def _has_copy(self, index: Index) -> bool:
        return f"{file_name(index, CHECKPOINT)}{COPY}" in self._disk.names(self._folder)

    def restore(self, index: Index) -> list[str]:
        """Make either file of the first checkpoint again from the other; says what it did."""
        notes: list[str] = []
        if index not in self.indexes():
            return notes
        for suffix, other in (("", COPY), (COPY, "")):
            try:
                self.load_file(index, suffix)
            except (Corrupt, StorageFailed) as error:
                # If neither is intact, the next load of the checkpoint raises.
                with suppress(Corrupt, StorageFailed):
                    self.save(self.load_file(index, other), suffix)
                    notes.append(f"made a checkpoint again from its other copy: {error}")
        return notes

    def load(self, index: Index, suffix: str = "") -> Checkpoint:
        """The checkpoint before entry `index`, or `Corrupt` unless every byte of it is intact, or
        of its copy: then it is made again."""
        try:
            return self.load_file(index, suffix)
        except (Corrupt, StorageFailed):
            if suffix or not self._has_copy(index):
                raise
            checkpoint = self.load_file(index, COPY)
            with suppress(StorageFailed):
                # The caller needs no more than the content.
                self.save(checkpoint)
            return checkpoint

    def load_file(self, index: Index, suffix: str = "") -> Checkpoint:
        """The checkpoint in one file, or `Corrupt` unless every byte of it is intact."""
        with self._opened(index, suffix) as (file, summary):
            data = file.read(_HEADER.size, summary.size)
            if crc32c(data) != summary.checksum:
                raise Corrupt("the checkpoint's content fails its checksum")
            return Checkpoint(summary.edge, data)

    def summary(self, index: Index) -> CheckpointSummary:
        """The header of a checkpoint; its content is not looked at."""
        return self._from_either(index, lambda _, summary: summary)

    def part(self, index: Index, at: int, size: int) -> bytes:
        """A part of a checkpoint's content, unchecked; fewer bytes only where it ends."""

        def take(file: File, summary: CheckpointSummary) -> bytes:
            taken = min(size, summary.size - at)
            return file.read(_HEADER.size + at, taken) if at >= 0 and taken > 0 else b""

        return self._from_either(index, take)

    def _from_either(self, index: Index, take: Callable[[File, CheckpointSummary], T]) -> T:
        """Take something from a checkpoint's file, or else from its copy."""
        try:
            with self._opened(index) as opened:
                return take(*opened)
        except (Corrupt, StorageFailed):
            if not self._has_copy(index):
                raise
        with self._opened(index, COPY) as opened:
            return take(*opened)

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
                self._disk.remove(self.path(index) + COPY)

    def path(self, index: Index) -> str:
        """The path of the checkpoint before entry `index`."""
        return f"{self._folder}/{file_name(index, CHECKPOINT)}"


def packed_checkpoint(log_id: bytes, checkpoint: Checkpoint, bytes_max: int) -> list[Buffer]:
    """The content of a checkpoint's file; `TooLarge` if the state is above the limit."""
    edge, data = checkpoint
    if len(data) > bytes_max:
        raise TooLarge(
            f"a checkpoint of {len(data):,} bytes is above the limit of {bytes_max:,} "
            "(checkpoint_bytes_max)"
        )
    return [_HEADER.pack(log_id, *edge, len(data), crc32c(data)), data]


def check_release(file: File) -> None:
    """Raise `UnsupportedFormat` for a checkpoint of another release."""
    _HEADER.unpack(file.read(0, _HEADER.size))
