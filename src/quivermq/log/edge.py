"""The edge between two entries: all that must be known of what lies before to go on after it.

A segment starts at an edge, a checkpoint is taken at one, and the log ends at one. Following an
edge with the next entry is the one place where the log's numbering rules are written down.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

from quivermq.batches import Frame, FrameKind, Header, Index, Limits, Offset
from quivermq.errors import BrokenInvariant, Corrupt, OffsetOutOfRange


class Edge(NamedTuple):
    """A position between entries."""

    next_index: Index = Index(1)
    next_offset: Offset = Offset(0)
    term: int = 0
    """The term of the entry before; kept when that entry is dropped, as Raft needs it."""
    timestamp_ms: int = 0
    """The latest timestamp before."""

    def after(self, header: Header) -> Self:
        """The edge behind the entry with this header, or `Corrupt` if it does not belong here."""
        if header.index != self.next_index:
            raise Corrupt(f"entry {header.index} stands where {self.next_index} belongs")
        if header.base_offset != self.next_offset:
            raise Corrupt(
                f"entry {header.index} starts at offset {header.base_offset} "
                f"where {self.next_offset} belongs"
            )
        if header.term < self.term:
            raise Corrupt(f"entry {header.index} has term {header.term} after term {self.term}")
        return type(self)(
            Index(header.index + 1),
            header.next_offset,
            header.term,
            max(self.timestamp_ms, header.timestamp_ms),
        )


def edges_behind(edge: Edge, frames: Sequence[Frame], limits: Limits, folder: str) -> list[Edge]:
    """The edge behind each frame; raises unless recovery would accept every one of them."""
    edges = []
    for frame in frames:
        header = frame.header
        header.check(limits)
        if header.kind == FrameKind.MARK or len(frame.body) != header.body_bytes:
            raise BrokenInvariant(f"{folder}: {frame} is no entry")
        try:
            edge = edge.after(header)
        except Corrupt as error:
            raise BrokenInvariant(f"{folder}: {error}") from error
        edges.append(edge)
    return edges


def not_kept(what: str, start: Edge, end: Edge) -> OffsetOutOfRange:
    """The refusal of something that is not in a log from `start` to `end`."""
    first, behind = start.next_offset, end.next_offset
    held = f"the log holds offsets from {first} to {behind - 1}"
    empty = f"the log is empty, the next offset is {behind}"
    text = f"{what} is not kept: {held if first < behind else empty}"
    return OffsetOutOfRange(text, earliest=first, end=behind)
