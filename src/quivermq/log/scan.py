"""Walks a segment's frames, and tells intact ones from torn ones, which are cut, and damage.

Nothing is changed here; recovery and `quiver verify` both act on what a scan found.

The rule (decision 0003): where the bytes stop being frames that follow each other, look at what
proves that they once were. A later mark of this log proves that all before it was fsynced; so does
a later segment, which is only begun when this one is durable. With such a proof it is damage, up to
where the proof stands. Without one, these bytes were never acknowledged: a torn write, to be
cut; unless the disk cannot read them, so that it is unknown what they were.

Intact frames of another release are neither: `UnsupportedFormat` ends the walk, and nothing is cut.
Only what this log wrote itself counts as such. What a client can make, inside of a message, proves
nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from quivermq.batches import HEADER_BYTES, Frame, FrameKind, Header, Index
from quivermq.errors import Corrupt, TooLarge, UnsupportedFormat
from quivermq.log.damage import Damage
from quivermq.log.disk import File
from quivermq.log.edge import Edge
from quivermq.log.index import SegmentIndex
from quivermq.log.layout import SEGMENT_HEADER_BYTES, SegmentHeader
from quivermq.log.marks import MARK_BYTES, Mark, check_form, read_mark
from quivermq.log.settings import FILE_BYTES_MAX, STORED_LIMITS
from quivermq.log.synced import Synced
from quivermq.log.window import LossyFile, Window, first_data, occurrences


@dataclass(slots=True)
class Scan:
    """The findings of a walk over one segment."""

    index: SegmentIndex
    edge: Edge
    """Behind the last entry, damaged ones included."""
    end: int
    """Behind the last frame or mark."""
    marked: int
    """Behind the last mark: what was certainly fsynced."""
    commit_index: Index = Index(0)
    damage: list[Damage] = field(default_factory=list)
    torn: str = ""
    """Why the bytes from `end` on are a torn write; empty if there are none."""
    lost_marks: int = 0
    messages: int = 0


class Scanner:
    """One walk over one segment file."""

    def __init__(
        self,
        path: str,
        file: File,
        head: SegmentHeader,
        *,
        until: Edge | None = None,
        told: Synced | None = None,
        size: int | None = None,
        visit: Callable[[Frame, int], None] | None = None,
    ) -> None:
        """`until` is where the next segment starts, which proves that this one reached it; `told`
        is a mark that stood in this file, as another file knows; `size` is where the frames may
        end at most, if not at the file's end; `visit` is shown each entry with its position."""
        self._path = path
        self._file = LossyFile(file)
        self._secret = head.secret
        self._until = until
        self._told = told
        self._visit = visit
        self._size = file.size() if size is None else size
        self._stop = 0 if size is None else size
        self._window = Window(self._file, self._size)
        start = SEGMENT_HEADER_BYTES
        self.found = Scan(SegmentIndex(head.start.next_index), head.start, start, start)

    def run(self) -> Scan:
        """Walk to the end of what can be trusted."""
        if self._size > FILE_BYTES_MAX:
            raise Corrupt(f"{self._path} has {self._size:,} bytes: no segment is as large")
        while not (self._has_all_entries() and self.found.end >= self._stop):
            try:
                frame = self._frame_at(self.found.end)
                self._take(frame)
            except (Corrupt, TooLarge) as error:
                if not self._pass_bad_bytes(str(error)):
                    break
        return self.found

    def _has_all_entries(self) -> bool:
        return self._until is not None and self.found.edge.next_index >= self._until.next_index

    def _frame_at(self, at: int) -> Frame:
        header = Header.unpack(self._window.view(at, HEADER_BYTES), 0, STORED_LIMITS)
        return Frame.parse(self._window.view(at, header.frame_bytes), 0, STORED_LIMITS)

    def _take(self, frame: Frame) -> None:
        found = self.found
        if frame.header.kind == FrameKind.MARK:
            mark = read_mark(frame, self._secret, found.end)
            if mark is None or mark.edge != found.edge:
                raise Corrupt("a mark that does not belong here")
            self._note(mark)
        else:
            edge = found.edge.after(frame.header)
            if self._visit:
                self._visit(frame, found.end)
            found.index.add(frame, found.end, edge.timestamp_ms)
            found.edge = edge
            found.messages += frame.header.count
            found.end += len(frame)

    def _note(self, mark: Mark) -> None:
        self.found.end += MARK_BYTES
        self.found.marked = self.found.end
        self.found.commit_index = max(self.found.commit_index, mark.commit_index)

    def _pass_bad_bytes(self, reason: str) -> bool:
        """Decide what the bytes at the end are; True if the walk can go on behind them."""
        found = self.found
        told = self._told if self._is_more_told() else None
        is_empty = first_data(self._file, found.end, self._size) is None
        if is_empty and self._until is None and told is None:
            self._add_unknown_end()
            return False
        if self._has_all_entries():
            found.lost_marks += 1
            return False
        if self._is_lost_mark():
            found.end += MARK_BYTES
            found.lost_marks += 1
            return True
        proof = self._next_proof() or (told and told[1:])
        if proof is not None:
            position, mark = proof
            reason = self._file.why_lost(found.end) or reason
            found.lost_marks += mark.edge == found.edge
            self._add_damage(mark.edge, reason)
            found.end = position
            self._note(mark)
            return True
        if self._until is not None:
            self._add_damage(self._until, self._file.why_lost(found.end) or reason)
        elif not self._add_unknown_end():
            found.torn = reason
        return False

    def _is_more_told(self) -> bool:
        """Whether entries stood here that are not found any more. Where the file does not even
        reach so far, the rest of its content is unknown."""
        told = self._told
        if told is None or told.position + MARK_BYTES > self._size:
            return False
        return told.mark.edge.next_index > self.found.edge.next_index

    def _add_unknown_end(self) -> bool:
        """Whether the end cannot be read: what was there may have been promised, or not."""
        found = self.found
        reason = self._file.why_lost(found.end)
        if reason:
            first = found.edge.next_index
            found.damage.append(Damage(self._path, found.end, first, None, reason))
        return bool(reason)

    def _is_lost_mark(self) -> bool:
        """Whether just a mark is unreadable: the entries behind it follow what is before it.

        That alone is no proof: it may be a torn entry, with a message that was made to look like
        the next one. So a part of the mark must be left, or the entries must lead to another one.
        """
        at, edge = self.found.end + MARK_BYTES, self.found.edge
        is_left = self._was_mark()
        try:
            while (frame := self._frame_at(at)).header.kind != FrameKind.MARK:
                edge = edge.after(frame.header)
                if is_left:
                    return True
                at += len(frame)
            mark = read_mark(frame, self._secret, at)
        except (Corrupt, TooLarge):
            return False
        except UnsupportedFormat:
            # Of another release, unless it is inside of a message.
            if is_left:
                raise
            return False
        return mark is not None and mark.edge == edge != self.found.edge

    def _was_mark(self) -> bool:
        """Whether a mark stood at the end: its secret or its header is left."""
        at = self.found.end
        if self._window.view(at + HEADER_BYTES, len(self._secret)) == self._secret:
            return True
        try:
            header = Header.unpack(self._window.view(at, HEADER_BYTES), 0, STORED_LIMITS)
        except (Corrupt, TooLarge):
            return False
        return header.kind == FrameKind.MARK

    def _next_proof(self) -> tuple[int, Mark] | None:
        """The next mark that stands where bytes of this log were once durable."""
        # By the secret, which only this log knows: clients could fill messages with anything else
        # that a mark holds.
        start = self.found.end + 1 + HEADER_BYTES
        for found in occurrences(self._file, self._secret, start, self._size):
            position = found - HEADER_BYTES
            mark = self._mark_at(position)
            if mark is not None and self._can_be(position, mark):
                return position, mark
        return None

    def _mark_at(self, position: int) -> Mark | None:
        data = self._file.read(position, MARK_BYTES)
        try:
            header = Header.unpack(data, 0, STORED_LIMITS)
            if header.kind == FrameKind.MARK:
                check_form(header)
            return read_mark(Frame.parse(data, 0, STORED_LIMITS), self._secret, position)
        except (Corrupt, TooLarge):
            return None

    def _can_be(self, position: int, mark: Mark) -> bool:
        """Whether so many entries fit in front of a mark."""
        count = mark.edge.next_index - self.found.edge.next_index
        return 0 <= count <= (position - self.found.end) // HEADER_BYTES

    def _add_damage(self, behind: Edge, reason: str) -> None:
        found = self.found
        before = found.edge
        if behind.next_index > before.next_index:
            last = Index(behind.next_index - 1)
            found.damage.append(Damage(self._path, found.end, before.next_index, last, reason))
            found.index.add_hole(found.end, before, behind)
        found.edge = behind
