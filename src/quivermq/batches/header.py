"""The fixed header in front of every body: what the broker reads and stamps of a batch.

Byte table in `docs/formats.md`. Magic, version and the checksum at the end keep their places in
every version, so that intact bytes of another version are told from damaged ones.

Knows struct and CRC-32C; must never know Arrow, files or sockets.
"""

from enum import IntEnum, IntFlag
from struct import Struct
from typing import Final, NamedTuple, NewType, Self

from crc32c import crc32c

from quivermq.batches.limits import (
    COUNTER_MAX,
    DEFAULT_LIMITS,
    PRIORITY_MAX,
    TIMESTAMP_MS_MAX,
    Limits,
)
from quivermq.errors import Corrupt, TooLarge, UnsupportedFormat

Offset = NewType("Offset", int)
"""Counts messages of a partition: dense, from 0, never reused."""

Index = NewType("Index", int)
"""Counts entries of a Raft log, from 1. Never mixed with `Offset`."""

Buffer = bytes | bytearray | memoryview

VERSION: Final = 1
MAGIC: Final = 0x7151  # b"Qq": rare in text, and the two bytes differ from zeros and from ones

_FIELDS: Final = Struct("<HBBHBBIIQQQQQQQIII")
_CHECKSUM: Final = Struct("<I")
_FIELDS_AND_CHECKSUM: Final = Struct(_FIELDS.format + "I")
HEADER_BYTES: Final = _FIELDS.size + _CHECKSUM.size


class Kind(IntEnum):
    """What a frame's body is."""

    DATA = 1
    """An Arrow record batch of messages."""
    COMMAND = 2
    """A change of the partition's state that is not a message."""
    MEMBERSHIP = 3
    """A change of the Raft group's members."""
    NOOP = 4
    """Nothing: what a new leader commits first."""
    MARK = 5
    """Not an entry: the local log's note that everything before it was fsynced. Never sent."""


class Flag(IntFlag):
    """Which optional columns a data body has, and how its buffers are compressed."""

    KEY = 1
    HEADERS = 2
    TIMESTAMP = 4
    LZ4 = 8
    ZSTD = 16


COMPRESSED: Final = int(Flag.LZ4 | Flag.ZSTD)
_KNOWN_FLAGS: Final = int(Flag.KEY | Flag.HEADERS | Flag.TIMESTAMP | Flag.LZ4 | Flag.ZSTD)
_KNOWN_KINDS: Final = frozenset(int(kind) for kind in Kind)


class Header(NamedTuple):
    """The header's fields. A tuple, because one is made for every batch that passes through.

    Two fields hide methods of `tuple` that nobody calls on a header.
    """

    kind: int
    flags: int = 0
    priority: int = 0
    body_bytes: int = 0
    body_crc: int = 0
    term: int = 0
    index: Index = Index(0)  # type: ignore[assignment]
    base_offset: Offset = Offset(0)
    timestamp_ms: int = 0
    producer_id: int = 0
    sequence: int = 0
    """The producer's number of the first message; the others follow without gaps."""
    not_before_ms: int = 0
    producer_epoch: int = 0
    count: int = 0  # type: ignore[assignment]
    decoded_bytes: int = 0
    """The body's size once decompressed; equal to `body_bytes` where nothing is compressed."""

    @property
    def next_offset(self) -> Offset:
        """The offset after this frame's last message."""
        return Offset(self.base_offset + self.count)

    @property
    def frame_bytes(self) -> int:
        """Header and body together."""
        return HEADER_BYTES + self.body_bytes

    def pack(self) -> bytes:
        """The header's bytes, checksum included."""
        kind, flags, priority, *rest = self
        packed = _FIELDS.pack(MAGIC, VERSION, kind, flags, priority, 0, *rest)
        return packed + _CHECKSUM.pack(crc32c(packed))

    @classmethod
    def unpack(cls, buffer: Buffer, at: int = 0, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Read the header at byte `at`, or raise `Corrupt`, `UnsupportedFormat` or `TooLarge`.

        Everything is checked before it is returned: a header in hand never asks for more memory,
        or lies further in the future, than the limits allow.
        """
        if len(buffer) - at < HEADER_BYTES:
            raise Corrupt(f"a frame header has {HEADER_BYTES} bytes, {len(buffer) - at} are left")
        magic, version, kind, flags, priority, reserved, *rest, checksum = (
            _FIELDS_AND_CHECKSUM.unpack_from(buffer, at)
        )
        if magic != MAGIC:
            raise Corrupt(f"no frame starts here: magic 0x{magic:04x} instead of 0x{MAGIC:04x}")
        if crc32c(memoryview(buffer)[at : at + _FIELDS.size]) != checksum:
            raise Corrupt("the frame header fails its checksum")
        if version != VERSION:
            raise UnsupportedFormat(
                f"frame format version {version}; this build reads version {VERSION}: "
                "read it with the release that wrote it, or upgrade"
            )
        if reserved:
            raise Corrupt(f"a reserved header byte is {reserved} instead of 0")
        # `tuple.__new__` skips the keyword handling of a constructor that gets every field.
        header = tuple.__new__(cls, (kind, flags, priority, *rest))
        header.check(limits)
        return header

    def check(self, limits: Limits) -> None:
        """Raise unless every field is one that this build writes itself."""
        if self.kind not in _KNOWN_KINDS:
            raise Corrupt(f"frame kind {self.kind} is unknown")
        if self.flags & ~_KNOWN_FLAGS or self.flags & COMPRESSED == COMPRESSED:
            raise Corrupt(f"frame flags 0x{self.flags:04x} are not a valid combination")
        if self.priority > PRIORITY_MAX:
            raise Corrupt(f"priority {self.priority} is above {PRIORITY_MAX}")
        if self.body_bytes > limits.batch_bytes_max or self.decoded_bytes > limits.batch_bytes_max:
            raise TooLarge(
                f"a batch of {max(self.body_bytes, self.decoded_bytes):,} bytes is above the "
                f"limit of {limits.batch_bytes_max:,} (batch_bytes_max): send smaller batches"
            )
        if not self.flags & COMPRESSED and self.decoded_bytes != self.body_bytes:
            raise Corrupt(
                f"an uncompressed body of {self.body_bytes} bytes claims {self.decoded_bytes}"
            )
        if (self.kind == Kind.DATA) != (self.count > 0):
            raise Corrupt(f"a frame of kind {self.kind} cannot hold {self.count} messages")
        if self.flags and self.kind != Kind.DATA:
            raise Corrupt(f"a frame of kind {self.kind} cannot have flags")
        self._check_counters()

    def _check_counters(self) -> None:
        if max(self.timestamp_ms, self.not_before_ms) > TIMESTAMP_MS_MAX:
            raise Corrupt(
                f"timestamps {self.timestamp_ms} and {self.not_before_ms} must not pass year 9999"
            )
        if max(self.base_offset, self.sequence) > COUNTER_MAX - self.count:
            raise Corrupt(f"offset {self.base_offset} or sequence {self.sequence} is above 2**63")
        if max(self.term, self.index, self.producer_id) > COUNTER_MAX:
            raise Corrupt("term, index or producer id is above 2**63")
