"""The request of a lone produce, and its plain answer, without protobuf objects.

A client that sends messages one by one waits after each, so its caches are cold when the answer
comes. Then protobuf's objects take several times what they take in a loop. Of the request only the
id changes, and of the answer one number is wanted: both are a few bytes in a known place. Pure.
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

_MORE: Final = 0x80
_SHORT_MAX: Final = 0x7F
_BATCH_BYTES_MIN: Final = 2


def id_field(request_id: int) -> bytes:
    """The field of a request's or a response's id."""
    field = bytearray((_ID,))
    while request_id > _SHORT_MAX:
        field.append(request_id & _SHORT_MAX | _MORE)
        request_id >>= 7
    field.append(request_id)
    return bytes(field)


def lone_packet(id_field: bytes, envelope: bytes, frame: bytes) -> bytes:
    """The packet of a request whose other fields are `envelope`, and of one small batch."""
    envelope_bytes = len(id_field) + len(envelope) + CHECKSUM_BYTES
    front = (
        PREFIX.pack(LENGTH_BYTES + envelope_bytes + len(frame), envelope_bytes)
        + id_field
        + envelope
    )
    return front + CHECKSUM.pack(CHECKSUM_TAG, crc32c(front)) + frame


def stored_offset(packet: memoryview, id_field: bytes) -> int | None:
    """The offset that the answer to a request with this id names, if these bytes are one whole
    packet that says no more than where one batch is stored. None: they have to be parsed."""
    content = bytes(packet)
    end = len(content) - CHECKSUM_BYTES
    at = PREFIX.size + len(id_field) + len(_PRODUCED)
    # One list of one batch, and nothing behind it; all lengths take a byte.
    left = end - at - 1
    if (
        not _BATCH_BYTES_MIN < left <= _SHORT_MAX
        or content[PREFIX.size : at + 3]
        != b"%b%b%c%c%c" % (id_field, _PRODUCED, left, _BATCHES, left - 2)
        or content[: PREFIX.size]
        != PREFIX.pack(len(content) - LENGTH_BYTES, len(content) - PREFIX.size)
        or content[end:] != CHECKSUM.pack(CHECKSUM_TAG, crc32c(content[:end]))
    ):
        return None
    return _first_offset(content[at + 3 : end])


def _first_offset(stored: bytes) -> int | None:
    """The first field of a batch that is stored."""
    if stored[0] == _COUNT:
        return 0  # which is not written
    if stored[0] != _FIRST_OFFSET:
        return None
    offset = shift = 0
    for byte in stored[1:]:
        offset |= (byte & _SHORT_MAX) << shift
        if byte <= _SHORT_MAX:
            return offset
        shift += 7
    return None
