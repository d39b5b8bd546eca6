"""Reading a file from front to back through a bounded window."""

from collections.abc import Iterator
from typing import Final

from quivermq.log.disk import File

WINDOW_BYTES: Final = 1 << 20


class Window:
    """The part of a file that is in memory; moves forward as positions are asked for."""

    def __init__(self, file: File, end: int) -> None:
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


def first_data(file: File, at: int, end: int) -> int | None:
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


def occurrences(file: File, pattern: bytes, at: int, end: int) -> Iterator[int]:
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
