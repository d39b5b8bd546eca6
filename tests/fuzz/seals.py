"""Makes the checksums of changed bytes right again: what is behind a checksum is read only then.

Lengths that pass the end are cut to what is there. Everything else stays as it was changed.
"""

from struct import Struct, pack_into, unpack_from

from crc32c import crc32c

from quivermq.batches import HEADER_BYTES, Flag, FrameKind
from quivermq.batches.header import MAGIC
from quivermq.log.layout import FOOTER_BYTES, SEGMENT_HEADER_BYTES
from quivermq.log.marks import MARK_BYTES
from quivermq.log.records import Record
from quivermq.wire.packets import CHECKSUM, CHECKSUM_BYTES, CHECKSUM_TAG, LENGTH_BYTES, PREFIX

_U32 = Struct("<I")
_U64 = Struct("<Q")
_MAGIC = MAGIC.to_bytes(2, "little")
_KIND_AT, _FLAGS_AT, _BODY_BYTES_AT, _DECODED_AT = 3, 4, 8, 80
_COMPRESSED = int(Flag.LZ4 | Flag.ZSTD)
_MARK_SECRET = slice(HEADER_BYTES, HEADER_BYTES + 16)
_MARK_POSITION_AT = HEADER_BYTES + 16
_DATA_BYTES_AT, _INDEX_CRC_AT = 98, 114
"""In the footer of a segment; the bytes of its index stand between."""


def seal_frames(data: bytes) -> bytes:
    """Frames back to back."""
    sealed = bytearray(data)
    at = 0
    while len(sealed) - at >= HEADER_BYTES:
        at = _seal_frame(sealed, at, len(sealed))
    return bytes(sealed)


def seal_packets(data: bytes) -> bytes:
    """Packets back to back: the checksum of each envelope, and those of its frames."""
    sealed = bytearray(data)
    at = 0
    while len(sealed) - at >= PREFIX.size + CHECKSUM_BYTES:
        length, envelope_bytes = PREFIX.unpack_from(sealed, at)
        length = min(max(length, LENGTH_BYTES + CHECKSUM_BYTES), len(sealed) - at - LENGTH_BYTES)
        envelope_bytes = min(max(envelope_bytes, CHECKSUM_BYTES), length - LENGTH_BYTES)
        PREFIX.pack_into(sealed, at, length, envelope_bytes)
        end, next_at = at + PREFIX.size + envelope_bytes, at + LENGTH_BYTES + length
        checksum = crc32c(bytes(sealed[at : end - CHECKSUM_BYTES]))
        CHECKSUM.pack_into(sealed, end - CHECKSUM_BYTES, CHECKSUM_TAG, checksum)
        while next_at - end >= HEADER_BYTES:
            end = _seal_frame(sealed, end, next_at)
        at = next_at
    return bytes(sealed)


def seal_record(data: bytes, record: Record, at: int = 0) -> bytes:
    """A record of a log's files."""
    if len(data) < at + record.size:
        return data
    sealed = bytearray(data)
    end = at + record.size - _U32.size
    _U32.pack_into(sealed, end, crc32c(bytes(sealed[at:end])))
    return bytes(sealed)


def seal_segment(data: bytes, header: Record, footer: Record, secret: bytes) -> bytes:
    """A segment: its header, frames, marks that bear the log's secret, index and footer."""
    sealed = bytearray(seal_record(data, header))
    at = sealed.find(_MAGIC, SEGMENT_HEADER_BYTES)
    while at >= 0 and len(sealed) - at >= HEADER_BYTES:
        if sealed[at + _KIND_AT] == FrameKind.MARK and len(sealed) - at >= MARK_BYTES:
            sealed[_shifted(_MARK_SECRET, at)] = secret
            _U64.pack_into(sealed, at + _MARK_POSITION_AT, at)
        at = sealed.find(_MAGIC, _seal_frame(sealed, at, len(sealed)))
    foot_at = len(sealed) - FOOTER_BYTES
    if foot_at < 0 or not sealed.startswith(footer.magic, foot_at):
        return bytes(sealed)
    data_bytes = min(_U64.unpack_from(sealed, foot_at + _DATA_BYTES_AT)[0], foot_at)
    index = bytes(sealed[data_bytes:foot_at])
    pack_into("<QQI", sealed, foot_at + _DATA_BYTES_AT, data_bytes, len(index), crc32c(index))
    return seal_record(bytes(sealed), footer, foot_at)


def _shifted(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def _seal_frame(data: bytearray, at: int, end: int) -> int:
    """Seal the frame at `at`, whose bytes end before `end`; returns where the next one begins."""
    body_at = at + HEADER_BYTES
    body_bytes = min(_U32.unpack_from(data, at + _BODY_BYTES_AT)[0], end - body_at)
    body = bytes(data[body_at : body_at + body_bytes])
    pack_into("<II", data, at + _BODY_BYTES_AT, body_bytes, crc32c(body))
    if not unpack_from("<H", data, at + _FLAGS_AT)[0] & _COMPRESSED:
        _U32.pack_into(data, at + _DECODED_AT, body_bytes)
    checksum_at = body_at - _U32.size
    _U32.pack_into(data, checksum_at, crc32c(bytes(data[at:checksum_at])))
    return body_at + body_bytes
