"""Small checksummed records, the common form of everything in the log's files but frames.

8 bytes magic | u16 version | payload | u32 CRC-32C of all before
"""

from struct import Struct
from typing import Any, Final

from crc32c import crc32c

from quivermq.batches import Buffer
from quivermq.errors import Corrupt, UnsupportedFormat

VERSION: Final = 1
_CHECKSUM: Final = Struct("<I")


class Record:
    """A layout: a magic that names it, and the struct of its payload."""

    def __init__(self, magic: bytes, payload: str) -> None:
        self.magic = magic
        self._struct = Struct("<8sH" + payload)
        self.size = self._struct.size + _CHECKSUM.size

    def pack(self, *values: Any) -> bytes:
        packed = self._struct.pack(self.magic, VERSION, *values)
        return packed + _CHECKSUM.pack(crc32c(packed))

    def unpack(self, buffer: Buffer) -> tuple[Any, ...]:
        """The payload's values; raises `Corrupt` or `UnsupportedFormat`."""
        name = self.magic.decode()
        if len(buffer) < self.size:
            raise Corrupt(f"{name}: {len(buffer)} bytes instead of {self.size}")
        payload = memoryview(buffer)[: self._struct.size]
        magic, version, *values = self._struct.unpack(payload)
        if magic != self.magic:
            raise Corrupt(f"{name}: the bytes start with {magic!r}")
        if crc32c(payload) != _CHECKSUM.unpack_from(buffer, self._struct.size)[0]:
            raise Corrupt(f"{name}: the checksum does not match")
        if version != VERSION:
            raise UnsupportedFormat(
                f"{name}: format version {version}; this build reads version {VERSION}"
            )
        return tuple(values)
