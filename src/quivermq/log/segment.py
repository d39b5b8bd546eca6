"""Segment files: an index over a file, and the active one, which grows until it is sealed."""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from crc32c import crc32c

from quivermq.batches import Frame, Index
from quivermq.errors import Corrupt, TooLarge
from quivermq.log.damage import Damage
from quivermq.log.disk import Disk, File, Unreadable, undoing
from quivermq.log.edge import Edge
from quivermq.log.index import SegmentIndex
from quivermq.log.layout import (
    FOOTER_BYTES,
    SEGMENT,
    SEGMENT_HEADER_BYTES,
    TEMPORARY,
    Footer,
    SegmentHeader,
    file_name,
)
from quivermq.log.marks import MARK_BYTES, Mark, packed_mark
from quivermq.log.scan import Scan, Scanner
from quivermq.log.settings import STORED_LIMITS, LogSettings
from quivermq.log.synced import Synced
from quivermq.log.window import WINDOW_BYTES, erase, overwrite

_GROWTH: Final = 16


class DamagedEntry(Corrupt):
    """An entry that fails its checks when it is read."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(str(damage))
        self.damage = damage


class ForeignFile(Corrupt):
    """An intact file of another log, or of another place in this one."""


class Segment:
    """A file of frames with the index of its entries."""

    __slots__ = ("end", "file", "index", "path")

    def __init__(self, path: str, file: File, index: SegmentIndex, end: int) -> None:
        self.path = path
        self.file = file
        self.index = index
        self.end = end
        """Behind the last frame or mark."""

    @classmethod
    def load(cls, disk: Disk, folder: str, footer: Footer, secret: bytes) -> "Segment":
        """A sealed segment, its index read from the file, or made again if it is damaged."""
        path = segment_path(folder, footer.first_index)
        file = disk.open_to_read(path)
        try:
            packed = file.read(footer.data_bytes, footer.index_bytes)
            index = SegmentIndex.unpack(footer.first_index, packed, footer.index_crc)
            if len(index) != footer.next_index - footer.first_index:
                raise Corrupt(
                    f"an index of {len(index)} entries from entry {footer.first_index} on"
                )
        except (Corrupt, Unreadable):
            head = SegmentHeader(footer.log_id, secret, footer.start)
            end = footer.data_bytes
            index = Scanner(path, file, head, until=footer.end, size=end).run().index
        return cls(path, file, index, footer.data_bytes)

    def read(self, first: Index, end: Index) -> list[Frame]:
        """The entries from `first` to before `end`, in one read, each checked to be itself.

        Stops before an entry that is damaged, and raises `DamagedEntry` if it is the first.
        """
        try:
            return self._read(first, end)
        except Unreadable as error:
            if end - first == 1:
                at = self.index.positions[first - self.index.first]
                raise DamagedEntry(Damage(self.path, at, first, first, str(error))) from error
        # The disk has lost some of it: what is before that can still be read.
        frames = self.read(first, Index(first + 1))
        with suppress(DamagedEntry):
            for index in range(first + 1, end):
                frames += self.read(Index(index), Index(index + 1))
        return frames

    def damage(self) -> list[Damage]:
        """Every entry that cannot be read, neighbours together. Reads the whole file."""
        found: list[Damage] = []
        index, end = self.index.first, Index(self.index.first + len(self.index))
        while index < end:
            try:
                count = len(self.read(index, self.fitting(index, end, WINDOW_BYTES)))
                index = Index(index + count)
            except DamagedEntry as error:
                if found and found[-1].last_index == index - 1:
                    found[-1] = replace(found[-1], last_index=index)
                else:
                    found.append(error.damage)
                index = Index(index + 1)
        return found

    def _read(self, first: Index, end: Index) -> list[Frame]:
        low, high = first - self.index.first, end - self.index.first
        start = self.index.positions[low]
        data = memoryview(self.file.read(start, self._position(high) - start))
        frames: list[Frame] = []
        for number in range(low, high):
            try:
                frames.append(self._entry(data, start, number))
            except (Corrupt, TooLarge) as error:
                if frames:
                    break
                at, index = self.index.positions[number], Index(self.index.first + number)
                raise DamagedEntry(Damage(self.path, at, index, index, str(error))) from error
        return frames

    def _entry(self, data: memoryview, start: int, number: int) -> Frame:
        frame = Frame.parse(data, self.index.positions[number] - start, STORED_LIMITS)
        # The checksum names the very entry that was written: a stale block of the disk, or an
        # entry of another term in the same place, may be intact and still not be it.
        if int.from_bytes(frame.packed_header[-4:], "little") != self.index.checksums[number]:
            raise Corrupt("another entry stands in its place")
        return frame

    def fitting(self, first: Index, end: Index, bytes_max: int) -> Index:
        """The end of the longest run of entries from `first` within `bytes_max`; at least one."""
        low, high = first - self.index.first, end - self.index.first
        most = self.index.positions[low] + bytes_max
        if self._position(high) > most:
            high = max(low + 1, bisect_right(self.index.positions, most, low + 1, high) - 1)
        return Index(self.index.first + high)

    def _position(self, number: int) -> int:
        """Where entry `number` starts, or where the one before the end ends."""
        positions = self.index.positions
        return positions[number] if number < len(positions) else self.end


class ActiveSegment(Segment):
    """The last segment of a log."""

    __slots__ = ("allocated", "edge", "head", "marked")

    def __init__(
        self, path: str, file: File, head: SegmentHeader, index: SegmentIndex, edge: Edge, end: int
    ) -> None:
        super().__init__(path, file, index, end)
        self.head = head
        self.edge = edge
        self.marked = end
        """Behind the last mark: everything before it was fsynced."""
        self.allocated = file.size()

    @classmethod
    def create(cls, disk: Disk, folder: str, head: SegmentHeader, size: int) -> "ActiveSegment":
        """A new empty segment; durable, name included, when this returns.

        It gets its name only when it is complete, so a segment that lacks its header is damaged.
        """
        path = segment_path(folder, head.start.next_index)
        with undoing():
            file = disk.create(path + TEMPORARY)
            file.allocate(size)
            file.write(0, [head.pack()])
            file.sync()
        disk.rename(path + TEMPORARY, path)
        disk.sync_folder(folder)
        index = SegmentIndex(head.start.next_index)
        return cls(path, file, head, index, head.start, SEGMENT_HEADER_BYTES)

    @classmethod
    def of_scan(cls, path: str, file: File, head: SegmentHeader, scan: Scan) -> "ActiveSegment":
        """The segment as a walk over its file found it."""
        segment = cls(path, file, head, scan.index, scan.edge, scan.end)
        segment.marked = scan.marked
        return segment

    def append(self, frames: Sequence[Frame], edges: Sequence[Edge]) -> None:
        """Write entries, each with the edge behind it, in one gathering write. Not yet durable."""
        buffers = [buffer for frame in frames for buffer in frame.buffers()]
        self.file.write(self.end, buffers)
        end = self.end
        for frame, edge in zip(frames, edges, strict=True):
            self.index.add(frame, end, edge.timestamp_ms)
            end += len(frame)
        # Last, so that a reader in another thread never sees an end without its entries.
        self.end, self.edge = end, edges[-1]

    def sync(self, commit_index: Index, unmarked_bytes_max: int = 0) -> Synced | None:
        """Make everything written durable, and say so in a mark, unless there is little to mark.

        Returns the mark, if one was written.
        """
        if self.end == self.marked:
            return None
        self.file.sync()
        if self.end - self.marked <= unmarked_bytes_max:
            return None
        mark = Mark(self.edge, Index(min(commit_index, self.edge.next_index - 1)))
        self.file.write(self.end, [packed_mark(self.head.secret, self.end, mark)])
        self.end += MARK_BYTES
        self.marked = self.end
        return self.synced(mark)

    def synced(self, mark: Mark) -> Synced:
        """The last mark and its place, to be told elsewhere."""
        return Synced(self.index.first, self.marked - MARK_BYTES, mark)

    def rewrite_unmarked(self) -> None:
        """Write again what no later mark vouches for, as it was read: the last mark, and what is
        behind it.

        If the fsync that should have stored it failed, the system shows it from memory, holds it
        for written, and would let the next fsync pass without it.
        """
        start = max(self.marked - MARK_BYTES, SEGMENT_HEADER_BYTES)
        if self.end > start:
            self.file.write(start, [self.file.read(start, self.end - start)])

    def room_for(self, size: int) -> int:
        """The file size that holds `size` more bytes and the mark behind them."""
        return self.end + size + MARK_BYTES

    def grow(self, size: int, settings: LogSettings) -> None:
        """Preallocate, durably, at least up to `size`.

        In few large steps: a file system keeps the first few pieces of a file in its inode, and
        an fsync has one block more to write for a file of many.
        """
        step = min(self.allocated * _GROWTH, self.allocated + settings.allocation_bytes_step)
        generous = max(size, min(step, settings.segment_bytes))
        with undoing():
            self.file.allocate(generous)
        self.file.sync()
        self.allocated = self.file.size()

    def erase_tail(self) -> None:
        """Leave nothing behind the end, durably: a failed write may have left whole frames there,
        which must not come back after a power loss in place of the next ones."""
        erase(self.file, self.end, self.allocated)
        self.file.sync()

    def cut(self, index: Index) -> None:
        """Erase the entries from `index` on, durably; `Corrupt` if its start is unknown."""
        number = index - self.index.first
        if number < len(self.index):
            self.edge = self.index.edge_before(index, self.head.start)
            self.end = self.index.positions[number]
            self.index = self.index.before(index)
        overwrite(self.file, self.end, self.allocated)
        self.file.sync()
        # The mark that vouched for what is kept may be gone: the next sync writes another.
        self.marked = SEGMENT_HEADER_BYTES

    def seal(self) -> Footer:
        """Write index and footer behind the entries, and cut the file to its exact size."""
        packed = self.index.pack()
        footer = self.footer(packed)
        self.file.write(self.end, [packed, footer.pack()])
        self.file.truncate(footer.file_bytes)
        self.file.sync()
        return footer

    def footer(self, packed_index: bytes = b"") -> Footer:
        """The segment's footer, also before it is written."""
        start = self.head.start
        return Footer(
            log_id=self.head.log_id,
            start=start,
            end=self.edge,
            first_term=self.index.runs[0][1] if self.index.runs else start.term,
            data_bytes=self.end,
            index_bytes=len(packed_index),
            index_crc=crc32c(packed_index),
        )

    def footer_room(self) -> int:
        """The file size that sealing needs; reserved before anything depends on it."""
        return self.end + MARK_BYTES + len(self.index.pack()) + FOOTER_BYTES


