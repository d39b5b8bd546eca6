"""A partition's log: entries are appended, read by index, offset or time, and never rewritten.

One writer (the disk thread) appends, syncs, cuts and drops; any thread may read. What is written
is durable after `sync`. A refusal for lack of space leaves the log as it was. Any other failed
write, and every failed fsync, fences the log: what is on the disk is unknown, so it takes no
more writes until it is opened anew, and nothing of that write is ever acknowledged.
"""

from collections.abc import Mapping, Sequence

from quivermq.batches import Frame, Index
from quivermq.errors import BrokenInvariant, Corrupt, StorageFull
from quivermq.log.checkpoints import RESET, Checkpoint
from quivermq.log.creation import NewLog, NewLogFiles, name_logs, prepare_log
from quivermq.log.disk import Disk, announced
from quivermq.log.edge import Edge, edges_behind
from quivermq.log.fence import Fence
from quivermq.log.layout import Footer, SegmentHeader
from quivermq.log.reader import LogReader
from quivermq.log.recovery import Recovery
from quivermq.log.repair import mixed_entries, put_in_place, rebuilt_segment, sealed_anew
from quivermq.log.rewind import finish_cut, finish_reset
from quivermq.log.segment import (
    ActiveSegment,
    DamagedEntry,
    remove_segments,
)
from quivermq.log.settings import ENTRIES_MAX, SEGMENT_BYTES_MAX, LogSettings
from quivermq.log.state import Owner
from quivermq.log.synced import SyncedFile


