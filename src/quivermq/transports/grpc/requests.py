"""Parses requests, once it is known that this does not take long.

A megabyte of protobuf may be one value, or half a million empty messages, which take a tenth of a
second to parse and hold the event loop meanwhile. So large requests are looked through first, by
their fields, without making anything of them.
"""

from collections.abc import Iterator
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from quivermq.errors import InvalidRequest, TooLarge
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api

PARSED_BYTES: Final = 512 << 10
"""A smaller request is parsed in any case. A larger one must be a produce request."""
_FIELDS_MAX: Final = 100_000
"""Of a larger one, also inside of its messages."""
_SESSION_FIELDS: Final = 10

_MESSAGES: Final = api.ProduceRequest.DESCRIPTOR.fields_by_name["messages"].number
_ID: Final = api.Request.DESCRIPTOR.fields_by_name["id"].number
_PRODUCE: Final = api.Request.DESCRIPTOR.fields_by_name["produce"].number
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES: Final = 10

M = TypeVar("M", bound=Message)


def parse_call(kind: type[M], data: bytes) -> M:
    """The request of a call; raises `TooLarge` for one that takes too long to parse."""
    if len(data) > PARSED_BYTES:
        if kind is not api.ProduceRequest:
            raise _too_large(len(data))
        _check_produce(data, 0, len(data))
    return _parse(kind, data)


def parse_session(data: bytes) -> api.Request:
    """A request of a session, likewise."""
    if len(data) > PARSED_BYTES:
        # Two fields, and those that a later release may have.
        for place, (number, start, end) in enumerate(_fields(data, 0, len(data))):
            if number == _PRODUCE and place < _SESSION_FIELDS:
                _check_produce(data, start, end)
            elif end - start > PARSED_BYTES or place >= _SESSION_FIELDS:
                raise _too_large(len(data))
    return _parse(api.Request, data)


def id_of(data: bytes) -> int:
    """The id of a session's request that is not parsed; 0 if it does not come first."""
    if not data or data[0] != _ID << 3 | _VARINT:
        return 0
    try:
        return _varint(data, 1)[0]
    except IndexError:
        return 0


def _too_large(size: int) -> TooLarge:
    return TooLarge(
        f"a request of {size:,} bytes is above the limit of {PARSED_BYTES:,}; only produce "
        "requests may be larger"
    )


def _parse(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"the request is not a {kind.DESCRIPTOR.name}: {error}") from error


def _check_produce(data: bytes, start: int, end: int) -> None:
    left = _FIELDS_MAX
    for number, first, behind in _fields(data, start, end):
        left -= 1
        if number == _MESSAGES:
            left -= sum(1 for _ in _fields(data, first, behind, left))
        if left <= 0:
            raise TooLarge(
                f"a large request with more than {_FIELDS_MAX:,} fields takes too long to read: "
                "send fewer messages and headers at once, or an Arrow stream"
            )


def _fields(
    data: bytes, at: int, end: int, most: int = _FIELDS_MAX
) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of the fields between two places, as many as `most`."""
    try:
        while at < end and most > 0:
            most -= 1
            tag, at = _varint(data, at)
            kind = tag & 7
            if kind == _LENGTH_DELIMITED:
                size, at = _varint(data, at)
            elif kind == _VARINT:
                _, behind = _varint(data, at)
                size = behind - at
            else:
                size = _FIXED_BYTES[kind]
            yield tag >> 3, at, at + size
            at += size
    except (IndexError, KeyError) as error:
        raise InvalidRequest("the request is not protobuf") from error


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    for place in range(at + 1, at + _VARINT_BYTES):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise IndexError("a number without an end")
