"""A frame: header and body. The unit of the wire, of Raft and of the log, the same bytes in all.

Building, parsing and stamping never look into the body and never copy it.
"""

from collections.abc import Iterator
from typing import Self

from crc32c import crc32c

from quivermq.batches.header import HEADER_BYTES, Buffer, FrameKind, Header, Index, Offset
from quivermq.batches.limits import DEFAULT_LIMITS, Limits
from quivermq.errors import Corrupt


class Frame:
    """An immutable header with its body, which may be a view into a larger received buffer."""

    __slots__ = ("body", "header", "packed_header")

    def __init__(self, header: Header, body: Buffer, packed_header: bytes | None = None) -> None:
        self.header = header
        self.body = body
        self.packed_header = header.pack() if packed_header is None else packed_header

    @classmethod
    def of(cls, kind: FrameKind, body: Buffer = b"", limits: Limits = DEFAULT_LIMITS) -> Self:
        """An entry that is not messages: a command, a membership change, a no-op.

        Raises what `parse` would, so that no frame is stored that cannot be read back.
        """
        size = len(body)
        header = Header(kind, body_bytes=size, body_crc=crc32c(body), decoded_bytes=size)
        header.check(limits)
        return cls(header, body)

    @classmethod
    def parse(cls, buffer: Buffer, at: int = 0, limits: Limits = DEFAULT_LIMITS) -> Self:
        """The frame at byte `at`, its body a view of `buffer`; raises unless both checksums hold.

        The body's checksum was made by its producer, so it covers every hop since.
        """
        view = memoryview(buffer)
        header = Header.unpack(view, at, limits)
        start = at + HEADER_BYTES
        body = view[start : start + header.body_bytes]
        if len(body) != header.body_bytes:
            raise Corrupt(f"the body has {header.body_bytes} bytes, {len(body)} are left")
        if crc32c(body) != header.body_crc:
            raise Corrupt("the frame body fails its checksum")
        return cls(header, body, bytes(view[at:start]))

    @classmethod
    def parse_all(cls, buffer: Buffer, limits: Limits = DEFAULT_LIMITS) -> Iterator[Self]:
        """The frames that fill `buffer` back to back."""
        at = 0
        while at < len(buffer):
            frame = cls.parse(buffer, at, limits)
            yield frame
            at += frame.header.frame_bytes

    def stamped(self, *, term: int, index: Index, base_offset: Offset, timestamp_ms: int) -> Self:
        """The same body under a header that says where the leader put it."""
        return type(self)(self.header.stamped(term, index, base_offset, timestamp_ms), self.body)

    def buffers(self) -> tuple[bytes, Buffer]:
        """The buffers for a gathering write: no copy joins them."""
        return self.packed_header, self.body

    def __bytes__(self) -> bytes:
        return self.packed_header + bytes(self.body)

    def __len__(self) -> int:
        return HEADER_BYTES + self.header.body_bytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frame):
            return NotImplemented
        return self.packed_header == other.packed_header and self.body == other.body

    def __hash__(self) -> int:
        return hash(self.packed_header)

    def __repr__(self) -> str:
        header = self.header
        return (
            f"<Frame {FrameKind(header.kind).name.lower()} term={header.term} index={header.index} "
            f"offset={header.base_offset}+{header.count} bytes={header.frame_bytes}>"
        )
