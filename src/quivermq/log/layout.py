"""The names and fixed parts of a partition's files. Byte tables in `docs/formats.md`.

state, state.copy             whose log it is, term, vote, where the log starts
synced                        how far the last segment was fsynced
00000000000000000001.seg      segment: header, frames and marks, and once sealed a footer
00000000000000000001.ckpt     checkpoint of the state machine before the segment's first entry
00000000000000000001.ckpt.copy  a second copy of the first checkpoint
*.tmp                         not yet part of the log; removed when it is opened
"""

from typing import Final, NamedTuple, Self

from quivermq.batches import Buffer, Index, Offset
from quivermq.log.edge import Edge
from quivermq.log.records import Record

STATES: Final = ("state", "state.copy")
SYNCED: Final = "synced"
SEGMENT: Final = ".seg"
CHECKPOINT: Final = ".ckpt"
TEMPORARY: Final = ".tmp"
LOG_ID_BYTES: Final = 16
SECRET_BYTES: Final = 16

_DIGITS: Final = 20
_HEADER: Final = Record(b"QUIVRSEG", "16s16sQQQQ", 96, version_1="16sQQQQ")
_FOOTER: Final = Record(b"QUIVREND", "16sQQQQQQQQQQQI", 160, version_1="16sQQQQQQQQQQQI")

SEGMENT_HEADER_BYTES: Final = _HEADER.size
FOOTER_BYTES: Final = _FOOTER.size


def file_name(index: Index, kind: str) -> str:
    """The name of the segment or checkpoint that starts at `index`; sorts as numbers do."""
    return f"{index:0{_DIGITS}d}{kind}"


def index_of(name: str, kind: str) -> Index | None:
    """The index in a name that `file_name` made, or None for any other name."""
    digits = name.removesuffix(kind)
    if name == digits or len(digits) != _DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return Index(int(digits))


class SegmentHeader(NamedTuple):
    """The start of a segment file: whose it is, and the edge at which it starts."""

    log_id: bytes
    secret: bytes
    """The secret in the marks of this file; see `State.secret`."""
    start: Edge

    def pack(self) -> bytes:
        return _HEADER.pack(self.log_id, self.secret, *self.start)

    @classmethod
    def unpack(cls, buffer: Buffer) -> Self:
        log_id, secret, *start = _HEADER.unpack(buffer)
        return cls(log_id, secret, Edge(*start))


class Footer(NamedTuple):
    """The end of a sealed segment file: enough to know it without reading it."""

    log_id: bytes
    start: Edge
    end: Edge
    first_term: int
    """The term of the first entry; with `end.term` it answers for most segments."""
    data_bytes: int
    """Where the frames end and the index starts."""
    index_bytes: int
    index_crc: int

    @property
    def file_bytes(self) -> int:
        """The exact size of the sealed file."""
        return self.data_bytes + self.index_bytes + FOOTER_BYTES

    @property
    def first_index(self) -> Index:
        return self.start.next_index

    @property
    def next_index(self) -> Index:
        return self.end.next_index

    @property
    def first_offset(self) -> Offset:
        return self.start.next_offset

    def pack(self) -> bytes:
        return _FOOTER.pack(
            self.log_id,
            *self.start,
            *self.end,
            self.first_term,
            self.data_bytes,
            self.index_bytes,
            self.index_crc,
        )

    @classmethod
    def unpack(cls, buffer: Buffer) -> Self:
        log_id, *rest = _FOOTER.unpack(buffer)
        return cls(log_id, Edge(*rest[:4]), Edge(*rest[4:8]), *rest[8:])
