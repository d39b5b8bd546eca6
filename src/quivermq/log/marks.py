"""Marks: notes in the segment that everything before them was fsynced.

A mark is written behind the entries of each fsync, right after it. It costs no fsync of its own:
it survives the death of the process at once, and a power loss from the next fsync on. So a bad
frame with a mark behind it was durable and is damage; one without may be a torn write.

A mark bears the log's secret and its own position, so that bytes which only look like one (made by
a client inside of a message, or left over from another file) prove nothing. The secret stands at
the same place in marks of every version.
"""

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from quivermq.batches import HEADER_BYTES, Frame, FrameKind, Header, Index
from quivermq.errors import UnsupportedFormat
from quivermq.log.edge import Edge

_BODY: Final = Struct("<16sQQ")
MARK_BYTES: Final = HEADER_BYTES + _BODY.size


class Mark(NamedTuple):
    """The content of a mark."""

    edge: Edge
    """The log's end when it was fsynced."""
    commit_index: Index
    """How much of that was known to be committed."""


def packed_mark(secret: bytes, position: int, mark: Mark) -> bytes:
    """The bytes of a mark that stands at `position`."""
    body = _BODY.pack(secret, position, mark.commit_index)
    edge = mark.edge
    header = Header(
        kind=FrameKind.MARK,
        body_bytes=len(body),
        body_crc=crc32c(body),
        term=edge.term,
        index=Index(edge.next_index - 1),
        base_offset=edge.next_offset,
        timestamp_ms=edge.timestamp_ms,
        decoded_bytes=len(body),
    )
    return header.pack() + body


def read_mark(frame: Frame, secret: bytes, position: int) -> Mark | None:
    """The mark at `position`, or None if it is not one of this log at this place."""
    header = frame.header
    if header.kind != FrameKind.MARK:
        return None
    check_form(header)
    borne, stood, commit_index = _BODY.unpack(frame.body)
    if borne != secret or stood != position:
        return None
    edge = Edge(Index(header.index + 1), header.base_offset, header.term, header.timestamp_ms)
    return Mark(edge, Index(min(commit_index, header.index)))


def check_form(header: Header) -> None:
    """Raise `UnsupportedFormat` for the header of a mark of another form."""
    if header.body_bytes != _BODY.size:
        raise UnsupportedFormat(
            f"a mark of {header.body_bytes} bytes; this build reads {_BODY.size}: "
            "start the release that wrote it, or a later one"
        )
