"""Checks, before a log is touched, that all of it is of this release.

What another release wrote must stay as it is: what this one takes for damage, or for left over, may
be what that one needs. So every record and every frame that opening the log would act on is looked
at first, and nothing is changed before all of them are known. Damage is of no interest here.
"""

from contextlib import suppress
from typing import Final

from quivermq.batches import HEADER_BYTES, Header, Index
from quivermq.errors import Corrupt, TooLarge, UnsupportedFormat
from quivermq.log.checkpoints import COPY, RESET, check_release
from quivermq.log.disk import Disk, File, Unreadable
from quivermq.log.edge import Edge
from quivermq.log.index import HEAD_BYTES, SegmentIndex, is_of_this_release
from quivermq.log.layout import CHECKPOINT, SEGMENT, SEGMENT_HEADER_BYTES, SegmentHeader, index_of
from quivermq.log.scan import Scan, Scanner
from quivermq.log.segment import read_footer, read_head, segment_path
from quivermq.log.settings import STORED_LIMITS
from quivermq.log.state import State
from quivermq.log.synced import NOTHING, Synced

_DAMAGE: Final = (Corrupt, TooLarge, Unreadable)


class Survey:
    """One look at a log's files; `scans` are walks that need not be made again."""

    def __init__(self, disk: Disk, folder: str, state: State, told: Synced = NOTHING) -> None:
        self._disk = disk
        self._folder = folder
        self._state = state
        self._told = told
        self.scans: dict[Index, tuple[SegmentHeader, Scan]] = {}

    def run(self) -> "Survey":
        """Raises `UnsupportedFormat`, with the path, if anything is of another release."""
        for name in self._disk.names(self._folder):
            path = f"{self._folder}/{name}"
            first = index_of(name, SEGMENT)
            try:
                if first is not None:
                    self._look_at_segment(first)
                elif _is_checkpoint(name):
                    with suppress(*_DAMAGE):
                        check_release(self._disk.open_to_read(path))
            except UnsupportedFormat as error:
                text = str(error)
                raise UnsupportedFormat(text if path in text else f"{path}: {text}") from error
        return self

    def _look_at_segment(self, first: Index) -> None:
        path = segment_path(self._folder, first)
        with suppress(*_DAMAGE):
            file = self._disk.open_to_read(path)
            try:
                head = read_head(path, file, first, self._state.log_id)
            except _DAMAGE:
                head = None
            try:
                footer = read_footer(self._disk, self._folder, first, self._state.log_id)
            except _DAMAGE:
                self._walk(first, file, head)
            else:
                if not is_of_this_release(file.read(footer.data_bytes, HEAD_BYTES)):
                    packed = file.read(footer.data_bytes, footer.index_bytes)
                    SegmentIndex.unpack(first, packed, footer.index_crc)

    def _walk(self, first: Index, file: File, head: SegmentHeader | None) -> None:
        """The frames of a segment that is not sealed, or whose footer is damaged."""
        known = head or self._guessed_head(first, file)
        told = self._told if self._told.segment == first else None
        scan = Scanner(segment_path(self._folder, first), file, known, told=told).run()
        if head is not None:
            self.scans[first] = (head, scan)

    def _guessed_head(self, first: Index, file: File) -> SegmentHeader:
        """The header as the first entry implies it: enough to walk on from there."""
        start = Edge(first)
        with suppress(*_DAMAGE):
            data = file.read(SEGMENT_HEADER_BYTES, HEADER_BYTES)
            header = Header.unpack(data, 0, STORED_LIMITS)
            start = Edge(header.index, header.base_offset, header.term)
        return SegmentHeader(self._state.log_id, self._state.secret, start)


def _is_checkpoint(name: str) -> bool:
    return index_of(name.removesuffix(RESET).removesuffix(COPY), CHECKPOINT) is not None
