"""Reads the log for the Raft core, and carries out the disk work of a replica."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from quivermq.batches import MIB, Index, Offset
from quivermq.errors import Corrupt, StorageFailed, StorageFull, TooLarge, UnsupportedFormat
from quivermq.log import Checkpoint, Disk, Edge, Log, LogSettings
from quivermq.queue import Partition
from quivermq.raft import Configuration, Entry, HardState, Snapshot
from quivermq.replica.effects import Persist, Repair, SaveCheckpoint
from quivermq.replica.entries import entry_of
from quivermq.replica.recent import Recent
from quivermq.replica.state import ReplicaState, configuration_in

FOUNDING_TERM: Final = 1
APPEND_BYTES_MAX: Final = 16 * MIB
"""The size of joined appends; a piece of work may be larger by itself."""


class LogStorage:
    """`raft.Storage` over a `Log`: reading only; writes leave the replica as effects."""

    def __init__(self, log: Log, configuration: Configuration, recent: Recent) -> None:
        self._log = log
        self._configuration = configuration
        self._recent = recent
        self._snapshot: Snapshot | None = None

    def initial_state(self) -> tuple[HardState, Configuration]:
        log = self._log
        return HardState(log.term, log.vote, log.commit_index), self._configuration

    def first_index(self) -> int:
        return self._log.first_index

    def last_index(self) -> int:
        return self._log.edge.next_index - 1

    def term(self, index: int) -> int | None:
        log = self._log
        if not log.first_index - 1 <= index < log.edge.next_index:
            return None
        return log.term_at(Index(index))

    def entries(self, low: int, high: int, bytes_max: int) -> Sequence[Entry]:
        """Entries from `low` to before `high` within `bytes_max`, at least one."""
        found = self._recent.run(low, high, bytes_max)
        if found:
            return found
        left = bytes_max
        while low < high and (left > 0 or not found):
            frames = self._log.read(Index(low), end=Index(high), bytes_max=max(left, 1))
            if found and sum(map(len, frames)) > left:
                break
            found += [entry_of(frame) for frame in frames]
            left -= sum(map(len, frames))
            low += len(frames)
        return found

    def snapshot(self) -> Snapshot | None:
        """The oldest kept checkpoint that can be read, so that its receiver can have all that is
        kept.

        Its content is left out: it is sent in parts, and only its first part is read here. The
        receiver checks that all of it says the same.
        """
        log = self._log
        kept = [index for index in log.checkpoints() if index >= log.first_index]
        for index in kept:
            if index in log.distrusted:
                continue
            if self._snapshot is not None and self._snapshot.index == index - 1:
                return self._snapshot
            try:
                self._snapshot = self._snapshot_at(index)
            except (Corrupt, StorageFailed, UnsupportedFormat):
                continue
            return self._snapshot
        # None is left: the first may be better next time.
        log.distrusted.clear()
        return None

    def _snapshot_at(self, index: Index) -> Snapshot:
        log = self._log
        configuration = configuration_in(lambda at, size: log.checkpoint_part(index, at, size))
        return Snapshot(index - 1, log.checkpoint_summary(index).edge.term, configuration)


def found_log(
    disk: Disk,
    folder: str,
    log_id: bytes,
    members: Sequence[int],
    settings: LogSettings | None = None,
) -> Log:
    """The log of a founding member of a partition: behind a checkpoint that names all of them."""
    return Log.create(disk, folder, log_id, settings, founding_checkpoint(members))


def founding_checkpoint(members: Sequence[int], start: int | None = None) -> Checkpoint:
    """The checkpoint that all founding members of a partition start from. With a `start`, of one
    to be restored, whose first message has that offset."""
    configuration = Configuration(voters=tuple(sorted(members)))
    partition = Partition(Index(1), FOUNDING_TERM, None if start is None else Offset(start))
    return ReplicaState(configuration, partition).checkpoint()


def blank_log(disk: Disk, folder: str, log_id: bytes, settings: LogSettings | None = None) -> Log:
    """The log of a member that joins later: it gets everything from the leader."""
    return Log.create(disk, folder, log_id, settings)


def newest_state(log: Log) -> ReplicaState:
    """The state at the newest readable checkpoint; a blank one for a blank log.

    `UnsupportedFormat` if a checkpoint is of another release: to go on from an older one would lead
    to entries of that release.
    """
    for index in reversed(log.checkpoints()):
        if index > log.edge.next_index:
            continue
        try:
            return ReplicaState.unpack(log.load_checkpoint(index).data)
        except Corrupt:
            # An older one leads to the same state, by a longer way.
            continue
    if log.start != Edge():
        raise Corrupt(f"no checkpoint is readable, and entries before {log.first_index} are gone")
    return ReplicaState(Configuration(), Partition())


@dataclass(frozen=True, slots=True)
class Drop:
    """Retention: `plan(log)` drops what need not be kept."""

    plan: Callable[[Log], object]


DiskWork = Persist | SaveCheckpoint | Repair | Drop


def carry_out(log: Log, work: DiskWork) -> None:
    """Do a replica's disk work, durably. Pieces of one replica are carried out in their order."""
    if isinstance(work, Persist):
        _persist(log, [work])
    elif isinstance(work, Drop):
        # The checkpoint that would replace what is dropped may be damaged, or have no place: then
        # both are kept.
        with suppress(Corrupt, StorageFull, TooLarge):
            work.plan(log)
    elif isinstance(work, Repair) and work.drop_before:
        log.drop_before(work.drop_before)
    elif isinstance(work, Repair):
        log.repair(work.frames)
    elif work.index >= log.first_index and log.starts_segment(work.index):
        # Otherwise the segment was dropped or replaced meanwhile, and the state with it. One that
        # is too large is left out: the one before it, and all entries since, lead to the same.
        with suppress(TooLarge):
            log.save_checkpoint(work.index, work.state.pack())


