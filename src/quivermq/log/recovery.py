"""Opens a log after a crash, a power loss or a failure of the disk.

What may be put right is put right: unfinished work is finished or undone, a torn tail is cut, a
lost header or footer is made again from what it repeats. What was durable and is gone is reported,
never cut.
"""

from itertools import pairwise

from quivermq.batches import Index
from quivermq.errors import Corrupt, QuiverError
from quivermq.log.checkpoints import RESET, Checkpoints
from quivermq.log.damage import Damage
from quivermq.log.disk import Disk, File, Unreadable
from quivermq.log.edge import Edge
from quivermq.log.layout import SEGMENT, TEMPORARY, Footer, SegmentHeader, index_of
from quivermq.log.marks import Mark
from quivermq.log.repair import mixed_entries, sealed_anew
from quivermq.log.rewind import finish_cut, finish_reset
from quivermq.log.scan import Scan, Scanner
from quivermq.log.sealed import SealedSegments
from quivermq.log.segment import (
    ActiveSegment,
    ForeignFile,
    read_footer,
    read_head,
    segment_path,
)
from quivermq.log.settings import LogSettings
from quivermq.log.state import StateFile
from quivermq.log.survey import Survey
from quivermq.log.synced import SyncedFile, read_synced
from quivermq.log.window import erase


