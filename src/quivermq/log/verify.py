"""Checks a log's files without changing them: every frame, index, footer, checkpoint and copy.

Looks at more than opening a log does, which trusts footers, and changes nothing, so it also runs
beside a broker that was stopped by the damage it reports.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from quivermq.batches import Frame, FrameKind, Index, decode_batch
from quivermq.errors import Corrupt, QuiverError, StorageFailed, TooLarge, UnsupportedFormat
from quivermq.log.checkpoints import COPY, RESET, Checkpoints
from quivermq.log.damage import Damage
from quivermq.log.disk import Disk, Unreadable
from quivermq.log.edge import Edge
from quivermq.log.index import SegmentIndex
from quivermq.log.layout import (
    CHECKPOINT,
    SEGMENT,
    STATES,
    SYNCED,
    TEMPORARY,
    Footer,
    SegmentHeader,
    index_of,
)
from quivermq.log.scan import Scan, Scanner
from quivermq.log.segment import read_footer, read_head, segment_path
from quivermq.log.settings import STORED_LIMITS, LogSettings
from quivermq.log.state import STATE_BYTES, State, read_state
from quivermq.log.synced import NOTHING, read_synced
from quivermq.log.window import first_data

Severity = Literal["damage", "newer", "torn", "note"]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    `damage`: it was durable and is gone or changed. `newer`: it is intact, and of a release that
    this one cannot read; opening the log is refused, and changes nothing. `torn`: a write that was
    never acknowledged; opening the log cuts it. `note`: opening the log puts it right, nothing is
    lost.
    """

    severity: Severity
    path: str
    position: int
    text: str


@dataclass(slots=True)
class Report:
    """The contents and findings of a log's folder."""

    folder: str
    segments: int = 0
    checkpoints: int = 0
    bytes: int = 0
    entries: int = 0
    messages: int = 0
    start: Edge = field(default_factory=Edge)
    end: Edge = field(default_factory=Edge)
    term: int = 0
    vote: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_damaged(self) -> bool:
        return any(finding.severity == "damage" for finding in self.findings)

    @property
    def is_of_another_release(self) -> bool:
        return any(finding.severity == "newer" for finding in self.findings)


def find_logs(disk: Disk, folder: str = "", depth: int = 4) -> Iterator[str]:
    """The folders of logs in and below `folder`."""
    names = disk.names(folder)
    if any(name in STATES or index_of(name, SEGMENT) is not None for name in names):
        # With this ending its creation was not finished, and it is no log.
        if not folder.endswith(TEMPORARY):
            yield folder
    elif depth:
        for name in names:
            below = f"{folder}/{name}" if folder else name
            if disk.is_folder(below):
                yield from find_logs(disk, below, depth - 1)


def log_bytes(disk: Disk, folder: str) -> int:
    """How much there is to check."""
    return sum(_size(disk, f"{folder}/{name}") for name in _files(disk, folder))


def _size(disk: Disk, path: str) -> int:
    try:
        return disk.open_to_read(path).size()
    except StorageFailed:
        # The check itself says what is wrong with it.
        return 0


def _files(disk: Disk, folder: str) -> list[str]:
    names = disk.names(folder)
    return [n for n in names if n in STATES or n.endswith((SEGMENT, CHECKPOINT))]


def _ignore(_: int) -> None:
    """No progress is shown."""


