"""The interface between the log and a disk: everything that the log asks of one.

Implementations raise `StorageFull` where there is no space, `Unreadable` where the medium has lost
what was stored, and `StorageFailed` for every other refusal; no `OSError` passes this seam. Paths
are relative to the disk's root, with `/`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from quivermq.batches import Buffer
from quivermq.errors import StorageFailed, StorageFull


class Unreadable(StorageFailed):
    """The medium cannot give back what was stored. Asking again does not help: it is damage."""

    @property
    def code(self) -> str:
        """Of the public error that this is a kind of."""
        return StorageFailed.__name__


class File(Protocol):
    """An open file, read and written by position; closed when the last reference goes."""

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from `at`; fewer only where the file ends."""

    def write(self, at: int, buffers: Sequence[Buffer]) -> None:
        """Put all buffers one after another at `at`, or raise; in the latter case any part of
        them may have been written. Durable only after `sync`."""

    def sync(self) -> None:
        """Return once everything written is durable. After a failure nothing is known of what
        was written since the last success, and calling again does not find out."""

    def allocate(self, size: int) -> None:
        """Make the file at least `size` bytes long, filled with zeros, its space reserved."""

    def truncate(self, size: int) -> None:
        """Make the file exactly `size` bytes long."""

    def size(self) -> int:
        """The file's length."""

    def data_from(self, at: int) -> int | None:
        """The first position from `at` on that may hold something other than zeros."""


class Disk(Protocol):
    """A tree of files. A name is durable once its folder was synced."""

    def create(self, path: str) -> File:
        """A new empty file, in place of one that may exist."""

    def open(self, path: str) -> File:
        """An existing file, to be read and written."""

    def open_to_read(self, path: str) -> File:
        """An existing file, to be read only: works on a file system that takes no writes."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; empty if there is no such folder."""

    def is_folder(self, path: str) -> bool:
        """Whether there is such a folder."""

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it; nothing happens if it exists."""

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name in the same parent, in place of what had it."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; nothing happens if it is gone."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""


@contextmanager
def undoing() -> Iterator[None]:
    """Around work that a full disk may stop anywhere without leaving a trace that matters."""
    try:
        yield
    except StorageFull as error:
        error.undone = True
        raise


@contextmanager
def announced() -> Iterator[None]:
    """Around work that the state file has announced: it can be finished, but not undone."""
    try:
        yield
    except StorageFull as error:
        error.undone = False
        raise
