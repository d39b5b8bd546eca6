"""What callers pass in, brought into the columns of a body: Arrow record batches of our schema."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quivermq.batches.header import Flag
from quivermq.batches.limits import TIMESTAMP_MS_MAX
from quivermq.batches.schema import COLUMNS, HEADERS_TYPE, TIMESTAMP_TYPE, schema_of
from quivermq.errors import InvalidRequest

Values = Sequence[bytes] | Any
"""A sequence of bytes, or a pyarrow Array, ChunkedArray, RecordBatch or Table."""

_ARROW_ARRAYS: Final = (pa.Array, pa.ChunkedArray)
_ARROW_TABLES: Final = (pa.RecordBatch, pa.Table)
_FLAGS: Final = {"key": Flag.KEY, "headers": Flag.HEADERS, "timestamp": Flag.TIMESTAMP}


def record_batches_of(
    values: Values, keys: Any = None, headers: Any = None, timestamps: Any = None
) -> Iterator[Any]:
    """Record batches of our schema with the messages in order; raises `InvalidRequest`."""
    beside = {"key": keys, "headers": headers, "timestamp": timestamps}
    if isinstance(values, _ARROW_TABLES):
        given = [name for name, column in beside.items() if column is not None]
        if given:
            raise InvalidRequest(f"put {given[0]!r} into the Arrow data as a column of that name")
        columns = _table_columns(values)
    else:
        columns = {"value": values, **{n: c for n, c in beside.items() if c is not None}}
    yield from _assembled({name: _CONVERTERS[name](column) for name, column in columns.items()})


def _table_columns(table: Any) -> dict[str, Any]:
    names = table.schema.names
    strangers = [name for name in names if name not in COLUMNS]
    if strangers or len(set(names)) != len(names):
        culprit = strangers[0] if strangers else "a name given twice"
        raise InvalidRequest(
            f"Arrow data may have the columns {', '.join(COLUMNS)}, not {culprit!r}"
        )
    if "value" not in names:
        raise InvalidRequest("Arrow data needs a column 'value'")
    return {name: table.column(name) for name in COLUMNS if name in names}


def _assembled(columns: dict[str, Any]) -> Iterator[Any]:
    rows = len(columns["value"])
    for name, column in columns.items():
        if len(column) != rows:
            raise InvalidRequest(f"{rows} values but {len(column)} {name} entries: one for each")
    flags = sum(int(_FLAGS[name]) for name in columns if name != "value")
    ordered = [columns[name] for name in COLUMNS if name in columns]
    if any(isinstance(column, pa.ChunkedArray) for column in ordered):
        yield from pa.Table.from_arrays(ordered, schema=schema_of(flags)).to_batches()
    elif rows:
        yield pa.RecordBatch.from_arrays(ordered, schema=schema_of(flags))


def _values(column: Any) -> Any:
    values = _binary("value", column)
    if values.null_count:
        raise InvalidRequest("a value is missing (None or null): every message needs one")
    return values


def _keys(column: Any) -> Any:
    return _binary("key", column)


def _binary(name: str, column: Any) -> Any:
    if isinstance(column, bytes | str | Mapping):
        # Both would pass as sequences, of integers and of names.
        raise InvalidRequest(f"{name}: pass a sequence of bytes, not one {type(column).__name__}")
    try:
        if not isinstance(column, _ARROW_ARRAYS):
            return pa.array(column, pa.binary())
        plain = column.cast(column.type.value_type) if _is_dictionary(column) else column
        if not _is_bytes(plain.type):
            raise InvalidRequest(f"{name}: Arrow type {column.type} is neither binary nor string")
        return plain.cast(pa.binary())
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise InvalidRequest(f"{name}: pass bytes or None for each message: {error}") from error


def _is_dictionary(column: Any) -> bool:
    return bool(pa.types.is_dictionary(column.type))


def _is_bytes(arrow_type: Any) -> bool:
    kinds = pa.types
    return any(
        test(arrow_type)
        for test in (
            kinds.is_binary,
            kinds.is_large_binary,
            kinds.is_binary_view,
            kinds.is_fixed_size_binary,
            kinds.is_string,
            kinds.is_large_string,
            kinds.is_string_view,
            kinds.is_null,
        )
    )


def _headers(column: Any) -> Any:
    try:
        if isinstance(column, _ARROW_ARRAYS):
            arrow = column.cast(HEADERS_TYPE)
        else:
            arrow = _headers_of_mappings(column)
    except (pa.ArrowException, TypeError, AttributeError, OverflowError) as error:
        raise InvalidRequest(
            f"headers: pass a mapping of names to bytes, or None, for each message: {error}"
        ) from error
    chunks = arrow.chunks if isinstance(arrow, pa.ChunkedArray) else [arrow]
    for chunk in chunks:
        pairs = chunk.flatten()
        if pairs.null_count or any(child.null_count for child in pairs.flatten()):
            raise InvalidRequest("headers: a name or a value is missing (None or null)")
    return arrow


def _headers_of_mappings(column: Sequence[Mapping[str, bytes] | None]) -> Any:
    names: list[str] = []
    values: list[bytes] = []
    ends = [0]
    for mapping in column:
        if mapping:
            names.extend(mapping.keys())
            values.extend(mapping.values())
        ends.append(len(names))
    fields = list(HEADERS_TYPE.value_type)
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=fields
    )
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, type=HEADERS_TYPE)


def _timestamps(column: Any) -> Any:
    try:
        if isinstance(column, _ARROW_ARRAYS):
            if not pa.types.is_timestamp(column.type):
                raise InvalidRequest(f"timestamp: Arrow type {column.type} is not a timestamp")
            # To coarser units by cutting off; to finer ones only where nothing overflows.
            finer = column.type.unit in {"us", "ns"}
            arrow = column.cast(TIMESTAMP_TYPE, safe=not finer)
        else:
            arrow = pa.array(column, pa.int64()).cast(TIMESTAMP_TYPE)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise InvalidRequest(
            f"timestamps: pass milliseconds since 1970, or None, for each message: {error}"
        ) from error
    bounds = pc.min_max(arrow.cast(pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and (low < 0 or high > TIMESTAMP_MS_MAX):
        raise InvalidRequest(f"timestamps: {low} to {high} ms are outside the years 1970 to 9999")
    return arrow


_CONVERTERS: Final = {
    "value": _values,
    "key": _keys,
    "headers": _headers,
    "timestamp": _timestamps,
}
