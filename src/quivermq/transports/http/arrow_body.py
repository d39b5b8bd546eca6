"""Reads an Arrow stream that a client sent, after it is certain that it cannot harm.

A body must not stand for more bytes than it has. Compressed buffers do: pyarrow allocates what they
claim to become. So do dictionaries, views, run ends and nulls: a few bytes for any number of rows.
Such streams are refused before pyarrow makes arrays of them, and what is left is validated before
anything is read from it.
"""

from typing import Any, Final

import pyarrow as pa

from quivermq.batches import is_plain
from quivermq.errors import InvalidRequest, QuiverError, TooLarge

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
_COLUMNS: Final = ("value", "key", "headers", "timestamp")
_BATCHES_MAX: Final = 10_000
_BYTES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_string,
    pa.types.is_large_string,
)
_NUMBERS: Final = (pa.types.is_timestamp, pa.types.is_int64)
_NESTED: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_struct, pa.types.is_map)


def read_arrow(body: bytes) -> Any:
    """The stream as one table; raises `InvalidRequest` unless it is one."""
    try:
        _check_batches(body)
        reader = pa.ipc.open_stream(pa.py_buffer(body))
        _check_columns(reader.schema)
        batches = []
        for batch in reader:
            batch.validate(full=True)
            batches.append(batch)
        table = pa.Table.from_batches(batches, reader.schema)
    except InvalidRequest:
        raise
    except (QuiverError, pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise InvalidRequest(f"the body is no Arrow stream of messages: {error}") from error
    if not table.num_rows:
        raise InvalidRequest("the Arrow stream has no messages: send at least one")
    return table


def _check_batches(body: bytes) -> None:
    """Refuse what stands for more than its bytes before pyarrow makes arrays of it."""
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    for number, message in enumerate(reader):
        if number > _BATCHES_MAX:
            raise TooLarge(f"an Arrow stream of more than {_BATCHES_MAX:,} batches: send fewer")
        if number and not is_plain(message.metadata):
            raise InvalidRequest("send Arrow batches without compression and dictionaries")


def _check_columns(schema: Any) -> None:
    names = schema.names
    if "value" not in names or set(names) - set(_COLUMNS) or len(set(names)) < len(names):
        raise InvalidRequest(
            "an Arrow stream of messages has a column value, and optionally key, headers and "
            f"timestamp: {names[:20]!r}"
        )
    for field in schema:
        _check_type(field.name, field.type)


def _check_type(name: str, kind: Any) -> None:
    """Only types whose arrays take at least as many bytes as they stand for."""
    if any(is_kind(kind) for is_kind in (*_BYTES, *_NUMBERS)):
        return
    if not any(is_kind(kind) for is_kind in _NESTED) or not kind.num_fields:
        raise InvalidRequest(f"column {name}: send binary or string, not {kind}")
    for number in range(kind.num_fields):
        _check_type(name, kind.field(number).type)
