"""The state machine of one partition: what the committed entries mean.

Deterministic: the same entries give the same state on every replica, byte for byte. It reads no
clock (time comes in entries), knows no other partition, and cannot refuse: whatever is committed
was checked before it was proposed.

Consumer groups will be one more part beside `Producers`, with its own commands and its own section
of the checkpoint.
"""

from enum import IntEnum
from struct import Struct
from typing import Final

from crc32c import crc32c

from quivermq.batches import Buffer, Frame, Index, Kind, Offset
from quivermq.errors import BrokenInvariant, UnsupportedFormat
from quivermq.queue.producers import Producers
from quivermq.queue.topic_settings import TopicSettings

_VERSION: Final = 1
_HEADER: Final = Struct("<HQQQQII")


class Command(IntEnum):
    """The first byte of a command entry's body."""

    SETTINGS = 1


def settings_command(settings: TopicSettings) -> bytes:
    """The body of the command entry that puts `settings` into force."""
    settings.check()
    return bytes([Command.SETTINGS]) + settings.encode()


class Partition:
    """Everything that the entries of a partition have led to so far."""

    def __init__(self, applied_index: Index = Index(0), term: int = 0) -> None:
        self.applied_index = applied_index
        self.term = term
        self.next_offset = Offset(0)
        self.timestamp_ms = 0
        self.digest = 0
        """A running hash over all that was applied: replicas that differ here have diverged."""
        self.settings = TopicSettings()
        self.producers = Producers()

    def apply(self, frame: Frame) -> None:
        """Take in the next committed entry."""
        header = frame.header
        if header.index != self.applied_index + 1 or header.base_offset != self.next_offset:
            raise BrokenInvariant(
                f"entry {header.index} at offset {header.base_offset} is applied after "
                f"{self.applied_index} at {self.next_offset}"
            )
        if header.kind == Kind.DATA:
            self.producers.record(header)
        elif header.kind == Kind.COMMAND:
            self._command(frame.body)
        self.applied_index = header.index
        self.term = header.term
        self.next_offset = header.next_offset
        self.timestamp_ms = max(self.timestamp_ms, header.timestamp_ms)
        # The header holds the body's checksum, so it stands for all of the entry. Without its own
        # checksum: that of anything followed by its checksum is always the same.
        self.digest = crc32c(frame.packed_header[:-4], self.digest)

    def _command(self, body: Buffer) -> None:
        if not body or body[0] != Command.SETTINGS:
            raise UnsupportedFormat(
                f"command {bytes(body[:1])!r} is of a newer release: upgrade this broker"
            )
        self.settings = TopicSettings.decode(memoryview(body)[1:])

    def checkpoint(self) -> bytes:
        """All of the state as bytes; the same on every replica at the same index."""
        settings = self.settings.encode()
        head = _HEADER.pack(
            _VERSION,
            self.applied_index,
            self.next_offset,
            self.term,
            self.timestamp_ms,
            self.digest,
            len(settings),
        )
        return head + settings + self.producers.pack()

    @classmethod
    def restore(cls, data: Buffer) -> "Partition":
        """The state that `checkpoint` wrote; the log has checked that the bytes are intact."""
        version, index, offset, term, timestamp_ms, digest, size = _HEADER.unpack_from(data)
        if version != _VERSION:
            raise UnsupportedFormat(f"checkpoint version {version}; this build reads {_VERSION}")
        partition = cls(index, term)
        partition.next_offset = offset
        partition.timestamp_ms = timestamp_ms
        partition.digest = digest
        view = memoryview(data)[_HEADER.size :]
        partition.settings = TopicSettings.decode(view[:size])
        partition.producers = Producers.unpack(view[size:])
        return partition

    def validate(self) -> None:
        """Re-check every invariant; raises `BrokenInvariant`."""
        self.producers.validate()
        again = Partition.restore(self.checkpoint())
        if again.checkpoint() != self.checkpoint():
            raise BrokenInvariant(f"the state at {self.applied_index} does not survive a restart")