def carry_out_all(log: Log, works: Sequence[DiskWork]) -> int:
    """Do pieces of a replica's disk work in order, with one fsync where one is enough.

    Returns how many are done, and durable: all of them, or fewer if the disk is full; try the rest
    again later. Any other failure is raised.
    """
    done = 0
    while done < len(works):
        try:
            done += _carry_out_joined(log, _joinable(log, works[done:]))
        except StorageFull:
            break
    return done


def _carry_out_joined(log: Log, works: Sequence[DiskWork]) -> int:
    persists = [work for work in works if isinstance(work, Persist)]
    if len(persists) > 1:
        # If the disk is full, there may be room for the first one alone.
        with suppress(StorageFull):
            _persist(log, persists)
            return len(persists)
    carry_out(log, works[0])
    if isinstance(works[0], Repair):
        # The replica may start now, on the event loop: it finds its checkpoint in memory.
        log.preload_checkpoint()
    return 1


def _joinable(log: Log, works: Sequence[DiskWork]) -> Sequence[DiskWork]:
    """The longest run at the front that one append and one fsync can do: at least one piece.

    Whatever the first does to the log, the others only go on behind it.
    """
    if len(works) == 1:
        return works
    end, size = log.edge.next_index, 0
    for count, work in enumerate(works):
        if not isinstance(work, Persist) or (count and (work.term or work.checkpoint)):
            return works[: max(count, 1)]
        first, last = _span(work, end)
        size += sum(map(len, work.frames))
        if count and (first != end or size > APPEND_BYTES_MAX):
            return works[:count]
        end = last
    return works


def _span(work: Persist, end: Index) -> tuple[Index, Index]:
    """Where a piece of work begins to write, and where the log ends behind it."""
    if work.frames:
        return work.frames[0].header.index, Index(work.frames[-1].header.index + 1)
    if work.checkpoint:
        end = work.checkpoint.edge.next_index
    return end, end


def _persist(log: Log, works: Sequence[Persist]) -> None:
    """Term and vote, then checkpoint, then entries, then the commit index (in the mark of `sync`).

    In this order: a commit index on disk before the entries would make those that they are about
    to replace count as committed after a crash. May be begun again if the disk was full.
    """
    work = works[0]
    if work.term:
        log.save_vote(work.term, work.vote)
    if work.arrived is not None:
        # First: what cannot be understood must not replace anything.
        work.arrived.restore()
    if work.checkpoint is not None:
        log.reset(work.checkpoint)
    if work.frames:
        first = work.frames[0].header.index
        if first < log.edge.next_index:
            log.cut(first)
    frames = work.frames if len(works) == 1 else [f for work in works for f in work.frames]
    log.append(frames)
    log.sync(max([work.commit_index for work in works]))