class Recovery:
    """One opening of one log; `run` fills in what the log then works with."""

    active: ActiveSegment
    synced: SyncedFile

    def __init__(
        self, disk: Disk, folder: str, settings: LogSettings, log_id: bytes | None = None
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._settings = settings
        self.damage: list[Damage] = []
        self.commit_index = Index(0)
        self.state_file, self.notes = StateFile.open(disk, folder, log_id)
        self._log_id = self.state_file.state.log_id
        self._secret = self.state_file.state.secret
        self._scans: dict[Index, tuple[SegmentHeader, Scan]] = {}
        self.sealed = SealedSegments(disk, folder, self._secret, settings)
        self.checkpoints = Checkpoints(disk, folder, self._log_id, settings.checkpoint_bytes_max)

    def run(self) -> "Recovery":
        state = self.state_file.state
        # First of all: a log of another release is not to be touched.
        told, _ = read_synced(self._disk, self._folder, self._log_id)
        survey = Survey(self._disk, self._folder, state, told).run()
        if not (state.cut_index or state.reset_index):
            self._scans = survey.scans
        self.state_file.heal()
        self.synced = SyncedFile.open(self._disk, self._folder, self._log_id)
        self._finish_what_was_begun()
        starts = self._segment_starts()
        self._check_first(starts[0])
        for first, following in pairwise(starts):
            self._recover_sealed(first, following)
        self._recover_active(starts[-1])
        return self

    def _finish_what_was_begun(self) -> None:
        state = self.state_file.state
        for name in self._disk.names(self._folder):
            unused = name.endswith(RESET) and not state.reset_index
            if name.endswith(TEMPORARY) or unused:
                self._disk.remove(f"{self._folder}/{name}")
        if state.reset_index:
            finish_reset(
                self._disk, self._folder, self._settings, self.state_file, self.checkpoints
            )
            self.notes.append(f"finished replacing the log by its checkpoint {state.reset_index}")
        elif state.cut_index:
            finish_cut(self._disk, self._folder, self.state_file, self.checkpoints)
            self.notes.append(f"finished cutting the log at entry {state.cut_index}")

    def _segment_starts(self) -> list[Index]:
        """The kept segments' first indexes; what was dropped before is removed for good."""
        state = self.state_file.state
        names = self._disk.names(self._folder)
        found = [index for name in names if (index := index_of(name, SEGMENT)) is not None]
        for index in found:
            if index < state.first_index:
                self._disk.remove(segment_path(self._folder, index))
        self.checkpoints.remove_where(before=state.first_index)
        self.notes += self.checkpoints.restore(state.first_index)
        starts = [index for index in found if index >= state.first_index]
        if not starts or starts[-1] < state.active_index:
            path = segment_path(self._folder, state.active_index)
            raise Corrupt(f"{path} is missing: the end of the log is unknown")
        return starts

    def _check_first(self, first: Index) -> None:
        """Note the segments that are missing before the first one that is there."""
        expected = self.state_file.state.first_index
        if first > expected:
            end = self._head(first).start
            start = self._known_edge(expected) or Edge(expected, end.next_offset)
            self._add_missing(start, end)

    def _recover_sealed(self, first: Index, following: Index) -> None:
        """Take a segment that is not the last by its footer, or else by scanning it."""
        try:
            footer = read_footer(self._disk, self._folder, first, self._log_id)
            if footer.next_index > following:
                raise Corrupt(f"it overlaps the segment of entry {following}")
        except (Corrupt, Unreadable) as error:
            self._take_without_footer(first, following, error)
            return
        if not self._meets(footer.start) and footer.end != self._head(following).start:
            end = self.sealed.footers[-1].end
            self._add_missing(end, self._head(following).start, "it meets neither neighbour")
            return
        self._demand_meeting(footer.start)
        self.sealed.add(footer)
        if footer.next_index < following:
            self._add_missing(footer.end, self._head(following).start)

    def _take_without_footer(self, first: Index, following: Index, reason: QuiverError) -> None:
        try:
            self._rebuild(first, following, reason)
        except (ForeignFile, Unreadable) as error:
            end = self._head(following).start
            start = self._known_edge(first) or Edge(first, end.next_offset)
            self._add_missing(start, end, str(error))

    def _rebuild(self, first: Index, following: Index, reason: QuiverError) -> None:
        """Scan a segment whose footer is missing or damaged; make the footer again if it can."""
        head = self._head(first)
        until = self._head(following).start
        path = segment_path(self._folder, first)
        file = self._disk.open(path)
        scan = Scanner(path, file, head, until=until).run()
        segment = ActiveSegment.of_scan(path, file, head, scan)
        if not scan.damage and scan.edge == until:
            self.sealed.add(self._sealed_again(segment, reason))
            self.notes.append(f"{path}: made the footer again: {reason}")
            return
        if not scan.damage:
            # All entries are intact, and yet not those that the next segment follows.
            raise Corrupt(f"{path} ends at {scan.edge}, the next segment starts at {until}")
        self.damage += scan.damage
        self.sealed.add_damaged(segment.footer(), segment)

    def _sealed_again(self, segment: ActiveSegment, reason: QuiverError) -> Footer:
        """Write a footer where it was; into a new file, where the disk has lost that place."""
        if not isinstance(reason, Unreadable):
            return segment.seal()
        entries = mixed_entries(segment, segment.index.first, segment.edge.next_index, {})
        return sealed_anew(self._disk, self._folder, segment.head, entries, segment.edge)

    def _recover_active(self, first: Index) -> None:
        path = segment_path(self._folder, first)
        head = self._head(first)
        self._demand_meeting(head.start)
        self._check_unsealed(first)
        file = self._disk.open(path)
        known, scan = self._scans.pop(first, (None, None))
        if scan is None or known != head:
            told = self.synced.told
            scan = Scanner(path, file, head, told=told if told.segment == first else None).run()
        self.damage += scan.damage
        self.commit_index = scan.commit_index
        if scan.lost_marks:
            self.notes.append(f"{path}: {scan.lost_marks} marks are unreadable; nothing is lost")
        self.active = ActiveSegment.of_scan(path, file, head, scan)
        if not (self._is_truncated(first, file, scan) or _is_unknown_behind(scan)):
            self._end_cleanly(scan)

    def _is_truncated(self, first: Index, file: File, scan: Scan) -> bool:
        """Whether the file is shorter than it was made: then nothing tells what it held."""
        state = self.state_file.state
        if state.active_index != first or file.size() >= state.active_bytes:
            return False
        reason = f"the file has {file.size()} of its {state.active_bytes} bytes"
        path = segment_path(self._folder, first)
        self.damage.append(Damage(path, scan.end, scan.edge.next_index, None, reason))
        return True

    def _end_cleanly(self, scan: Scan) -> None:
        """Cut a torn tail, and make durable what is kept: it may never have been fsynced."""
        active = self.active
        if scan.torn:
            erase(active.file, scan.end, active.allocated)
            self.notes.append(f"{active.path} at byte {scan.end}: cut a torn write: {scan.torn}")
            active.file.sync()
        if active.room_for(0) > active.allocated:
            active.grow(active.room_for(0), self._settings)
        active.rewrite_unmarked()
        active.sync(self.commit_index)
        if len(active.index) and active.end == active.marked and self._settings.syncs_at_once:
            self.synced.tell(active.synced(Mark(active.edge, self.commit_index)))
        state = self.state_file.state
        if (state.active_index, state.active_bytes) != (active.index.first, active.allocated):
            # A size that was seen is not yet a size that lasts.
            active.file.truncate(active.allocated)
            active.file.sync()
            self.state_file.save(
                state._replace(active_index=active.index.first, active_bytes=active.allocated)
            )

    def _demand_meeting(self, start: Edge) -> None:
        """A segment that does not end where the next one starts is not the one that was here: an
        old file, say, with entries that were cut since. It counts as missing."""
        if not self._meets(start):
            stale = self.sealed.footers[-1]
            self.sealed.cut_from(stale.first_index)
            reason = f"it ends at {stale.end}, the next segment starts at {start}"
            self._add_missing(stale.start, start, reason)

    def _meets(self, start: Edge) -> bool:
        """Whether the segments so far end where the next one starts."""
        footers = self.sealed.footers
        return not footers or footers[-1].end == start

    def _check_unsealed(self, last: Index) -> None:
        """Raise if the last segment is sealed: its successor was made first, and is gone."""
        try:
            footer = read_footer(self._disk, self._folder, last, self._log_id)
        except (Corrupt, Unreadable):
            return
        path = segment_path(self._folder, footer.next_index)
        raise Corrupt(f"{path} is missing: the end of the log is unknown")

    def _head(self, first: Index) -> SegmentHeader:
        """A segment's header; made again where it is damaged and what is before it is known."""
        path = segment_path(self._folder, first)
        file = self._disk.open(path)
        try:
            return read_head(path, file, first, self._log_id, self._secret)
        except ForeignFile:
            raise
        except (Corrupt, Unreadable) as error:
            start = self._known_edge(first)
            if start is None:
                raise Corrupt(f"{path}: what is before it is unknown: {error}") from error
            head = SegmentHeader(self._log_id, self._secret, start)
            if isinstance(error, Corrupt):
                # Where the disk has lost the place, a repair makes a new file.
                file.write(0, [head.pack()])
                file.sync()
            self.notes.append(f"{path}: made the header again: {error}")
            return head

    def _known_edge(self, first: Index) -> Edge | None:
        """The edge before entry `first`, from whatever else knows it."""
        footers = self.sealed.footers
        if footers and footers[-1].next_index == first:
            return footers[-1].end
        if first == 1:
            return Edge()
        try:
            return (
                self.checkpoints.load(first).edge if first in self.checkpoints.indexes() else None
            )
        except Corrupt:
            return None

    def _add_missing(
        self, start: Edge, end: Edge, reason: str = "the segment file is missing"
    ) -> None:
        """Note that everything between two edges is lost: in pieces, where checkpoints tell where
        its segments started, so that no more than one of them has to be fetched at a time."""
        for index in self.checkpoints.indexes():
            if start.next_index < index < end.next_index:
                edge = self._known_edge(index)
                if edge is not None:
                    self._add_lost_segment(start, edge, reason)
                    start = edge
        self._add_lost_segment(start, end, reason)

    def _add_lost_segment(self, start: Edge, end: Edge, reason: str) -> None:
        path = segment_path(self._folder, start.next_index)
        last = Index(end.next_index - 1)
        self.damage.append(Damage(path, 0, start.next_index, last, reason))
        self.sealed.add_damaged(Footer(self._log_id, start, end, start.term, 0, 0, 0), None)


def _is_unknown_behind(scan: Scan) -> bool:
    """Whether nothing tells where the log ends: then nothing may be cut or added there."""
    return any(damage.last_index is None for damage in scan.damage)