def segment_path(folder: str, first: Index) -> str:
    """The path of the segment that starts at `first`."""
    return f"{folder}/{file_name(first, SEGMENT)}"


def remove_segments(disk: Disk, folder: str, starts: Sequence[Index]) -> None:
    """Remove segment files, in this order. Durable once the folder is synced."""
    for first in starts:
        disk.remove(segment_path(folder, first))


def read_head(
    path: str, file: File, first: Index, log_id: bytes | None, secret: bytes | None = None
) -> SegmentHeader:
    """A segment's header, or `Corrupt` if it is not intact, or `ForeignFile` if it is intact and
    not this segment's, or not this log's where id and secret are given."""
    try:
        head = SegmentHeader.unpack(file.read(0, SEGMENT_HEADER_BYTES))
    except Corrupt as error:
        raise Corrupt(f"{path}: {error}") from error
    is_other = log_id not in {None, head.log_id} or secret not in {None, head.secret}
    if is_other or head.start.next_index != first:
        raise ForeignFile(f"{path} is a segment of another log or another place")
    return head


def read_footer(disk: Disk, folder: str, first: Index, log_id: bytes) -> Footer:
    """A sealed segment's footer, or `Corrupt` if it is not sealed, not intact or not this one's."""
    path = segment_path(folder, first)
    file = disk.open_to_read(path)
    size = file.size()
    try:
        footer = Footer.unpack(file.read(max(0, size - FOOTER_BYTES), FOOTER_BYTES))
        if footer.log_id != log_id or footer.first_index != first or footer.file_bytes != size:
            raise Corrupt("the footer of another segment")
    except Corrupt as error:
        raise Corrupt(f"{path}: {error}") from error
    return footer
