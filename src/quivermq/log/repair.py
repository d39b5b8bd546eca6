"""Repairs a segment with entries from a peer: writes a new file in place of the old one."""

from collections.abc import Iterator, Mapping

from quivermq.batches import Frame, Index
from quivermq.errors import Corrupt
from quivermq.log.disk import Disk, undoing
from quivermq.log.edge import Edge
from quivermq.log.index import SegmentIndex
from quivermq.log.layout import SEGMENT_HEADER_BYTES, TEMPORARY, Footer, SegmentHeader
from quivermq.log.segment import ActiveSegment, Segment, segment_path

_GROUP_BYTES = 1 << 20


def rebuilt_segment(
    disk: Disk,
    folder: str,
    head: SegmentHeader,
    frames: Iterator[Frame],
    end: Edge,
    commit_index: Index = Index(0),
) -> ActiveSegment:
    """A segment with just these entries, in a file that is not yet part of the log.

    Raises `Corrupt`, and changes nothing, unless they lead from the header's edge to `end`.
    """
    path = segment_path(folder, head.start.next_index)
    with undoing():
        file = disk.create(path + TEMPORARY)
        file.write(0, [head.pack()])
        index = SegmentIndex(head.start.next_index)
        segment = ActiveSegment(path, file, head, index, head.start, SEGMENT_HEADER_BYTES)
        _fill(segment, frames, end)
        segment.sync(commit_index)
    return segment


def sealed_anew(
    disk: Disk, folder: str, head: SegmentHeader, frames: Iterator[Frame], end: Edge
) -> Footer:
    """The same, sealed and in its place; durable when this returns."""
    segment = rebuilt_segment(disk, folder, head, frames, end)
    with undoing():
        footer = segment.seal()
    put_in_place(disk, folder, segment)
    return footer


def _fill(segment: ActiveSegment, frames: Iterator[Frame], end: Edge) -> None:
    group: list[Frame] = []
    edges: list[Edge] = []
    edge, size = segment.edge, 0
    for frame in frames:
        edge = edge.after(frame.header)
        group.append(frame)
        edges.append(edge)
        size += len(frame)
        if size > _GROUP_BYTES:
            segment.append(group, edges)
            group, edges, size = [], [], 0
    if group:
        segment.append(group, edges)
    if edge != end:
        raise Corrupt(f"the entries lead to {edge}, the segment ends at {end}")


def put_in_place(disk: Disk, folder: str, segment: ActiveSegment) -> None:
    """Give a rebuilt segment its name; durable when this returns."""
    disk.rename(segment.path + TEMPORARY, segment.path)
    disk.sync_folder(folder)


def mixed_entries(
    segment: Segment | None, first: Index, end: Index, given: Mapping[Index, Frame]
) -> Iterator[Frame]:
    """All entries of a segment: those that were given, and its own where they are intact.

    Where the segment's index still knows an entry's checksum, only that very entry is taken.
    """
    for number in range(first, end):
        index = Index(number)
        frame = given.get(index)
        if frame is None:
            if segment is None:
                raise Corrupt(f"entry {index} is missing and was not given")
            frame = segment.read(index, Index(index + 1))[0]
        elif segment is not None:
            known = segment.index.checksums[index - first]
            if known and known != int.from_bytes(frame.packed_header[-4:], "little"):
                raise Corrupt(f"entry {index} was given, but another one stood here")
        yield frame
