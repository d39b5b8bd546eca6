"""The state machine of one partition: applies committed entries.

Deterministic: the same entries give the same state on every replica, byte for byte. It reads no
clock (time comes in entries), knows no other partition, and cannot refuse: whatever is committed
was checked before it was proposed.

Each part (producers, catalog, groups, priority index) has its own section of the checkpoint.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final

from crc32c import crc32c

from quivermq.batches import Buffer, Frame, FrameKind, Header, Index, Offset
from quivermq.errors import BrokenInvariant, InvalidRequest, UnsupportedFormat
from quivermq.queue.catalog import Catalog, Json, catalog_change
from quivermq.queue.groups import Groups
from quivermq.queue.priority_index import PriorityIndex
from quivermq.queue.producers import ProducerTable
from quivermq.queue.topic_settings import TopicSettings

_VERSION: Final = 5
_HEADER: Final = Struct("<HQQQQIIIII")

_FLATTEN_EVERY: Final = 4096
"""Entries between two attempts to make a full index smaller."""


class Command(IntEnum):
    """The first byte of a command entry's body."""

    SETTINGS = 1
    CATALOG = 2
    GROUPS = 3
    RESTORED_GROUPS = 4
    RESTORED_PRODUCERS = 5
    """The last two: from feature level 2 on."""


def settings_command(settings: TopicSettings) -> bytes:
    """The body of the command entry that puts `settings` into force."""
    settings.check()
    return bytes([Command.SETTINGS]) + settings.encode()


def catalog_command(base: int, put: Mapping[str, Json], delete: Iterable[str] = ()) -> bytes:
    """The body of the command entry that changes the catalog, if its version is `base` by then."""
    return bytes([Command.CATALOG]) + catalog_change(base, put, delete)


def restored_groups_command(groups: Groups) -> bytes:
    """The body of the command entry that puts groups in place as they are."""
    return bytes([Command.RESTORED_GROUPS]) + groups.pack()


def restored_producers_command(packed: bytes) -> bytes:
    """The body of the command entry that puts a packed table of producers in place."""
    return bytes([Command.RESTORED_PRODUCERS]) + packed


def check_restored(body: Buffer) -> None:
    """Raise `InvalidRequest` unless this is a command that restores, and can be carried out."""
    view = memoryview(body)
    try:
        if view[0] == Command.RESTORED_GROUPS:
            Groups.unpack(view[1:]).check()
        elif view[0] == Command.RESTORED_PRODUCERS:
            ProducerTable.unpack(view[1:]).validate()
        else:
            raise ValueError(f"command {view[0]}")
    except (BrokenInvariant, ValueError, IndexError, StructError, OverflowError) as error:
        raise InvalidRequest(f"this is no state that an export gave: {error}") from error


def groups_command(operations: Iterable[bytes]) -> bytes:
    """The body of the command entry that changes groups, by operations of a `LeaseManager`."""
    return bytes([Command.GROUPS]) + b"[" + b",".join(operations) + b"]"