class Verification:
    """One check of one log."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        settings: LogSettings | None = None,
        *,
        deep: bool = False,
        progress: Progress = _ignore,
    ) -> None:
        """`deep` decodes every batch as a consumer would; `progress` is told of bytes done."""
        self._disk = disk
        self._folder = folder
        self._settings = settings or LogSettings()
        self._deep = deep
        self._progress = progress
        self._state: State | None = None
        self._told = NOTHING
        self.report = Report(folder)

    def run(self) -> Report:
        self._check_state()
        # After the state, so that a segment which a running broker begins meanwhile is seen.
        names = self._disk.names(self._folder)
        starts = [index for name in names if (index := index_of(name, SEGMENT)) is not None]
        if self._state and self._state.reset_index:
            self._check_reset(self._state)
            return self.report
        cut_index = self._cut_index()
        kept = [start for start in starts if start >= self._first_index()]
        self._check_segments([start for start in kept if not cut_index or start <= cut_index])
        self._check_checkpoints()
        return self.report

    def _cut_index(self) -> Index:
        """Opening the log erases the entries from here on; 0 if it does not."""
        return self._state.cut_index if self._state else Index(0)

    def _first_index(self) -> Index:
        return self._state.first_index if self._state else Index(0)

    def _find(self, severity: Severity, path: str, text: str, position: int = 0) -> None:
        self.report.findings.append(Finding(severity, path, position, text))

    def _check_state(self) -> None:
        path = f"{self._folder}/{STATES[0]}"
        self._progress(len(STATES) * STATE_BYTES)
        try:
            self._state, faults = read_state(self._disk, self._folder)
        except UnsupportedFormat as error:
            self._find("newer", path, str(error))
            return
        except QuiverError as error:
            self._find("damage", path, f"it cannot be read: {error}")
            return
        if self._state is None:
            for fault in faults:
                self._find("damage", fault.path, f"it is {fault.text}: term and vote are unknown")
            return
        self.report.term, self.report.vote = self._state.term, self._state.vote
        for fault in faults:
            self._find("note", fault.path, f"it is {fault.text}; the other copy is intact")
        self._check_synced(self._state.log_id)
        if self._state.cut_index or self._state.reset_index:
            self._find("note", path, "a cut or replacement of the log is unfinished")

    def _check_synced(self, log_id: bytes) -> None:
        path = f"{self._folder}/{SYNCED}"
        try:
            self._told, problem = read_synced(self._disk, self._folder, log_id)
        except UnsupportedFormat as error:
            self._find("newer", path, str(error))
            return
        if problem:
            self._find("note", path, f"it is {problem}; it is made again")

    def _check_segments(self, starts: list[Index]) -> None:
        expected = self._first_index()
        last = self._state.active_index if self._state else Index(0)
        if not starts or (starts[-1] < last and not self._cut_index()):
            self._find("damage", segment_path(self._folder, last), "the last segment is missing")
        edge: Edge | None = None
        for number, first in enumerate(starts):
            path = segment_path(self._folder, first)
            gap = edge.next_index if edge is not None else expected
            if gap and gap < first:
                lost = segment_path(self._folder, gap)
                reason = "the segment file is missing"
                self._find("damage", lost, Damage(lost, 0, gap, Index(first - 1), reason).what)
            following = starts[number + 1] if number + 1 < len(starts) else None
            try:
                edge = self._check_segment(first, following, edge)
            except UnsupportedFormat as error:
                self._find("newer", path, str(error))
                edge = None
            except QuiverError as error:
                text = f"entries from {first} on cannot be checked: {error}"
                self._find("damage", path, text)
                edge = None
        if edge is not None:
            self.report.end = edge

    def _check_segment(self, first: Index, following: Index | None, before: Edge | None) -> Edge:
        """Walk one segment; returns the edge at its end."""
        path = segment_path(self._folder, first)
        file = self._disk.open_to_read(path)
        head = self._head(first, before)
        if before is not None and before.next_index == first and before != head.start:
            self._find(
                "damage", path, f"it starts at {head.start}, the one before ends at {before}"
            )
        log_id = head.log_id
        footer, reason = self._footer(first, log_id)
        until = footer.end if footer else self._start_of(following, log_id)
        size = footer.data_bytes if footer else None
        told = self._told if self._told.segment == first and until is None else None
        visit = self._visit
        scan = Scanner(path, file, head, until=until, told=told, size=size, visit=visit).run()
        self._progress(file.size())
        self._add(scan, head)
        cut_index = self._cut_index()
        for damage in scan.damage:
            if cut_index and damage.first_index >= cut_index:
                continue
            self._find("damage", path, damage.what, damage.position)
        if scan.lost_marks:
            self._find("note", path, f"{scan.lost_marks} marks are unreadable; no entry is lost")
        if following is not None:
            self._check_sealed(path, scan, footer, reason)
        elif not cut_index:
            self._check_active(path, scan, footer)
        return scan.edge

    def _head(self, first: Index, before: Edge | None) -> SegmentHeader:
        path = segment_path(self._folder, first)
        log_id = self._state.log_id if self._state else None
        try:
            return read_head(path, self._disk.open_to_read(path), first, log_id)
        except (Corrupt, Unreadable) as error:
            known = before if before is not None and before.next_index == first else None
            known = Edge() if first == 1 else known
            if known is None or self._state is None:
                raise
            self._find("note", path, f"the header is damaged, and known from elsewhere: {error}")
            return SegmentHeader(self._state.log_id, self._state.secret, known)

    def _footer(self, first: Index, log_id: bytes) -> tuple[Footer | None, str]:
        try:
            return read_footer(self._disk, self._folder, first, log_id), ""
        except (Corrupt, Unreadable) as error:
            return None, str(error)

    def _start_of(self, first: Index | None, log_id: bytes) -> Edge | None:
        if first is None:
            return None
        path = segment_path(self._folder, first)
        try:
            return read_head(path, self._disk.open_to_read(path), first, log_id).start
        except (Corrupt, Unreadable):
            return Edge(first)

    def _check_sealed(self, path: str, scan: Scan, footer: Footer | None, reason: str) -> None:
        if footer is None:
            self._find("note", path, f"the footer is missing or damaged: {reason}")
            return
        file = self._disk.open_to_read(path)
        try:
            packed = file.read(footer.data_bytes, footer.index_bytes)
            SegmentIndex.unpack(footer.first_index, packed, footer.index_crc)
        except (Corrupt, Unreadable) as error:
            self._find("note", path, f"the index is damaged: {error}", footer.data_bytes)
            return
        if not scan.damage and packed != scan.index.pack():
            self._find("note", path, "the index does not match the entries", footer.data_bytes)

    def _check_active(self, path: str, scan: Scan, footer: Footer | None) -> None:
        file = self._disk.open_to_read(path)
        state = self._state
        if footer is not None and not (state and state.active_index >= footer.next_index):
            missing = segment_path(self._folder, footer.next_index)
            self._find("damage", missing, "the last segment is missing")
        elif state and state.active_index == scan.index.first and file.size() < state.active_bytes:
            reason = f"the file has {file.size()} of its {state.active_bytes} bytes"
            damage = Damage(path, scan.end, scan.edge.next_index, None, reason)
            self._find("damage", path, damage.what, damage.position)
        elif scan.torn:
            left = first_data(file, scan.end, file.size())
            self._find("torn", path, f"an unfinished write: {scan.torn}", left or scan.end)

    def _check_checkpoints(self) -> None:
        if self._state is None:
            return
        checkpoints, first = self._checkpoints(self._state), self._first_index()
        indexes = checkpoints.indexes()
        if first > 1 and first not in indexes:
            text = f"the file is missing: what entries before {first} led to is unknown"
            self._find("damage", checkpoints.path(first), text)
        for index in indexes:
            self._check_checkpoint(checkpoints, index)

    def _check_reset(self, state: State) -> None:
        """All that counts is the checkpoint that is about to replace the log."""
        checkpoints, index = self._checkpoints(state), state.reset_index
        waiting = f"{checkpoints.path(index)}{RESET}".rpartition("/")[2]
        is_waiting = waiting in self._disk.names(self._folder)
        self._check_checkpoint(checkpoints, index, RESET if is_waiting else "")

    def _checkpoints(self, state: State) -> Checkpoints:
        limit = self._settings.checkpoint_bytes_max
        return Checkpoints(self._disk, self._folder, state.log_id, limit)

    def _check_checkpoint(self, checkpoints: Checkpoints, index: Index, suffix: str = "") -> None:
        self.report.checkpoints += 1
        path = checkpoints.path(index) + suffix
        try:
            self._progress(self._disk.open_to_read(path).size())
            checkpoints.load_file(index, suffix)
        except UnsupportedFormat as error:
            self._find("newer", path, str(error))
            return
        except QuiverError as error:
            self._find_bad_checkpoint(checkpoints, index, suffix, str(error))
            return
        if not suffix and f"{path}{COPY}".rpartition("/")[2] in self._disk.names(self._folder):
            try:
                checkpoints.load_file(index, COPY)
            except UnsupportedFormat as error:
                self._find("newer", path + COPY, str(error))
            except QuiverError as error:
                self._find("note", path + COPY, f"{error}; the checkpoint itself is intact")

    def _find_bad_checkpoint(
        self, checkpoints: Checkpoints, index: Index, suffix: str, reason: str
    ) -> None:
        path = checkpoints.path(index) + suffix
        try:
            if suffix:
                raise Corrupt(reason)
            checkpoints.load_file(index, COPY)
        except QuiverError:
            self._find("damage", path, reason)
        else:
            self._find("note", path, f"{reason}; its copy is intact")

    def _visit(self, frame: Frame, position: int) -> None:
        if self._deep and frame.header.kind == FrameKind.DATA:
            try:
                decode_batch(frame, STORED_LIMITS)
            except (Corrupt, TooLarge) as error:
                where = f"{self._folder}: entry {frame.header.index}"
                self._find("damage", where, f"the batch cannot be decoded: {error}", position)

    def _add(self, scan: Scan, head: SegmentHeader) -> None:
        report = self.report
        if not report.segments:
            report.start = head.start
        report.segments += 1
        report.bytes += scan.end
        report.entries += len(scan.index)
        report.messages += scan.messages
