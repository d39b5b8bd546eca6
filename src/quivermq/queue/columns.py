"""Packs numbers into bytes, a column at a time: little-endian on every machine."""

from array import array
from collections.abc import Iterable
from struct import Struct
from typing import Any, Final

from quivermq.errors import BrokenInvariant

_IS_BIG_ENDIAN: Final = array("H", [1]).tobytes() == b"\x00\x01"


def column(code: str, numbers: Iterable[int]) -> bytes:
    """Numbers of one kind as bytes."""
    made = array(code, numbers)
    _to_native(made)
    return made.tobytes()


def _to_native(numbers: "array[int]") -> None:
    if _IS_BIG_ENDIAN:
        numbers.byteswap()


class ColumnReader:
    """Reads columns of numbers from bytes, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def column(self, code: str, count: int) -> "array[int]":
        """The next numbers; there must be so many."""
        found = array(code)
        found.frombytes(self.take(count * found.itemsize))
        _to_native(found)
        return found

    def values(self, layout: Struct) -> tuple[Any, ...]:
        """The next values of a fixed layout."""
        return layout.unpack(self.take(layout.size))

    def take(self, size: int) -> memoryview:
        """The next bytes."""
        found = self._data[self._at : self._at + size]
        if len(found) != size:
            raise BrokenInvariant(f"{size - len(found)} bytes are missing")
        self._at += size
        return found

    @property
    def has_more(self) -> bool:
        """Not everything was read."""
        return self._at < len(self._data)

    def end(self, of: str) -> None:
        """Everything must have been read."""
        if self._at != len(self._data):
            raise BrokenInvariant(f"{len(self._data) - self._at} bytes are left behind {of}")
