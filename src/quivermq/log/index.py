"""The index of one segment's entries: 24 bytes an entry, in arrays, found by bisection."""

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import Final

from crc32c import crc32c

from quivermq.batches import Buffer, Frame, Index, Offset
from quivermq.errors import Corrupt, UnsupportedFormat
from quivermq.log.edge import Edge
from quivermq.log.settings import ENTRIES_MAX

_RUN: Final = Struct("<QQ")
VERSION: Final = 2
_COUNTS: Final = Struct("<III")
HEAD_BYTES: Final = _COUNTS.size
_ENTRY_BYTES: Final = 4 + 4 + 8 + 8


class SegmentIndex:
    """Position, header checksum, first offset and latest timestamp of each entry, and its term."""

    __slots__ = ("checksums", "first", "offsets", "positions", "runs", "timestamps")

    def __init__(self, first: Index) -> None:
        self.first = first
        self.positions = array("I")
        self.checksums = array("I")
        self.offsets = array("Q")
        self.timestamps = array("Q")
        self.runs: list[tuple[Index, int]] = []
        """The first index of each term: terms change rarely, so they are kept as runs."""

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, frame: Frame, position: int, timestamp_ms: int) -> None:
        """The next entry; `timestamp_ms` is the latest up to it, so that times never go back."""
        header = frame.header
        if not self.runs or self.runs[-1][1] != header.term:
            self.runs.append((header.index, header.term))
        self.positions.append(position)
        self.checksums.append(int.from_bytes(frame.packed_header[-4:], "little"))
        self.offsets.append(header.base_offset)
        self.timestamps.append(timestamp_ms)

    def add_hole(self, position: int, before: Edge, behind: Edge) -> None:
        """Entries that are missing between two edges: their place is kept, their content is not.

        `Corrupt` for more of them than a segment can hold.
        """
        count = behind.next_index - before.next_index
        if not 0 < count <= ENTRIES_MAX:
            raise Corrupt(f"{count:,} entries are said to be missing behind {before}")
        self.positions.extend(array("I", [position]) * count)
        self.checksums.extend(array("I", [0]) * count)
        self.offsets.extend(array("Q", [before.next_offset]) * count)
        self.timestamps.extend(array("Q", [before.timestamp_ms]) * count)
        self.timestamps[-1] = behind.timestamp_ms
        self.runs.append((before.next_index, behind.term))

    def before(self, index: Index) -> "SegmentIndex":
        """The same without the entries from `index` on; who reads this one is not disturbed."""
        keep = index - self.first
        cut = SegmentIndex(self.first)
        cut.positions, cut.checksums = self.positions[:keep], self.checksums[:keep]
        cut.offsets, cut.timestamps = self.offsets[:keep], self.timestamps[:keep]
        cut.runs = [run for run in self.runs if run[0] < index]
        return cut

    def edge_before(self, index: Index, start: Edge) -> Edge:
        """The edge before an entry of this segment, which starts at `start`; `Corrupt` in the
        middle of a hole, where it is unknown."""
        number = index - self.first
        if number == 0:
            return start
        if self.positions[number] == self.positions[number - 1]:
            raise Corrupt(f"what is before entry {index} is unknown: it is damaged as well")
        term = self.term_at(Index(index - 1))
        return Edge(index, Offset(self.offsets[number]), term, self.timestamps[number - 1])

    def term_at(self, index: Index) -> int:
        """The term of an entry of this segment."""
        return self.runs[bisect_right(self.runs, (index, sys.maxsize)) - 1][1]

    def with_offset(self, offset: Offset) -> Index:
        """The entry that holds `offset`; entries without messages are never chosen for one."""
        return Index(self.first + bisect_right(self.offsets, offset) - 1)

    def from_time(self, timestamp_ms: int) -> Index:
        """The first entry with a timestamp of at least `timestamp_ms`; past the end if none."""
        return Index(self.first + bisect_left(self.timestamps, timestamp_ms))

    def pack(self) -> bytes:
        """The index as bytes, little-endian column after column."""
        columns = [self.positions, self.checksums, self.offsets, self.timestamps]
        packed = [_COUNTS.pack(VERSION, len(self), len(self.runs))]
        packed += [_little_endian(column).tobytes() for column in columns]
        packed += [_RUN.pack(*run) for run in self.runs]
        return b"".join(packed)

    @classmethod
    def unpack(cls, first: Index, buffer: Buffer, checksum: int) -> "SegmentIndex":
        """Read what `pack` wrote; raises `Corrupt` or `UnsupportedFormat`."""
        if crc32c(buffer) != checksum or len(buffer) < _COUNTS.size:
            raise Corrupt("the segment's index fails its checksum")
        version, count, runs = _COUNTS.unpack_from(buffer)
        if version != VERSION:
            raise UnsupportedFormat(
                f"the segment's index has format version {version}; this build reads version "
                f"{VERSION}: start the release that wrote it, or a later one"
            )
        if len(buffer) != _COUNTS.size + count * _ENTRY_BYTES + runs * _RUN.size:
            raise Corrupt(f"the segment's index has {len(buffer)} bytes for {count} entries")
        if count and not runs:
            raise Corrupt(f"the segment's index has {count} entries of no term")
        index = cls(first)
        view = memoryview(buffer)
        at = _COUNTS.size
        for column in (index.positions, index.checksums, index.offsets, index.timestamps):
            size = count * column.itemsize
            column.frombytes(view[at : at + size])
            _little_endian(column, in_place=True)
            at += size
        index.runs = [(Index(run[0]), run[1]) for run in _RUN.iter_unpack(view[at:])]
        return index


def is_of_this_release(head: Buffer) -> bool:
    """By the first bytes of an index; if not, the rest tells whether it is just damaged."""
    return len(head) >= HEAD_BYTES and _COUNTS.unpack_from(head)[0] == VERSION


def _little_endian(column: "array[int]", *, in_place: bool = False) -> "array[int]":
    if sys.byteorder == "little":
        return column
    swapped = column if in_place else column[:]
    swapped.byteswap()
    return swapped