class Partition:
    """Everything that the entries of a partition have led to so far."""

    def __init__(
        self, applied_index: Index = Index(0), term: int = 0, start: Offset | None = None
    ) -> None:
        """With a `start`, a partition to be restored, whose first message has that offset."""
        self.applied_index = applied_index
        self.term = term
        self.next_offset = start or Offset(0)
        self.timestamp_ms = 0
        self.digest = 0
        """A running hash over all that was applied: replicas that differ here have diverged."""
        self.settings = TopicSettings()
        self.producers = ProducerTable(is_restoring=start is not None)
        self.catalog = Catalog()
        self.groups = Groups()
        self.priority_index = PriorityIndex()
        self.priority_index.trim(self.next_offset)

    def apply(self, frame: Frame) -> bool:
        """Take in the next committed entry; False if it came too late to have an effect."""
        header = frame.header
        if header.index != self.applied_index + 1 or header.base_offset != self.next_offset:
            raise BrokenInvariant(
                f"entry {header.index} at offset {header.base_offset} is applied after "
                f"{self.applied_index} at {self.next_offset}"
            )
        has_effect = True
        if header.kind == FrameKind.DATA:
            self.producers.record(header)
            self._file(header)
        elif header.kind == FrameKind.COMMAND:
            has_effect = self._command(memoryview(frame.body))
        self.applied_index = header.index
        self.term = header.term
        self.next_offset = header.next_offset
        self.timestamp_ms = max(self.timestamp_ms, header.timestamp_ms)
        # The header holds the body's checksum, so it stands for all of the entry. Without its own
        # checksum: that of anything followed by its checksum is always the same.
        self.digest = crc32c(frame.packed_header[:-4], self.digest)
        return has_effect

    def _file(self, header: Header) -> None:
        """Note where the messages of a batch are to be found."""
        priority_index = self.priority_index
        # Whether it is due is for the clock of the leader that delivers it: the time of the entry
        # may be far ahead, since it never goes back and clocks do.
        priority_index.add(
            header.base_offset, header.next_offset, header.priority, header.not_before_ms
        )
        if priority_index.is_full and header.index % _FLATTEN_EVERY == 0:
            groups, turn = self.groups, header.index // _FLATTEN_EVERY
            passed = min(groups.first_fresh(priority_index), priority_index.middle)
            taken = groups.taken_by_all()
            priority_index.flatten(passed, header.timestamp_ms, groups.cancelled, taken, turn)

    def _command(self, body: memoryview) -> bool:
        name, content = body[0] if body else 0, body[1:]
        if name == Command.GROUPS:
            self.groups.apply(content, self.priority_index)
        elif name == Command.CATALOG:
            return self.catalog.apply(content)
        elif name == Command.SETTINGS:
            self.settings = TopicSettings.decode(content)
        elif name == Command.RESTORED_GROUPS:
            self.groups.adopt(Groups.unpack(content), self.priority_index.begin)
        elif name == Command.RESTORED_PRODUCERS:
            self.producers = ProducerTable.unpack(content)
            self.producers.forget_rest()
        else:
            raise UnsupportedFormat(
                f"command {bytes(body[:1])!r} is of a newer release: upgrade this broker"
            )
        return True

    @property
    def size_bytes(self) -> int:
        """The size of a checkpoint, more or less; known without making one."""
        # Added one by one, without a loop: every batch pays for it.
        size = self.catalog.size_bytes + self.groups.size_bytes
        return size + self.priority_index.size_bytes + self.producers.size_bytes

    def snapshot(self) -> "PartitionSnapshot":
        """The state as it is now, to be packed later, also in another thread."""
        return PartitionSnapshot(self)

    def checkpoint(self) -> bytes:
        """All of the state as bytes; the same on every replica at the same index."""
        return self.snapshot().pack()

    @staticmethod
    def edge_of(data: Buffer) -> tuple[Index, Offset, int, int]:
        """Behind which entry a checkpoint was made: next index and offset, term, time."""
        version, index, offset, term, timestamp_ms, *_ = _HEADER.unpack_from(data)
        _check_version(version)
        return Index(index + 1), offset, term, timestamp_ms

    @classmethod
    def restore(cls, data: Buffer) -> "Partition":
        """The state that `checkpoint` wrote; the log has checked that the bytes are intact."""
        version, index, offset, term, timestamp_ms, digest, *sizes = _HEADER.unpack_from(data)
        _check_version(version)
        partition = cls(index, term)
        partition.next_offset = offset
        partition.timestamp_ms = timestamp_ms
        partition.digest = digest
        view = memoryview(data)[_HEADER.size :]
        sections = []
        for size in sizes:
            sections.append(view[:size])
            view = view[size:]
        partition.settings = TopicSettings.decode(sections[0])
        partition.catalog = Catalog.unpack(sections[1])
        partition.groups = Groups.unpack(sections[2])
        partition.priority_index = PriorityIndex.unpack(sections[3])
        partition.producers = ProducerTable.unpack(view)
        return partition

    def validate(self) -> None:
        """Re-check every invariant; raises `BrokenInvariant`."""
        self.producers.validate()
        self.catalog.validate()
        self.priority_index.validate()
        self.groups.validate(self.priority_index)
        again = Partition.restore(self.checkpoint())
        if again.checkpoint() != self.checkpoint():
            raise BrokenInvariant(f"the state at {self.applied_index} does not survive a restart")


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise UnsupportedFormat(f"checkpoint version {version}; this build reads {_VERSION}")


class PartitionSnapshot:
    """A partition's state at one index, whatever becomes of the partition.

    Made between two entries, in no time: groups are shared until they change, and all else is
    numbers in columns. `pack` may be called from another thread.
    """

    def __init__(self, partition: Partition) -> None:
        self.size_bytes = partition.size_bytes
        self._numbers = (
            _VERSION,
            partition.applied_index,
            partition.next_offset,
            partition.term,
            partition.timestamp_ms,
            partition.digest,
        )
        self._settings = partition.settings.encode()
        self._catalog = partition.catalog.fork()
        self._groups = partition.groups.fork()
        self._priority_index = partition.priority_index.pack()
        self._producers = partition.producers.pack()

    def pack(self) -> bytes:
        """All of it as bytes."""
        sections = (self._settings, self._catalog.pack(), self._groups.pack(), self._priority_index)
        head = _HEADER.pack(*self._numbers, *map(len, sections))
        return b"".join((head, *sections, self._producers))
