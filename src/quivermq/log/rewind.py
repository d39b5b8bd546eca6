"""Cuts the end of a log, or replaces all of it, in several steps that survive a crash.

Each is announced in the state file first and struck out there last. Opening the log in between
finishes it, so both are written to be begun again from any point.
"""

from quivermq.batches import Index
from quivermq.errors import Corrupt
from quivermq.log.checkpoints import RESET, Checkpoints
from quivermq.log.disk import Disk
from quivermq.log.layout import SEGMENT, SegmentHeader, index_of
from quivermq.log.scan import Scanner
from quivermq.log.segment import ActiveSegment, read_head, remove_segments, segment_path
from quivermq.log.settings import LogSettings
from quivermq.log.state import StateFile


def finish_cut(
    disk: Disk,
    folder: str,
    state_file: StateFile,
    checkpoints: Checkpoints,
    active: ActiveSegment | None = None,
) -> ActiveSegment:
    """Erase every entry from the announced index on; the segment that held it becomes the last.

    `active` is that segment, if its index is at hand. That knows more than a walk over the file:
    where an entry starts that stands behind a damaged one.
    """
    state = state_file.state
    index = state.cut_index
    starts = _segment_starts(disk, folder)
    first = max((start for start in starts if start <= index), default=None)
    if first is None:
        raise Corrupt(f"{folder}: the segment that is to be cut at entry {index} is missing")
    # Newest first, so that a crash never leaves a gap.
    remove_segments(disk, folder, sorted((s for s in starts if s > first), reverse=True))
    checkpoints.remove_where(after=index)
    disk.sync_folder(folder)
    if active is None:
        path = segment_path(folder, first)
        file = disk.open(path)
        head = read_head(path, file, first, state.log_id)
        scan = Scanner(path, file, head).run()
        active = ActiveSegment.of_scan(path, file, head, scan)
    active.cut(index)
    state_file.save(
        state._replace(cut_index=Index(0), active_index=first, active_bytes=active.allocated)
    )
    return active


def finish_reset(
    disk: Disk,
    folder: str,
    settings: LogSettings,
    state_file: StateFile,
    checkpoints: Checkpoints,
) -> ActiveSegment:
    """Remove everything but the announced checkpoint, and begin an empty segment behind it."""
    state = state_file.state
    index = state.reset_index
    waiting = checkpoints.path(index) + RESET
    is_waiting = waiting.rpartition("/")[2] in disk.names(folder)
    edge = checkpoints.load(index, RESET if is_waiting else "").edge
    remove_segments(disk, folder, _segment_starts(disk, folder))
    checkpoints.remove_where(before=index, after=index)
    if is_waiting:
        disk.rename(waiting, checkpoints.path(index))
    checkpoints.save_copy(index)
    disk.sync_folder(folder)
    head = SegmentHeader(state.log_id, state.secret, edge)
    active = ActiveSegment.create(disk, folder, head, settings.allocation_bytes_min)
    state_file.save(
        state._replace(
            first_index=index,
            active_index=index,
            active_bytes=active.allocated,
            reset_index=Index(0),
            cut_index=Index(0),
        )
    )
    return active


def _segment_starts(disk: Disk, folder: str) -> list[Index]:
    found = (index_of(name, SEGMENT) for name in disk.names(folder))
    return [index for index in found if index is not None]
