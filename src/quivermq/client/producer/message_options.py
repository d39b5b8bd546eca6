"""Options of messages as users give them, turned into what travels: serializers, times, headers.

A content type and an expiry travel as headers with well-known names (`quivermq.batches`), so
brokers store them like any other header.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from quivermq.batches import CONTENT_TYPE, EXPIRES, TIMESTAMP_MS_MAX, pa, repeat_headers
from quivermq.client.checks import Delay, Payload, as_bytes, check_number, delay_seconds
from quivermq.client.producer.bulk import BulkColumns
from quivermq.errors import InvalidRequest

Serializer = Literal["json"] | Callable[[Any], Payload]
"""Makes bytes of values: "json", or any callable that takes a value and returns bytes or text."""

Timestamp = int | datetime
"""Milliseconds since 1970, or a `datetime`; one without a zone is local."""

Ttl = float | timedelta | datetime
"""Seconds, a `timedelta`, or the moment when it is over; a `datetime` without a zone is local."""

SECONDS_MAX: Final = 10 * 366 * 24 * 3600.0
"""Of a delay and of a time to live."""

_JSON: Final = "application/json"
_NO_HEADERS: Final[Mapping[str, bytes]] = {}


class ChosenSerializer(NamedTuple):
    """A serializer, and the content type of what it makes, if that is known."""

    serialize: Callable[[Any], bytes]
    content_type: str | None

    @classmethod
    def of(cls, given: Serializer) -> "ChosenSerializer":
        """As a user named it."""
        if given == "json":
            return cls(_to_json, _JSON)
        if callable(given):
            return cls(_checked(given), None)
        raise InvalidRequest(
            f'serializer must be "json", or a callable that returns bytes, not {given!r}'
        )

    def with_default(self, headers: Mapping[str, bytes] | None) -> Mapping[str, bytes] | None:
        """The headers of a message with the content type, unless they name one."""
        if self.content_type is None:
            return headers
        default = headers_of(self.content_type)
        return {**default, **headers} if headers else default

    def add(self, add: Callable[..., Any]) -> Callable[..., Any]:
        """A producer's `add` that serializes each value, and names its content type."""
        serialize, with_default = self.serialize, self.with_default

        def add_serialized(
            topic: str, value: Any, key: object, headers: Any, *rest: object
        ) -> object:
            return add(topic, serialize(value), key, with_default(headers), *rest)

        return add_serialized


def with_properties(
    headers: Mapping[str, bytes] | None,
    content_type: str | None,
    ttl: Ttl | None,
    delay: Delay = 0.0,
) -> Mapping[str, bytes] | None:
    """The headers of a message with its properties among them."""
    found = _properties(content_type, ttl, delay)
    if not headers:
        return found or headers
    if not isinstance(headers, Mapping):
        raise InvalidRequest(f"headers are a mapping of names to bytes, not {headers!r}")
    return {**headers, **found}


def headers_of(content_type: str) -> Mapping[str, bytes]:
    """The headers of a message that has nothing but a content type."""
    if not isinstance(content_type, str) or not content_type or not content_type.isprintable():
        raise InvalidRequest(
            f"content_type is a MIME type, as in 'application/json', not {content_type!r}"
        )
    return _headers_of(content_type)


@lru_cache(maxsize=256)
def _headers_of(content_type: str) -> Mapping[str, bytes]:
    return {CONTENT_TYPE: content_type.encode()}


def timestamp_ms(timestamp: Timestamp) -> int:
    """A time as it travels."""
    found = timestamp
    if isinstance(found, datetime):
        found = round(found.timestamp() * 1000)
    if type(found) is not int or not 0 <= found <= TIMESTAMP_MS_MAX:
        raise InvalidRequest(
            "timestamp is a datetime, or whole milliseconds since 1970, as of "
            f"int(time.time() * 1000): {timestamp!r}"
        )
    return found


def expires_ms(ttl: Ttl, delay: Delay = 0.0) -> int:
    """When the time to live is over."""
    if isinstance(ttl, datetime):
        return timestamp_ms(ttl)
    seconds = delay_seconds(ttl)
    check_number("ttl", seconds, least=0.001)
    if seconds > SECONDS_MAX:
        raise InvalidRequest(f"ttl must be at most {SECONDS_MAX:.0f} seconds: {ttl!r}")
    if delay and delay_seconds(delay) >= seconds:
        raise InvalidRequest(f"a ttl of {ttl!r} is over before the delay of {delay!r}")
    return int((time.time() + seconds) * 1000) + 1


def bulk_columns(
    values: Any,
    keys: Any = None,
    headers: Any = None,
    timestamps: Any = None,
    *,
    serializer: Serializer | None = None,
    content_type: str | None = None,
    ttl: Ttl | None = None,
    delay: Delay = 0.0,
) -> BulkColumns:
    """Many messages with these options, the same for all of them."""
    values, keys, headers, timestamps = BulkColumns.of(values, keys, headers, timestamps)
    if serializer is not None:
        chosen = ChosenSerializer.of(serializer)
        if isinstance(values, pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table):
            raise InvalidRequest("Arrow data is bytes already: pass objects, or no serializer")
        values = list(map(chosen.serialize, values))
        content_type = content_type or chosen.content_type
    if timestamps is not None and not isinstance(timestamps, pa.Array | pa.ChunkedArray):
        timestamps = _without_datetimes(timestamps)
    shared = _properties(content_type, ttl, delay)
    if not shared:
        return BulkColumns(values, keys, headers, timestamps)
    if isinstance(values, pa.RecordBatch | pa.Table):
        return BulkColumns(_table_with(values, shared), keys, headers, timestamps)
    if headers is None or isinstance(headers, Mapping):
        return BulkColumns(values, keys, {**(headers or {}), **shared}, timestamps)
    if isinstance(headers, pa.Array | pa.ChunkedArray):
        raise InvalidRequest(f"put {', '.join(shared)} into the headers that are in Arrow")
    return BulkColumns(values, keys, [{**(each or {}), **shared} for each in headers], timestamps)


def _properties(content_type: str | None, ttl: Ttl | None, delay: Delay) -> Mapping[str, bytes]:
    found = headers_of(content_type) if content_type is not None else _NO_HEADERS
    if ttl is None:
        return found
    return {**found, EXPIRES: b"%d" % expires_ms(ttl, delay)}


def _table_with(table: Any, headers: Mapping[str, bytes]) -> Any:
    if "headers" in table.schema.names:
        raise InvalidRequest(f"put {', '.join(headers)} into the column 'headers'")
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    return whole.append_column("headers", repeat_headers(headers, whole.num_rows))


def _without_datetimes(timestamps: Any) -> Any:
    if isinstance(timestamps, Sequence) and any(isinstance(each, datetime) for each in timestamps):
        return [None if each is None else timestamp_ms(each) for each in timestamps]
    return timestamps


def _to_json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"a value of type {type(value).__name__} cannot be written as JSON ({error}): pass "
            "what json.dumps takes, or a callable as serializer"
        ) from error


def _checked(serialize: Callable[[Any], Payload]) -> Callable[[Any], bytes]:
    def serialize_checked(value: Any) -> bytes:
        found = serialize(value)
        if isinstance(found, bytes | str | bytearray | memoryview):
            return as_bytes("value", found)
        raise InvalidRequest(
            f"the serializer returned {type(found).__name__} for a value of type "
            f"{type(value).__name__}: it has to return bytes, or text"
        )

    return serialize_checked
