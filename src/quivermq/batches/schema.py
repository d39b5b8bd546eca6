"""The Arrow schema of a data body: fixed by the header's flags, so no body carries its own."""

from functools import cache
from typing import Any, Final

import pyarrow as pa

from quivermq.batches.header import Flag
from quivermq.errors import InvalidRequest

HEADERS_TYPE: Final = pa.list_(
    pa.struct(
        [
            pa.field("key", pa.string(), nullable=False),
            pa.field("value", pa.binary(), nullable=False),
        ]
    )
)
TIMESTAMP_TYPE: Final = pa.timestamp("ms", tz="UTC")

# The order of the columns in every body; `value` is always there.
OPTIONAL_COLUMNS: Final = (
    (Flag.KEY, pa.field("key", pa.binary())),
    (Flag.HEADERS, pa.field("headers", HEADERS_TYPE)),
    (Flag.TIMESTAMP, pa.field("timestamp", TIMESTAMP_TYPE)),
)
COLUMNS: Final = ("value", *(field.name for _, field in OPTIONAL_COLUMNS))

_COLUMN_FLAGS: Final = int(Flag.KEY | Flag.HEADERS | Flag.TIMESTAMP)

_BYTES: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_string,
    pa.types.is_large_string,
)
_NUMBERS: Final = (pa.types.is_timestamp, pa.types.is_int64)
_NESTED: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_struct, pa.types.is_map)


def schema_of(flags: int) -> Any:
    """The `pyarrow.Schema` of bodies with these flags."""
    return _schema(flags & _COLUMN_FLAGS)


@cache
def _schema(flags: int) -> Any:
    value = pa.field("value", pa.binary(), nullable=False)
    optional = [field for flag, field in OPTIONAL_COLUMNS if flags & flag]
    return pa.schema([value, *optional])


def check_stream_schema(schema: Any) -> None:
    """Raise `InvalidRequest` unless a stream of this schema can hold messages of a program.

    Types are refused whose arrays may stand for more bytes than they take.
    """
    names = schema.names
    if "value" not in names or set(names) - set(COLUMNS) or len(set(names)) < len(names):
        raise InvalidRequest(
            "an Arrow stream of messages has a column value, and optionally key, headers and "
            f"timestamp: {names[:20]!r}"
        )
    for field in schema:
        _check_type(field.name, field.type)


def _check_type(name: str, kind: Any) -> None:
    if any(is_kind(kind) for is_kind in (*_BYTES, *_NUMBERS)):
        return
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width:
        return
    if not any(is_kind(kind) for is_kind in _NESTED) or not kind.num_fields:
        raise InvalidRequest(f"column {name}: send binary or string, not {kind}")
    for number in range(kind.num_fields):
        _check_type(name, kind.field(number).type)
