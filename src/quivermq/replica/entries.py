"""Translates between Raft's entries and the log's frames: the one place where the two meet.

The payload of a data or command entry is its frame, stamped by the leader. Raft makes two kinds of
entries by itself, no-ops and membership changes; their frames follow from the entry and from the
edge before it, so that every replica stores the same bytes.
"""

from quivermq.batches import Frame, FrameKind, Index
from quivermq.errors import BrokenInvariant, Corrupt
from quivermq.log import Edge
from quivermq.raft import Entry, EntryKind


def frame_of(entry: Entry, before: Edge) -> Frame:
    """The frame of an entry that follows `before`; a leader's stamps are checked, not trusted."""
    if isinstance(entry.data, Frame):
        frame = entry.data
        if (frame.header.term, frame.header.index) != (entry.term, entry.index):
            raise BrokenInvariant(f"{frame} was sent as entry {entry.index} of term {entry.term}")
        return frame
    if not isinstance(entry.data, bytes | bytearray | memoryview):
        raise BrokenInvariant(f"entry {entry.index} holds {type(entry.data).__name__}")
    kind = FrameKind.MEMBERSHIP if entry.kind is EntryKind.MEMBERSHIP else FrameKind.NOOP
    return Frame.of(kind, bytes(entry.data)).stamped(
        term=entry.term,
        index=Index(entry.index),
        base_offset=before.next_offset,
        timestamp_ms=before.timestamp_ms,
    )


def entry_of(frame: Frame) -> Entry:
    """The entry that a stored frame stands for."""
    header = frame.header
    if header.kind == FrameKind.MEMBERSHIP:
        return Entry(header.term, header.index, EntryKind.MEMBERSHIP, bytes(frame.body))
    if header.kind == FrameKind.NOOP:
        return Entry(header.term, header.index)
    return Entry(header.term, header.index, EntryKind.NORMAL, frame)


def follow(before: Edge, frame: Frame) -> Edge:
    """The edge behind `frame`; a frame that does not follow is a leader's mistake, and ends us."""
    try:
        return before.after(frame.header)
    except Corrupt as error:
        raise BrokenInvariant(f"a leader sent what cannot follow: {error}") from error
