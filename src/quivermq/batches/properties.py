"""Properties of messages that travel as headers with well-known names: content type and expiry.

Brokers store them like any other header, and releases that do not know the names pass them on. So
a batch without them pays nothing: a broker that leases messages asks `may_expire`, which is one
look at the flags, or, where a batch has headers, one search through their names.
"""

from collections.abc import Mapping
from typing import Any, Final

from quivermq import batches
from quivermq.batches.arrow import pa, pc
from quivermq.batches.envelope import find_buffer
from quivermq.batches.frame import Frame
from quivermq.batches.header import Flag
from quivermq.batches.limits import DEFAULT_LIMITS, TIMESTAMP_MS_MAX, Limits

CONTENT_TYPE: Final = "content-type"
"""A MIME type, as in HTTP."""
EXPIRES: Final = "quiver-expires"
"""When the message expires: milliseconds since 1970, in decimal digits. What moves a message out of
the dead letters drops headers that begin so: it does not expire a second time."""

_EXPIRES_BYTES: Final = EXPIRES.encode()
_KEY, _HEADERS = int(Flag.KEY), int(Flag.HEADERS)
_SMALL_BYTES: Final = 4096
"""Up to here a search through the whole body costs less than to find the names in it."""
_NAMES_BUFFER: Final = 8
"""The place of the names among Arrow's buffers: value has three, headers five in front of it."""
_KEY_BUFFERS: Final = 3


def content_type_of(headers: Mapping[str, bytes]) -> str | None:
    """The content type that a message has."""
    found = headers.get(CONTENT_TYPE)
    return None if found is None else found.decode(errors="replace")


def expires_ms_of(headers: Mapping[str, bytes]) -> int | None:
    """When a message expires; None: never."""
    return _time(headers.get(EXPIRES))


def repeat_headers(headers: Mapping[str, bytes], count: int) -> Any:
    """The same headers for so many messages, as an Arrow column."""
    pairs = [{"key": name, "value": value} for name, value in headers.items()]
    return pa.repeat(pa.scalar(pairs, batches.HEADERS_TYPE), count)


def may_expire(frame: Frame) -> bool:
    """Whether a message of a batch may have an expiry; False: none has."""
    header = frame.header
    if not header.flags & _HEADERS:
        return False
    if header.body_bytes <= _SMALL_BYTES and header.body_bytes == header.decoded_bytes:
        return _EXPIRES_BYTES in bytes(frame.body)
    number = _NAMES_BUFFER + (_KEY_BUFFERS if header.flags & _KEY else 0)
    return _EXPIRES_BYTES in find_buffer(frame.body, number, header.decoded_bytes)


def expired_offsets(
    frame: Frame, start: int, stop: int, now_ms: int, limits: Limits = DEFAULT_LIMITS
) -> list[int]:
    """The offsets from `start` to before `stop` of messages that have expired, in order."""
    first = max(0, start - frame.header.base_offset)
    if not may_expire(frame):
        return []
    end = min(frame.header.count, stop - frame.header.base_offset)
    lists = batches.decode_batch(frame, limits, first=first, stop=end).column("headers")
    names, values = lists.flatten().flatten()
    is_expiry = pc.equal(names, EXPIRES)
    times = values.filter(is_expiry)
    # Messages that were sent together have the same time: few are read in Python.
    past = [each for each in times.unique().to_pylist() if (_time(each) or now_ms + 1) <= now_ms]
    if not past:
        return []
    is_past = pc.is_in(times, value_set=pa.array(past, times.type))
    rows = pc.list_parent_indices(lists).filter(is_expiry).filter(is_past)
    return [frame.header.base_offset + first + row for row in rows.unique().to_pylist()]


def _time(value: bytes | None) -> int | None:
    # A client may have written anything: what is no time never comes.
    if value is None or not value.isdigit() or len(value) > len(str(TIMESTAMP_MS_MAX)):
        return None
    return int(value)
