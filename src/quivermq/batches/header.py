"""The fixed header in front of every body: the fields that brokers read and stamp.

Byte table in `docs/formats.md`. Magic, version and the checksum at the end keep their places in
every version, so that intact bytes of another version are told from damaged ones.

Knows struct and CRC-32C; must never know Arrow, files or sockets.
"""

from enum import IntEnum, IntFlag
from struct import Struct
from typing import Final, Literal, NamedTuple, NewType, Self

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
Compression = Literal["lz4", "zstd"] | None

VERSION: Final = 1
MAGIC: Final = 0x7151  # b"Qq": rare in text, and the two bytes differ from zeros and from ones

_FIELDS: Final = Struct("<HBBHBBIIQQQQQQQIII")
_CHECKSUM: Final = Struct("<I")
_FIELDS_AND_CHECKSUM: Final = Struct(_FIELDS.format + "I")
HEADER_BYTES: Final = _FIELDS.size + _CHECKSUM.size


class FrameKind(IntEnum):
    """The kind of a frame's body."""

    DATA = 1
    """An Arrow record batch of messages."""
    COMMAND = 2
    """A change of the partition's state that is not a message."""
    MEMBERSHIP = 3
    """A change of the partition's members."""
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
_DATA: Final = int(FrameKind.DATA)
_KNOWN_KINDS: Final = frozenset(int(kind) for kind in FrameKind)


MARK_PREFIX: Final = Struct("<HBB").pack(MAGIC, VERSION, FrameKind.MARK)
"""The first bytes of every mark."""


class Header(NamedTuple):
    """The header's fields. A tuple, because one is made for every batch that passes through.

    Two fields hide methods of `tuple` that are never called on a header.
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

    def stamped(self, term: int, index: Index, base_offset: Offset, timestamp_ms: int) -> "Header":
        """The same header at another place in a log."""
        # The four stand side by side; `_replace` does the same at twice the cost.
        return Header(*self[:5], term, index, base_offset, timestamp_ms, *self[9:])

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
            raise _of_another_release(
                f"frame format version {version}; this build reads version {VERSION}"
            )
        if reserved:
            raise _of_another_release(f"a reserved header byte is {reserved} instead of 0")
        # `tuple.__new__` skips the keyword handling of a constructor that gets every field.
        header = tuple.__new__(cls, (kind, flags, priority, *rest))
        header.check(limits)
        return header

    def check(self, limits: Limits) -> None:
        """Raise unless every field is one that this build writes itself."""
        # Unpacked at once: reading fifteen fields by name would cost half of the whole check.
        (
            kind, flags, priority, body_bytes, _, term, index, base_offset, timestamp_ms,
            producer_id, sequence, not_before_ms, _, count, decoded_bytes,
        ) = self  # fmt: skip
        if kind not in _KNOWN_KINDS or flags & ~_KNOWN_FLAGS:
            raise _of_another_release(f"frame kind {kind} with flags 0x{flags:04x} is unknown")
        if flags & COMPRESSED == COMPRESSED:
            raise Corrupt(f"frame flags 0x{flags:04x} are not a valid combination")
        if priority > PRIORITY_MAX:
            raise Corrupt(f"priority {priority} is above {PRIORITY_MAX}")
        if body_bytes > limits.batch_bytes_max or decoded_bytes > limits.batch_bytes_max:
            raise TooLarge(
                f"a batch of {max(body_bytes, decoded_bytes):,} bytes is above the limit of "
                f"{limits.batch_bytes_max:,} (batch_bytes_max): send smaller batches"
            )
        if decoded_bytes != body_bytes and not flags & COMPRESSED:
            raise Corrupt(f"an uncompressed body of {body_bytes} bytes claims {decoded_bytes}")
        if (kind == _DATA) != (count > 0) or (flags and kind != _DATA):
            raise Corrupt(
                f"a frame of kind {kind} cannot hold {count} messages with flags 0x{flags:04x}"
            )
        if timestamp_ms > TIMESTAMP_MS_MAX or not_before_ms > TIMESTAMP_MS_MAX:
            raise Corrupt(f"timestamps {timestamp_ms} and {not_before_ms} must not pass year 9999")
        if base_offset > COUNTER_MAX - count or sequence > COUNTER_MAX - count:
            raise Corrupt(f"offset {base_offset} or sequence {sequence} is above 2**63")
        if term > COUNTER_MAX or index > COUNTER_MAX or producer_id > COUNTER_MAX:
            raise Corrupt("term, index or producer id is above 2**63")


def pack_lone_header(
    body: bytes, flags: int, producer_id: int, producer_epoch: int, sequence: int, priority: int
) -> bytes:
    """The bytes that `Header.pack` makes for one message, without a header in between."""
    size = len(body)
    packed = _FIELDS.pack(
        MAGIC, VERSION, _DATA, flags, priority, 0, size, crc32c(body), 0, 0, 0, 0,
        producer_id, sequence, 0, producer_epoch, 1, size,
    )  # fmt: skip
    return packed + _CHECKSUM.pack(crc32c(packed))


def _of_another_release(what: str) -> UnsupportedFormat:
    """The refusal of a header whose checksum holds: it is not damaged, but of another release."""
    return UnsupportedFormat(f"{what}: read it with the release that wrote it, or upgrade")
