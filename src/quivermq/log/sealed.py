"""The sealed segments of a log: known by their footers, opened on demand, a few at a time."""

from bisect import bisect_right
from collections import OrderedDict
from threading import Lock

from quivermq.batches import Index, Offset
from quivermq.errors import Corrupt, StorageFailed
from quivermq.log.disk import Disk, Unreadable
from quivermq.log.layout import Footer
from quivermq.log.segment import Segment
from quivermq.log.settings import LogSettings


class SealedSegments:
    """Footers in order, and the least recently used few of the segments they stand for.

    Read from any thread; changed only by the log's writer.
    """

    def __init__(self, disk: Disk, folder: str, secret: bytes, settings: LogSettings) -> None:
        self._disk = disk
        self._folder = folder
        self._secret = secret
        self._settings = settings
        self._footers: tuple[Footer, ...] = ()
        self._pinned: dict[Index, Segment | None] = {}
        self._open: OrderedDict[Index, Segment] = OrderedDict()
        self._lock = Lock()

    @property
    def footers(self) -> tuple[Footer, ...]:
        """From the oldest to the newest; a snapshot that does not change under its reader."""
        return self._footers

    def add(self, footer: Footer) -> None:
        self._footers = (*self._footers, footer)

    def add_damaged(self, footer: Footer, segment: Segment | None) -> None:
        """A segment whose file cannot speak for itself: known from a scan, or missing (None)."""
        self._pinned[footer.first_index] = segment
        self.add(footer)

    def replace(self, repaired: Footer) -> None:
        """A segment that was damaged is whole again."""
        first = repaired.first_index
        self._footers = tuple(repaired if f.first_index == first else f for f in self._footers)
        self._pinned.pop(first, None)
        with self._lock:
            self._open.pop(first, None)

    def drop_before(self, index: Index) -> None:
        """Forget the segments that end at or before `index`."""
        self._keep([footer for footer in self._footers if footer.first_index >= index])

    def cut_from(self, index: Index) -> None:
        """Forget the segments that hold `index` or anything after it."""
        self._keep([footer for footer in self._footers if footer.next_index <= index])

    def clear(self) -> None:
        self._keep([])

    def holding(self, index: Index) -> Footer:
        """The footer of the segment that holds entry `index`; the caller knew there was one."""
        footers = self._footers
        at = bisect_right(footers, index, key=lambda footer: footer.first_index)
        return _unless_dropped(footers, at - 1)

    def with_offset(self, offset: Offset) -> Footer:
        """The footer of the segment that holds `offset`; the caller knew there was one."""
        footers = self._footers
        at = bisect_right(footers, offset, key=lambda footer: footer.first_offset)
        return _unless_dropped(footers, at - 1)

    def from_time(self, timestamp_ms: int) -> Footer | None:
        """The first footer of a segment that reaches `timestamp_ms`."""
        reaching = (f for f in self._footers if f.end.timestamp_ms >= timestamp_ms)
        return next(reaching, None)

    def segment(self, footer: Footer) -> Segment:
        """The segment itself, opened if it is not open."""
        first = footer.first_index
        if first in self._pinned:
            pinned = self._pinned[first]
            if pinned is None:
                raise Corrupt(f"the segment file of entry {first} is missing")
            return pinned
        with self._lock:
            segment = self._open.get(first)
            if segment is None:
                segment = Segment.load(self._disk, self._folder, footer, self._secret)
                self._open[first] = segment
            self._open.move_to_end(first)
            # Readers that still hold an evicted segment keep its file open until they are done.
            while len(self._open) > self._settings.open_segments_max:
                self._open.popitem(last=False)
        return segment

    def segment_if_any(self, footer: Footer) -> Segment | None:
        """The segment itself, or None if its file is missing, or cannot be read at all."""
        if self._pinned.get(footer.first_index, footer) is None:
            return None
        try:
            return self.segment(footer)
        except Unreadable:
            return None

    def _keep(self, footers: list[Footer]) -> None:
        self._footers = tuple(footers)
        kept = {footer.first_index for footer in footers}
        with self._lock:
            for table in (self._open, self._pinned):
                for first in [first for first in table if first not in kept]:
                    del table[first]


def _unless_dropped(footers: tuple[Footer, ...], number: int) -> Footer:
    """The footer with that number; -1 is that of a segment that the writer has dropped."""
    if number < 0:
        raise StorageFailed("the segment was dropped during the read")
    return footers[number]
