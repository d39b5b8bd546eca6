"""Committed offsets: how far each group says that it has got in this partition.

The last word holds, so a group may also go back. Whoever commits is believed: what was read is
known to the reader only.
"""

from struct import Struct
from typing import Final

from quivermq.batches import Buffer, Offset
from quivermq.errors import InvalidRequest
from quivermq.queue.names import check_name

_COUNT: Final = Struct("<I")
_OFFSET: Final = Struct("<QB")


def offset_change(group: str, offset: int) -> bytes:
    """The body of a commit, checked."""
    check_name("the name of a group", group)
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**63:
        raise InvalidRequest(f"group {group} cannot commit offset {offset!r}")
    return _packed(group, Offset(offset))


class Offsets(dict[str, Offset]):
    """The committed offset of each group, by name. Who reads it must not change it."""

    __slots__ = ()

    def apply(self, body: Buffer) -> None:
        """A committed change."""
        group, offset, _ = _unpacked(memoryview(body), 0)
        self[group] = offset

    def pack(self) -> bytes:
        """The same bytes on every replica that applied the same entries."""
        if not self:
            return b""
        return b"".join(
            (_COUNT.pack(len(self)), *(_packed(group, self[group]) for group in sorted(self)))
        )

    @classmethod
    def unpack(cls, data: memoryview) -> "Offsets":
        offsets = cls()
        if len(data):
            (count,) = _COUNT.unpack_from(data)
            at = _COUNT.size
            for _ in range(count):
                group, offset, at = _unpacked(data, at)
                offsets[group] = offset
        return offsets


def _packed(group: str, offset: Offset) -> bytes:
    name = group.encode("ascii")
    return _OFFSET.pack(offset, len(name)) + name


def _unpacked(data: memoryview, at: int) -> tuple[str, Offset, int]:
    """Group, offset, and where the next one starts."""
    offset, size = _OFFSET.unpack_from(data, at)
    at += _OFFSET.size
    return str(data[at : at + size], "ascii"), Offset(offset), at + size
