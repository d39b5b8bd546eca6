"""Making a log: it appears whole, or not at all."""

from secrets import token_bytes

from quivermq.errors import BrokenInvariant, StorageFailed
from quivermq.log.checkpoints import Checkpoint, Checkpoints
from quivermq.log.disk import Disk
from quivermq.log.edge import Edge
from quivermq.log.layout import LOG_ID_BYTES, SECRET_BYTES, TEMPORARY, SegmentHeader
from quivermq.log.segment import ActiveSegment
from quivermq.log.settings import LogSettings
from quivermq.log.state import State, StateFile


def create_log(
    disk: Disk, folder: str, log_id: bytes, settings: LogSettings, founding: Checkpoint | None
) -> None:
    """The files of a new log, empty or behind a founding checkpoint; durable, names included."""
    if len(log_id) != LOG_ID_BYTES:
        raise BrokenInvariant(f"a log id has {LOG_ID_BYTES} bytes, not {len(log_id)}")
    if disk.is_folder(folder):
        raise StorageFailed(f"{folder} exists already: open it, or remove it first")
    temporary = folder + TEMPORARY
    disk.remove(temporary)
    disk.make_folder(temporary)
    start = founding.edge if founding else Edge()
    if founding:
        limit = settings.checkpoint_bytes_max
        Checkpoints(disk, temporary, log_id, limit).save(founding)
    head = SegmentHeader(log_id, token_bytes(SECRET_BYTES), start)
    active = ActiveSegment.create(disk, temporary, head, settings.allocation_bytes_min)
    first = start.next_index
    state = State(log_id, head.secret, term=start.term, first_index=first, active_index=first)
    StateFile.create(disk, temporary, state._replace(active_bytes=active.allocated))
    disk.sync_folder(temporary)
    disk.rename(temporary, folder)
    above = folder
    while above:
        above = above.rpartition("/")[0]
        disk.sync_folder(above)
