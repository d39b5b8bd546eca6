"""The packet: two lengths, an envelope, batches. Byte table in `docs/formats.md`.

The envelope is protobuf; batches are frames as they are in the log, and pass by without a copy.
Batches have checksums of their own. The last field of an envelope is that of everything else in the
packet: a bit that changes on the way, past the weak checksum of TCP, must not change what is asked.
"""

from collections.abc import Sequence
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from quivermq.batches import DEFAULT_LIMITS, Buffer, Frame, FrameKind, Limits
from quivermq.errors import InvalidRequest, TooLarge

PROTOCOL_MIN: Final = 1
PROTOCOL: Final = 2
"""The lowest and the highest protocol of this build. Both sides of a connection say theirs first,
and speak the highest that they have in common."""

CHECKED_PROTOCOL: Final = 2
"""From this protocol on every envelope ends with a checksum. Earlier builds skip the field, as they
do with every field that they do not know, so it is sent to them as well."""

PREFIX: Final = Struct(">II")
"""The length of everything behind itself, and the length of the envelope."""

LENGTH_BYTES: Final = 4
LENGTH_MAX: Final = 0xFFFF_FFFF

CHECKSUM: Final = Struct("<HI")
"""The last field of an envelope as protobuf lays it out: field 1000, a fixed32. The two bytes of
its tag are read as one number."""
CHECKSUM_TAG: Final = 0x3EC5
CHECKSUM_BYTES: Final = CHECKSUM.size

# Up to here a copy costs less than one buffer more in a gathering write.
JOINED_BYTES_MAX: Final = 4_096

_MARK: Final = int(FrameKind.MARK)


def agreed_protocol(lowest: int, highest: int) -> int:
    """The highest protocol that this build and another one speak; 0 if there is none.

    One that names no lowest speaks only one.
    """
    agreed = min(PROTOCOL, highest)
    return agreed if agreed >= max(PROTOCOL_MIN, lowest or highest) else 0


def protocols(lowest: int, highest: int) -> str:
    """A range of protocols, for people."""
    if lowest in {0, highest}:
        return f"protocol {highest}"
    return f"protocols {lowest} to {highest}"


class Packet(NamedTuple):
    """A received packet: views of memory that is not used for anything else."""

    envelope: memoryview
    batches: memoryview


def packet(envelope: bytes, frames: Sequence[Frame] = ()) -> list[Buffer]:
    """The buffers to write, in order. Large bodies stand alone, the rest is joined."""
    envelope_bytes = len(envelope) + CHECKSUM_BYTES
    length = LENGTH_BYTES + envelope_bytes + sum(map(len, frames))
    if length > LENGTH_MAX:
        raise TooLarge(f"a packet of {length:,} bytes is above {LENGTH_MAX:,}: send fewer batches")
    prefix = PREFIX.pack(length, envelope_bytes)
    joined: list[Buffer] = [prefix, envelope, _checksum(prefix, envelope)]
    buffers: list[Buffer] = []
    for frame in frames:
        joined.append(frame.packed_header)
        body = frame.body
        if len(body) <= JOINED_BYTES_MAX:
            joined.append(body)
        else:
            buffers += (b"".join(joined), body)
            joined = []
    if joined:
        buffers.append(b"".join(joined))
    return buffers


def _checksum(prefix: bytes, envelope: bytes) -> bytes:
    """The last field of an envelope."""
    # In two steps: joining them first would copy an envelope that may be large.
    return CHECKSUM.pack(CHECKSUM_TAG, crc32c(envelope, crc32c(prefix)))


def is_intact(content: memoryview, at: int, envelope_bytes: int) -> bool | None:
    """Whether the packet that begins at `at` has the right checksum; None if it has none."""
    end = at + PREFIX.size + envelope_bytes - CHECKSUM_BYTES
    if envelope_bytes < CHECKSUM_BYTES:
        return None
    tag, checksum = CHECKSUM.unpack_from(content, end)
    if tag != CHECKSUM_TAG:
        return None
    # The lengths stand in front of the envelope, here as on the wire.
    return crc32c(content[at:end]) == checksum  # type: ignore[no-any-return]


def frames_of(
    packet: Packet, limits: Limits = DEFAULT_LIMITS, frames_max: int | None = None
) -> list[Frame]:
    """The batches of a packet, as views of it; raises unless all of them are intact, and no more
    than `frames_max`."""
    frames = list(islice(Frame.parse_all(packet.batches, limits), frames_max))
    for frame in frames:
        if frame.header.kind == _MARK:
            raise InvalidRequest("a mark belongs to the log that wrote it and is never sent")
    if len(frames) == frames_max and sum(map(len, frames)) < len(packet.batches):
        raise TooLarge(
            f"a packet of more than {frames_max:,} batches: send fewer at once, and put more "
            "messages into each"
        )
    return frames
