"""Requests that are laid out beforehand, and their plain answers, without protobuf objects.

A client that does one thing at a time waits after each, so its caches are cold when the answer
comes. Then protobuf's objects take several times what they take in a loop. Of such a request little
but the id changes, and the plain answer is a few bytes in a known place. Whatever is not plain is
left to protobuf. Pure.
"""

from typing import Final

from crc32c import crc32c

from quivermq.wire.packets import CHECKSUM, CHECKSUM_BYTES, CHECKSUM_TAG, LENGTH_BYTES, PREFIX

# Tags as protobuf writes them: a number and a type. `tests/wire` compares them with protobuf's.
_ID: Final = 0x08
_PRODUCED: Final = b"\xfa\x01"
_BATCHES: Final = 0x0A
_FIRST_OFFSET: Final = 0x08
_COUNT: Final = 0x10
_SETTLED: Final = b"\xf2\x03\x00"

_MORE: Final = 0x80
_LOW_BITS: Final = 0x7F
_PRODUCED_BYTES_MIN: Final = 6


def id_field(request_id: int) -> bytes:
    """The field of a request's or a response's id."""
    field = bytearray((_ID,))
    while request_id > _LOW_BITS:
        field.append(request_id & _LOW_BITS | _MORE)
        request_id >>= 7
    field.append(request_id)
    return bytes(field)


def cut_id(envelope: bytes) -> tuple[int, bytes] | None:
    """The id of a response, and its other fields; None if the id is not the first."""
    if not envelope or envelope[0] != _ID:
        return None
    number = shift = 0
    for at, byte in enumerate(envelope[1:12], 2):
        number |= (byte & _LOW_BITS) << shift
        if byte <= _LOW_BITS:
            return number, envelope[at:]
        shift += 7
    return None


def plain_packet(id_field: bytes, fields: bytes, frame: bytes = b"") -> bytes:
    """The packet of a request with these other fields, and of one small batch."""
    envelope_bytes = len(id_field) + len(fields) + CHECKSUM_BYTES
    prefix = PREFIX.pack(LENGTH_BYTES + envelope_bytes + len(frame), envelope_bytes)
    front = prefix + id_field + fields
    return front + CHECKSUM.pack(CHECKSUM_TAG, crc32c(front)) + frame


def plain_fields(packet: memoryview, id_field: bytes) -> bytes | None:
    """The other fields of the response with this id, if these bytes are one whole packet that holds
    nothing else. None: they have to be cut and parsed."""
    content = bytes(packet)
    size, end = len(content), len(content) - CHECKSUM_BYTES
    start = PREFIX.size + len(id_field)
    if (
        end < start
        or content[PREFIX.size : start] != id_field
        or content[: PREFIX.size] != PREFIX.pack(size - LENGTH_BYTES, size - PREFIX.size)
        or content[end:] != CHECKSUM.pack(CHECKSUM_TAG, crc32c(content[:end]))
    ):
        return None
    return content[start:end]


def stored_offset(fields: bytes) -> int | None:
    """The offset in a response that says no more than where one batch is stored."""
    # One list of one batch, and nothing behind it; all lengths take a byte.
    left = len(fields) - 3
    if not _PRODUCED_BYTES_MIN <= len(fields) <= _LOW_BITS or fields[:5] != b"%b%c%c%c" % (
        _PRODUCED,
        left,
        _BATCHES,
        left - 2,
    ):
        return None
    if fields[5] == _COUNT:
        return 0  # which is not written
    if fields[5] != _FIRST_OFFSET:
        return None
    offset = shift = 0
    for byte in fields[6:]:
        offset |= (byte & _LOW_BITS) << shift
        if byte <= _LOW_BITS:
            return offset
        shift += 7
    return None


def is_all_settled(fields: bytes) -> bool | None:
    """True if a response says that nothing was lost, and no more; else None."""
    return True if fields == _SETTLED else None
