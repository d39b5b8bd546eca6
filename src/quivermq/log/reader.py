"""The reading side of a log: finds entries by index, offset or time. Any thread may read.

Damage that a read meets is remembered in `damage`, for the replica to mend.
"""

from collections.abc import Iterator
from contextlib import suppress

from quivermq.batches import Frame, Index, Offset
from quivermq.errors import BrokenInvariant, Corrupt, StorageFailed
from quivermq.log.checkpoints import Checkpoint, Checkpoints, CheckpointSummary
from quivermq.log.creation import NewLogFiles
from quivermq.log.damage import Damage
from quivermq.log.disk import Unreadable
from quivermq.log.edge import Edge, not_kept
from quivermq.log.layout import Footer
from quivermq.log.recovery import Recovery
from quivermq.log.sealed import SealedSegments
from quivermq.log.segment import ActiveSegment, DamagedEntry, Segment, segment_path
from quivermq.log.state import StateFile


class LogReader:
    """A log, as far as it can be read."""

    def __init__(self, folder: str, found: Recovery | NewLogFiles) -> None:
        self._folder = folder
        self._state_file: StateFile = found.state_file
        self._sealed: SealedSegments = found.sealed
        self._active: ActiveSegment = found.active
        self._checkpoints: Checkpoints = found.checkpoints
        self._preloaded: Checkpoint | None = None
        self.damage: list[Damage] = found.damage
        """Entries that were durable and cannot be read; grows when a read finds more."""
        self.distrusted: set[Index] = set()
        """Checkpoints that could not be read when they were to be sent."""

    @property
    def log_id(self) -> bytes:
        """The identity that all files of this log carry."""
        return self._state_file.state.log_id

    @property
    def member(self) -> int:
        """The member that this log belongs to, and that has voted."""
        return self._state_file.state.member

    @property
    def first_index(self) -> Index:
        """The first entry that is kept, or would be."""
        return self._state_file.state.first_index

    @property
    def start(self) -> Edge:
        """The edge before the first kept entry."""
        footers = self._sealed.footers
        return footers[0].start if footers else self._active.head.start

    @property
    def edge(self) -> Edge:
        """The edge behind the last entry."""
        return self._active.edge

    @property
    def term(self) -> int:
        """The Raft term last saved."""
        return self._state_file.state.term

    @property
    def vote(self) -> int:
        """The member that this replica voted for in that term; 0: none."""
        return self._state_file.state.vote

    @property
    def size_bytes(self) -> int:
        """The disk space of the entries."""
        return sum(footer.file_bytes for footer in self._sealed.footers) + self._active.end

    @property
    def sealed(self) -> tuple[Footer, ...]:
        """The footers of the sealed segments, oldest first."""
        return self._sealed.footers

    @property
    def segment_starts(self) -> list[Index]:
        """The first index of each segment: where checkpoints belong."""
        return [*(f.first_index for f in self._sealed.footers), self._active.index.first]

    def read(
        self, first: Index, *, end: Index | None = None, bytes_max: int = 1 << 20,
        stop: Offset | None = None,
    ) -> list[Frame]:  # fmt: skip
        """Entries from `first` on, in order: at least one, at most `bytes_max`, before `end`.

        None behind the last message before `stop`. One read of the disk; stops where a segment
        ends. Raises `Corrupt` for damaged entries, and `OffsetOutOfRange` for what was dropped, be
        it while it is read.
        """
        edge = self.edge
        if first >= edge.next_index:
            raise BrokenInvariant(f"{self._folder}: entry {first}, the log ends at {edge}")
        for damage in self.damage:
            if damage.covers(first):
                raise Corrupt(str(damage))
        try:
            segment, segment_end = self._segment_holding(first)
            last = min(end, segment_end) if end is not None else segment_end
            if stop is not None:
                last = min(last, Index(segment.index.with_offset(Offset(stop - 1)) + 1))
            behind = segment.fitting(first, max(last, Index(first + 1)), bytes_max)
            return segment.read(first, behind)
        except DamagedEntry as error:
            raise self._met(error) from error.__cause__
        except StorageFailed:
            if first >= self.first_index:
                raise
            raise not_kept(f"entry {first}", self.start, edge) from None

    def frames(self, first: Index, end: Index | None = None) -> Iterator[Frame]:
        """Every entry from `first` to before `end` (the log's end), through bounded reads."""
        end = self.edge.next_index if end is None else end
        while first < end:
            for frame in self.read(first, end=end):
                yield frame
                first = Index(first + 1)

    def _segment_holding(self, index: Index) -> tuple[Segment, Index]:
        """The segment with entry `index`, and the index behind the segment's last entry."""
        active = self._active
        if index >= active.index.first:
            return active, Index(active.index.first + len(active.index))
        footer = self._sealed.holding(index)
        return self._sealed_segment(footer), footer.next_index

    def _sealed_segment(self, footer: Footer) -> Segment:
        """A sealed segment. One whose file cannot be opened at all is damaged as a whole."""
        try:
            return self._sealed.segment(footer)
        except Unreadable as error:
            path, last = (
                segment_path(self._folder, footer.first_index),
                Index(footer.next_index - 1),
            )
            damage = Damage(path, 0, footer.first_index, last, str(error))
            raise self._met(DamagedEntry(damage)) from error

    def _met(self, error: DamagedEntry) -> DamagedEntry:
        """Remember what a read found, once."""
        if not any(known == error.damage for known in self.damage):
            self.damage.append(error.damage)
        return error

    def term_at(self, index: Index) -> int:
        """The term of a kept entry, or of the one before the first."""
        if index == self.start.next_index - 1:
            return self.start.term
        if index < self._active.index.first:
            footer = self._sealed.holding(index)
            if footer.first_term == footer.end.term:
                return footer.first_term
        segment, _ = self._segment_holding(index)
        return segment.index.term_at(index)

    def edge_before(self, index: Index) -> Edge:
        """The edge before a kept entry, or behind the last one."""
        end = self.edge
        if index == end.next_index:
            return end
        segment, _ = self._segment_holding(index)
        return segment.index.edge_before(index, self._edge_at_start(segment.index.first))

    def starts_segment(self, index: Index) -> bool:
        """Whether a checkpoint of the state before entry `index` has its place here."""
        active = self._active.index.first
        if index >= active:
            return index == active
        return self._sealed.holding(index).first_index == index

    def index_of_offset(self, offset: Offset) -> Index:
        """The entry that holds message `offset`, or `OffsetOutOfRange`."""
        start, end = self.start, self.edge
        if not start.next_offset <= offset < end.next_offset:
            raise not_kept(f"offset {offset}", start, end)
        active = self._active
        if offset >= active.head.start.next_offset:
            return active.index.with_offset(offset)
        try:
            footer = self._sealed.with_offset(offset)
            return self._sealed_segment(footer).index.with_offset(offset)
        except StorageFailed:
            if offset >= self.start.next_offset:
                raise
            raise not_kept(f"offset {offset}", self.start, end) from None

    def index_of_time(self, timestamp_ms: int) -> Index:
        """The first entry stamped at or after a time; the log's next index if there is none."""
        # In this order: the writer seals the active segment, and appends to it, meanwhile.
        active, end = self._active, self.edge.next_index
        footer = self._sealed.from_time(timestamp_ms)
        if footer is None:
            return min(active.index.from_time(timestamp_ms), end)
        try:
            return self._sealed_segment(footer).index.from_time(timestamp_ms)
        except StorageFailed:
            if footer.first_index >= self.first_index:
                raise
            return self.index_of_time(timestamp_ms)

    def _edge_at_start(self, index: Index) -> Edge:
        if index == self._active.index.first:
            return self._active.head.start
        footer = self._sealed.holding(index) if index >= self.first_index else None
        if footer is None or footer.first_index != index:
            raise BrokenInvariant(f"{self._folder}: no segment starts at {index}")
        return footer.start

    def checkpoints(self) -> list[Index]:
        """The next indexes of the checkpoints that are kept, oldest first."""
        return self._checkpoints.indexes()

    def load_checkpoint(self, index: Index) -> Checkpoint:
        """A kept checkpoint, or `Corrupt` unless every byte of it is intact. Reads all of it."""
        loaded = self._preloaded
        if loaded is not None and loaded.edge.next_index == index:
            return loaded
        return self._checkpoints.load(index)

    def forget_checkpoint(self) -> None:
        """Keep no longer what `preload_checkpoint` read."""
        self._preloaded = None

    def preload_checkpoint(self) -> None:
        """Read the newest checkpoint in advance, for a caller that cannot wait for a disk."""
        newest = [index for index in self.checkpoints() if index <= self.edge.next_index][-1:]
        with suppress(Corrupt, StorageFailed):
            self._preloaded = self._checkpoints.load(newest[0]) if newest else None

    def checkpoint_summary(self, index: Index) -> CheckpointSummary:
        """The header of a kept checkpoint, or `Corrupt`."""
        return self._checkpoints.summary(index)

    def checkpoint_part(self, index: Index, at: int, size: int) -> bytes:
        """At most `size` bytes of a kept checkpoint's content, unchecked, or `Corrupt`."""
        return self._checkpoints.part(index, at, size)
