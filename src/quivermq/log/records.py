"""Small checksummed records, the common form of everything in the log's files but frames.

8 bytes magic | u16 version | payload | zeros | u32 CRC-32C of all before

A record keeps its size, and its checksum the place, in every version: intact bytes of a later
release are told from damaged ones, and fields can be added where the zeros are.
"""

from struct import Struct
from typing import Any, Final

from crc32c import crc32c

from quivermq.batches import Buffer
from quivermq.errors import Corrupt, UnsupportedFormat

VERSION: Final = 2
_START: Final = Struct("<8sH")
_CHECKSUM: Final = Struct("<I")


class Record:
    """A layout: a magic that names it, the struct of its payload, and its size."""

    def __init__(self, magic: bytes, payload: str, size: int, *, version_1: str) -> None:
        """`version_1` is the payload of the first version, whose checksum stood right behind it."""
        self.magic = magic
        self.size = size
        self._struct = Struct(_START.format + payload)
        self._size_1 = Struct(_START.format + version_1).size + _CHECKSUM.size
        if self._struct.size > size - _CHECKSUM.size:
            raise ValueError(f"{magic!r} does not fit {size} bytes")

    def pack(self, *values: Any) -> bytes:
        packed = self._struct.pack(self.magic, VERSION, *values)
        packed = packed.ljust(self.size - _CHECKSUM.size, b"\0")
        return packed + _CHECKSUM.pack(crc32c(packed))

    def unpack(self, buffer: Buffer) -> tuple[Any, ...]:
        """The payload's values; raises `Corrupt`, or `UnsupportedFormat` if it is intact and of
        another release."""
        name = self.magic.decode()
        if len(buffer) < _START.size:
            raise Corrupt(f"{name}: {len(buffer)} bytes instead of {self.size}")
        magic, version = _START.unpack_from(buffer)
        if magic != self.magic:
            raise Corrupt(f"{name}: the bytes start with {magic!r}")
        size = self._size_1 if version == 1 else self.size
        if len(buffer) < size:
            raise Corrupt(f"{name}: {len(buffer)} bytes instead of {size}")
        checked = memoryview(buffer)[: size - _CHECKSUM.size]
        if crc32c(checked) != _CHECKSUM.unpack_from(buffer, len(checked))[0]:
            raise Corrupt(f"{name}: the checksum does not match")
        if version != VERSION:
            raise UnsupportedFormat(
                f"{name}: format version {version}; this build reads version {VERSION}: "
                "start the release that wrote it, or a later one"
            )
        return self._struct.unpack_from(buffer)[2:]
