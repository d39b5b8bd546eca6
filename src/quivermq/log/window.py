"""Reads a file from front to back through a bounded window, past unreadable blocks."""

from collections.abc import Iterator
from typing import Final

from quivermq.log.disk import File, Unreadable

WINDOW_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 4096


class LossyFile:
    """A file for a walk that has to go on: blocks that cannot be read are zeros, and are noted."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.lost: dict[int, str] = {}
        """Why, by the position behind each piece that could not be read."""

    def read(self, at: int, size: int) -> bytes:
        try:
            return self._file.read(at, size)
        except Unreadable:
            end = min(at + size, self._file.size())
        parts = []
        while at < end:
            stop = min(end, at - at % _BLOCK_BYTES + _BLOCK_BYTES)
            parts.append(self._block(at, stop))
            at = stop
        return b"".join(parts)

    def _block(self, at: int, stop: int) -> bytes:
        try:
            return self._file.read(at, stop - at)
        except Unreadable as error:
            data = self.data_from(at)
            if data is not None and data < stop:
                # Otherwise it was never written.
                self.lost[stop] = str(error)
            return bytes(stop - at)

    def data_from(self, at: int) -> int | None:
        try:
            return self._file.data_from(at)
        except Unreadable:
            return at

    def size(self) -> int:
        return self._file.size()

    def why_lost(self, at: int) -> str:
        """Why anything behind `at` could not be read; empty if everything could, so far."""
        return next((why for behind, why in self.lost.items() if behind > at), "")


Readable = File | LossyFile


class Window:
    """The part of a file that is in memory; moves forward as positions are asked for."""

    def __init__(self, file: Readable, end: int) -> None:
        self._file = file
        self._end = end
        self._start = 0
        self._data = memoryview(b"")

    def view(self, at: int, size: int) -> memoryview:
        """`size` bytes from `at`; fewer only where the file ends."""
        if at < self._start or at + size > self._start + len(self._data):
            wanted = min(max(size, WINDOW_BYTES), max(self._end - at, 0))
            self._start, self._data = at, memoryview(self._file.read(at, wanted))
        return self._data[at - self._start : at - self._start + size]


def first_data(file: Readable, at: int, end: int) -> int | None:
    """The first position in `at` to `end` with a byte that is not zero.

    Holes and reserved space are skipped without reading them, so the untouched rest of a
    preallocated segment costs nothing.
    """
    while at < end:
        data = file.data_from(at)
        if data is None or data >= end:
            return None
        chunk = file.read(data, min(WINDOW_BYTES, end - data))
        stripped = len(chunk.lstrip(b"\0"))
        if stripped:
            return data + len(chunk) - stripped
        at = data + len(chunk)
        if not chunk:
            return None
    return None


def occurrences(file: Readable, pattern: bytes, at: int, end: int) -> Iterator[int]:
    """The positions from `at` on where `pattern` stands."""
    overlap = len(pattern) - 1
    while at < end:
        start = file.data_from(at)
        if start is None or start >= end:
            return
        chunk = file.read(start, min(WINDOW_BYTES, end - start))
        found = chunk.find(pattern)
        while found >= 0:
            yield start + found
            found = chunk.find(pattern, found + 1)
        if start + len(chunk) >= end or len(chunk) <= overlap:
            return
        at = start + len(chunk) - overlap


def erase(file: File, at: int, end: int) -> None:
    """Overwrite with zeros whatever is not zero from `at` to `end`. Not yet durable."""
    while (found := first_data(file, at, end)) is not None:
        size = min(WINDOW_BYTES, end - found)
        file.write(found, [bytes(size)])
        at = found + size


def overwrite(file: File, at: int, end: int) -> None:
    """Write zeros from `at` to `end`, whatever is seen there: after a failed fsync the system
    may show zeros that the disk does not have. Not yet durable."""
    while at < end:
        size = min(WINDOW_BYTES, end - at)
        file.write(at, [bytes(size)])
        at += size
