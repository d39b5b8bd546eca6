"""Creates a log under a temporary name first, so that a log with its final name is complete.

Many are made at a time, and syncs are what they cost: each file is synced once, and the names in
the folder together, because nothing there counts before the folder has its name.
"""

from collections.abc import Collection, Sequence
from secrets import token_bytes
from typing import NamedTuple

from quivermq.batches import Buffer, Index
from quivermq.errors import BrokenInvariant, StorageFailed
from quivermq.log.checkpoints import COPY, Checkpoint, Checkpoints, packed_checkpoint
from quivermq.log.damage import Damage
from quivermq.log.disk import Disk
from quivermq.log.edge import Edge
from quivermq.log.index import SegmentIndex
from quivermq.log.layout import (
    CHECKPOINT,
    LOG_ID_BYTES,
    SECRET_BYTES,
    SEGMENT_HEADER_BYTES,
    STATES,
    SYNCED,
    TEMPORARY,
    SegmentHeader,
    file_name,
)
from quivermq.log.sealed import SealedSegments
from quivermq.log.segment import ActiveSegment, segment_path
from quivermq.log.settings import LogSettings
from quivermq.log.state import Owner, State, StateFile, packed_state
from quivermq.log.synced import NOTHING, SyncedFile, packed_synced


class NewLog(NamedTuple):
    """A log that was just made: what its files hold is known without reading them."""

    folder: str
    state: State
    head: SegmentHeader
    founding: Checkpoint | None


def prepare_log(
    disk: Disk, folder: str, owner: Owner, settings: LogSettings, founding: Checkpoint | None
) -> NewLog:
    """Every file of a new log, empty or behind a founding checkpoint, durable, in a folder that
    does not have its name yet."""
    log_id, member = owner
    if len(log_id) != LOG_ID_BYTES:
        raise BrokenInvariant(f"a log id has {LOG_ID_BYTES} bytes, not {len(log_id)}")
    if disk.is_folder(folder):
        raise StorageFailed(f"{folder} exists already: open it, or remove it first")
    head = SegmentHeader(log_id, token_bytes(SECRET_BYTES), founding.edge if founding else Edge())
    first = head.start.next_index
    state = State(
        log_id,
        head.secret,
        member,
        serial=1,
        term=head.start.term,
        first_index=first,
        active_index=first,
        active_bytes=settings.allocation_bytes_min,
    )
    temporary = folder + TEMPORARY
    disk.remove(temporary)
    disk.make_folder(temporary)
    segment = disk.create(segment_path(temporary, first))
    segment.allocate(settings.allocation_bytes_min)
    segment.write(0, [head.pack()])
    written = [segment]
    for name, buffers in _small_files(state, founding, settings).items():
        written.append(disk.create(f"{temporary}/{name}"))
        written[-1].write(0, buffers)
    for file in written:
        file.sync()
    disk.sync_folder(temporary)
    return NewLog(folder, state, head, founding)


def _small_files(
    state: State, founding: Checkpoint | None, settings: LogSettings
) -> dict[str, Sequence[Buffer]]:
    """The files of a new log beside its segment, each with its content."""
    files: dict[str, Sequence[Buffer]] = {name: [packed_state(state)] for name in STATES}
    files[SYNCED] = [packed_synced(state.log_id, NOTHING)]
    if founding is not None:
        packed = packed_checkpoint(state.log_id, founding, settings.checkpoint_bytes_max)
        name = file_name(founding.edge.next_index, CHECKPOINT)
        files |= {name: packed, name + COPY: packed}
    return files


def name_logs(disk: Disk, folders: Collection[str]) -> None:
    """Give prepared logs their names; durable when this returns."""
    for folder in folders:
        disk.rename(folder + TEMPORARY, folder)
    above = set(folders)
    while above := {folder.rpartition("/")[0] for folder in above if folder}:
        for folder in sorted(above):
            disk.sync_folder(folder)


class NewLogFiles:
    """The files of a log that was just made and named, opened, and not read."""

    def __init__(self, disk: Disk, settings: LogSettings, new: NewLog) -> None:
        folder, state, head = new.folder, new.state, new.head
        log_id, first = state.log_id, state.first_index
        path = segment_path(folder, first)
        file, index = disk.open(path), SegmentIndex(first)
        self.state_file = StateFile(disk, folder, state)
        self.synced = SyncedFile(disk, folder, log_id, NOTHING)
        self.active = ActiveSegment(path, file, head, index, head.start, SEGMENT_HEADER_BYTES)
        self.sealed = SealedSegments(disk, folder, head.secret, settings)
        self.checkpoints = Checkpoints(disk, folder, log_id, settings.checkpoint_bytes_max)
        self.commit_index = Index(0)
        self.damage: list[Damage] = []
        self.notes: list[str] = []
