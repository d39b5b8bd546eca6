"""Creates a log under a temporary name first, so that a log with its final name is complete."""

from collections.abc import Collection
from secrets import token_bytes

from quivermq.errors import BrokenInvariant, StorageFailed
from quivermq.log.checkpoints import Checkpoint, Checkpoints
from quivermq.log.disk import Disk
from quivermq.log.edge import Edge
from quivermq.log.layout import LOG_ID_BYTES, SECRET_BYTES, TEMPORARY, SegmentHeader
from quivermq.log.segment import ActiveSegment
from quivermq.log.settings import LogSettings
from quivermq.log.state import Owner, State, StateFile
from quivermq.log.synced import SyncedFile


def prepare_log(
    disk: Disk, folder: str, owner: Owner, settings: LogSettings, founding: Checkpoint | None
) -> None:
    """Every file of a new log, empty or behind a founding checkpoint, durable, in a folder that
    does not have its name yet."""
    log_id, member = owner
    if len(log_id) != LOG_ID_BYTES:
        raise BrokenInvariant(f"a log id has {LOG_ID_BYTES} bytes, not {len(log_id)}")
    if disk.is_folder(folder):
        raise StorageFailed(f"{folder} exists already: open it, or remove it first")
    temporary = folder + TEMPORARY
    disk.remove(temporary)
    disk.make_folder(temporary)
    start = founding.edge if founding else Edge()
    if founding:
        checkpoints = Checkpoints(disk, temporary, log_id, settings.checkpoint_bytes_max)
        checkpoints.save(founding)
        checkpoints.save_copy(founding.edge.next_index)
    head = SegmentHeader(log_id, token_bytes(SECRET_BYTES), start)
    active = ActiveSegment.create(disk, temporary, head, settings.allocation_bytes_min)
    first = start.next_index
    state = State(
        log_id, head.secret, member, term=start.term, first_index=first, active_index=first
    )
    StateFile.create(disk, temporary, state._replace(active_bytes=active.allocated))
    SyncedFile.create(disk, temporary, log_id)
    disk.sync_folder(temporary)


def name_logs(disk: Disk, folders: Collection[str]) -> None:
    """Give prepared logs their names; durable when this returns."""
    for folder in folders:
        disk.rename(folder + TEMPORARY, folder)
    above = set(folders)
    while above := {folder.rpartition("/")[0] for folder in above if folder}:
        for folder in sorted(above):
            disk.sync_folder(folder)