class Log(LogReader):
    """The log in one folder of a disk. Made by `Log.create`, `Log.open_new` or `Log.open`."""

    def __init__(
        self, disk: Disk, folder: str, settings: LogSettings, found: Recovery | NewLogFiles
    ) -> None:
        super().__init__(folder, found)
        self._disk = disk
        self._settings = settings
        self._synced: SyncedFile = found.synced
        self._fence = Fence(folder)
        self.notes: list[str] = found.notes
        """Repairs that were made when the log was opened, for people."""
        self.commit_index: Index = found.commit_index
        """How far the log was known to be committed when it was last synced."""

    @classmethod
    def create(
        cls,
        disk: Disk,
        folder: str,
        log_id: bytes,
        settings: LogSettings | None = None,
        founding: Checkpoint | None = None,
        member: int = 0,
    ) -> "Log":
        """A new log, empty or behind a founding checkpoint. It appears whole, or not at all."""
        settings = settings or LogSettings()
        new = prepare_log(disk, folder, Owner(log_id, member), settings, founding)
        name_logs(disk, [folder])
        return cls.open_new(disk, settings, new)

    @classmethod
    def open_new(cls, disk: Disk, settings: LogSettings, new: NewLog) -> "Log":
        """A log that was prepared and named right now, by this process. `disk` may be another view
        of the one on which it was made."""
        return cls(disk, new.folder, settings, NewLogFiles(disk, settings, new))

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str,
        settings: LogSettings | None = None,
        log_id: bytes | None = None,
    ) -> "Log":
        """An existing log, after cutting a torn tail; `damage` says what cannot be read.

        Raises `Corrupt` where too little is left to be a log at all, or to be that with `log_id`:
        no readable state, or no last segment; and `UnsupportedFormat`, without having changed
        anything, where any of it is of another release.
        """
        settings = settings or LogSettings()
        return cls(disk, folder, settings, Recovery(disk, folder, settings, log_id).run())

    def save_vote(self, term: int, vote: int) -> None:
        """Remember term and vote; durable when this returns."""
        state = self._state_file.state
        if term < state.term or (term == state.term and state.vote not in {0, vote}):
            raise BrokenInvariant(
                f"{self._folder}: vote {vote} in term {term} after {state.vote} in {state.term}"
            )
        with self._fence:
            self._state_file.save(state._replace(term=term, vote=vote))

    def append(self, frames: Sequence[Frame]) -> None:
        """Write entries behind the last one: all of them, or none. Not yet durable.

        `StorageFull` leaves the log as it was; try again when there is space.
        """
        if not frames:
            return
        if any(damage.last_index is None for damage in self.damage):
            raise Corrupt(f"{self._folder}: the end of the log is damaged, it takes no entries")
        edges = edges_behind(self._active.edge, frames, self._settings.limits, self._folder)
        size = sum(map(len, frames))
        with self._fence:
            self._make_room(size, len(frames))
            try:
                self._active.append(frames, edges)
            except StorageFull as error:
                self._active.erase_tail()
                error.undone = True
                raise

    def has_room_for(self, size: int) -> bool:
        """Whether so many bytes can be appended behind other entries of the same segment, without
        anything else that has to be done to its file."""
        active = self._active
        return (
            active.room_for(size) <= min(active.allocated, self._settings.segment_bytes)
            and 0 < len(active.index) < ENTRIES_MAX
            and not self.damage
        )

    def _make_room(self, size: int, count: int) -> None:
        """Seal the active segment if it is full, and preallocate what the entries need."""
        if size > SEGMENT_BYTES_MAX:
            raise BrokenInvariant(f"a group of {size:,} bytes: gather less per append")
        entries = len(self._active.index)
        full = self._active.room_for(size) > self._settings.segment_bytes
        if entries and (full or entries + count > ENTRIES_MAX):
            # A partition that fills its segments gets the next one whole.
            self._roll(self._settings.segment_bytes)
        needed = self._active.room_for(size)
        if needed > self._active.allocated:
            self._active.grow(needed, self._settings)
            self._save_active()

    def roll(self) -> None:
        """Seal the active segment though it is not full, so that it can be dropped."""
        with self._fence:
            if len(self._active.index):
                self._roll(self._settings.allocation_bytes_min)

    def _roll(self, size: int) -> None:
        """Begin the next segment, of `size` bytes, then seal this one.

        In this order, so that a segment without a successor is the last, and one with a successor
        was durable: a missing file or a bad frame can then be told from a crash.
        """
        old = self._active
        old.sync(self.commit_index)
        if old.footer_room() > old.allocated:
            old.grow(old.footer_room(), self._settings)
            self._save_active()
        head = self._head(old.edge)
        new = ActiveSegment.create(self._disk, self._folder, head, size)
        if any(damage.path == old.path for damage in self.damage):
            # A footer would hide the damage from the next opening, which scans what has none.
            self._sealed.add_damaged(old.footer(), old)
        else:
            self._sealed.add(old.seal())
        self._active = new
        self._save_active()

    def _save_active(self) -> None:
        state = self._state_file.state
        active = self._active
        self._state_file.save(
            state._replace(active_index=active.index.first, active_bytes=active.allocated)
        )

    def sync(self, commit_index: Index = Index(0)) -> None:
        """Make everything appended durable. Any failure fences the log for good."""
        self.commit_index = max(self.commit_index, commit_index)
        with self._fence:
            synced = self._active.sync(self.commit_index, self._settings.unmarked_bytes_max)
            if synced is not None and self._settings.syncs_at_once:
                self._synced.tell(synced)

    @property
    def checkpoint_bytes_max(self) -> int:
        """The largest state that a checkpoint may hold."""
        return self._settings.checkpoint_bytes_max

    def cut(self, index: Index) -> None:
        """Remove the entries from `index` on: a Raft leader has others there. Durable."""
        if not max(self.first_index, self.commit_index + 1) <= index <= self.edge.next_index:
            raise BrokenInvariant(
                f"{self._folder}: cut at {index} is outside {self.first_index} to "
                f"{self.edge.next_index}, or below commit index {self.commit_index}"
            )
        if index == self.edge.next_index:
            return
        segment, _ = self._segment_holding(index)
        head = self._head(self._edge_at_start(segment.index.first))
        # Raises now if a damaged entry hides where this one starts, before anything is announced.
        self.edge_before(index)
        # Sealed ones are open for reading only.
        file = segment.file if segment is self._active else self._disk.open(segment.path)
        end = (self.edge, segment.end)
        active = ActiveSegment(segment.path, file, head, segment.index, *end)
        parts = (self._disk, self._folder, self._state_file, self._checkpoints)
        with self._fence:
            self._synced.retract()
            self._state_file.save(self._state_file.state._replace(cut_index=index))
            self._active = finish_cut(*parts, active)
            self._sealed.cut_from(self._active.index.first)
            self._active.sync(self.commit_index)
        self.damage = [d.before(index) for d in self.damage if d.first_index < index]

    def repair(self, frames: Sequence[Frame]) -> None:
        """Put back entries that a peer gave: all that one damaged file has lost.

        Raises `Corrupt`, and changes nothing, if they are not what was here.
        """
        given = {frame.header.index: frame for frame in frames}
        path = next(
            (d.path for d in self.damage if frames and d.covers(frames[0].header.index)), ""
        )
        missing = [d for d in self.damage if d.path == path]
        if not missing or any(d.last_index is None for d in missing):
            raise BrokenInvariant(f"{self._folder}: there is nothing to repair with {frames[:1]}")
        try:
            with self._fence:
                if path == self._active.path:
                    self._repair_active(given)
                else:
                    self._repair_sealed(self._sealed.holding(missing[0].first_index), given)
        except DamagedEntry as error:
            # More is damaged than was known: the next repair brings all of it.
            segment, _ = self._segment_holding(error.damage.first_index)
            self.damage += [found for found in segment.damage() if found not in self.damage]
            raise
        self.damage = [damage for damage in self.damage if damage.path != path]

    def _repair_active(self, given: Mapping[Index, Frame]) -> None:
        old = self._active
        entries = mixed_entries(old, old.index.first, old.edge.next_index, given)
        new = rebuilt_segment(
            self._disk, self._folder, old.head, entries, old.edge, self.commit_index
        )
        new.grow(old.allocated, self._settings)
        put_in_place(self._disk, self._folder, new)
        self._active = new
        self._save_active()

    def _repair_sealed(self, footer: Footer, given: Mapping[Index, Frame]) -> None:
        segment = self._sealed.segment_if_any(footer)
        entries = mixed_entries(segment, footer.first_index, footer.next_index, given)
        head = self._head(footer.start)
        self._sealed.replace(sealed_anew(self._disk, self._folder, head, entries, footer.end))

    def _head(self, start: Edge) -> SegmentHeader:
        state = self._state_file.state
        return SegmentHeader(state.log_id, state.secret, start)

    def save_checkpoint(self, index: Index, data: bytes) -> None:
        """Keep the state machine's state from before entry `index`, which starts a segment."""
        edge = self._edge_at_start(index)
        with self._fence:
            self._checkpoints.save(Checkpoint(edge, data))

    def drop_before(self, index: Index) -> Index:
        """Drop whole segments below `index`, and return the new first index.

        Only up to a segment whose checkpoint can be read right now: it replaces what is dropped.
        """
        kept = set(self._checkpoints.indexes())
        starts = [s for s in self.segment_starts if self.first_index < s <= index and s in kept]
        if not starts:
            return self.first_index
        first = starts[-1]
        self._checkpoints.load(first)
        with self._fence:
            self._checkpoints.save_copy(first)
            self._state_file.save(self._state_file.state._replace(first_index=first))
            dropped = [f for f in self._sealed.footers if f.first_index < first]
            self._sealed.drop_before(first)
            remove_segments(self._disk, self._folder, [f.first_index for f in dropped])
            self._checkpoints.remove_where(before=first)
            self._disk.sync_folder(self._folder)
        self.damage = [d for d in self.damage if d.last_index is None or d.last_index >= first]
        return first

    def reset(self, checkpoint: Checkpoint) -> None:
        """Replace the whole log by a checkpoint from elsewhere; it goes on behind its edge.

        Durable; after a crash in the middle, opening the log finishes it.
        """
        if checkpoint.edge.next_index <= self.commit_index:
            raise BrokenInvariant(
                f"{self._folder}: reset to {checkpoint.edge} below commit {self.commit_index}"
            )
        with self._fence:
            self._checkpoints.save(checkpoint, RESET)
            self._synced.retract()
        with self._fence, announced():
            state = self._state_file.state
            self._state_file.save(state._replace(reset_index=checkpoint.edge.next_index))
            self._sealed.clear()
            self._active = finish_reset(
                self._disk, self._folder, self._settings, self._state_file, self._checkpoints
            )
        self.commit_index = Index(checkpoint.edge.next_index - 1)
        self.damage = []
