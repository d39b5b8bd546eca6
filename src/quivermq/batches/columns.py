"""Turns the arguments of callers into the columns of a body: Arrow batches of our schema."""

# Arrow imports it together with pandas, and that fails if the program ends already.
import concurrent.futures.thread  # noqa: F401
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

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
_NOT_SEQUENCES: Final = (bytes, str, bytearray, memoryview, Mapping, Set)
_BINARY: Final = pa.binary()
_NULLABLE_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_FLAGS: Final = {
    "value": 0,
    "key": int(Flag.KEY),
    "headers": int(Flag.HEADERS),
    "timestamp": int(Flag.TIMESTAMP),
}

# What pyarrow raises at input that it cannot convert; ValueError is for text with lone surrogates.
_CONVERSION_ERRORS: Final = (
    pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError,
)  # fmt: skip


class Batches(NamedTuple):
    """Messages in order, as record batches of one schema; none of them is empty."""

    flags: int
    """Which optional columns there are."""
    record_batches: list[Any]
    fresh: bool
    """The arrays were made here, so none is a slice of an array with other rows around it."""


def prepare_arrays() -> None:
    """Let Arrow import what it needs for arrays of Python values: pandas, where it is installed.

    Left to the first batch, it may take most of the time that a program has at its end.
    """
    pa.array([b""], _BINARY)


def record_batches_of(
    values: Values, keys: Any = None, headers: Any = None, timestamps: Any = None
) -> Batches:
    """The messages in Arrow columns; raises `InvalidRequest` for whatever cannot be messages."""
    if keys is headers is timestamps is None and isinstance(values, list):
        # The commonest call by far, and for few messages all of the rest would cost more.
        return _assembled({"value": _values(values)}, fresh=True)
    beside = {"key": keys, "headers": headers, "timestamp": timestamps}
    given = {name: column for name, column in beside.items() if column is not None}
    if not isinstance(values, _ARROW_TABLES):
        columns = {"value": values, **given}
    elif given:
        raise InvalidRequest(f"put {min(given)!r} into the Arrow data as a column of that name")
    else:
        columns = _table_columns(values)
    fresh = not [column for column in columns.values() if isinstance(column, _ARROW_ARRAYS)]
    converted = {name: _CONVERTERS[name](column) for name, column in columns.items()}
    return _assembled(converted, fresh=fresh)


def _table_columns(table: Any) -> dict[str, Any]:
    names = table.schema.names
    strangers = [name for name in names if name not in COLUMNS]
    if strangers:
        raise InvalidRequest(
            f"Arrow data may have the columns {', '.join(COLUMNS)}, not {strangers[0]!r}"
        )
    if len(set(names)) != len(names):
        raise InvalidRequest(f"Arrow data has a column twice: {', '.join(names)}")
    if "value" not in names:
        raise InvalidRequest("Arrow data needs a column 'value'")
    return {name: table.column(name) for name in COLUMNS if name in names}


def _assembled(columns: dict[str, Any], *, fresh: bool) -> Batches:
    rows = len(columns["value"])
    flags = 0
    for name, column in columns.items():
        if len(column) != rows:
            raise InvalidRequest(f"{rows} values but {len(column)} {name} entries: one for each")
        flags |= _FLAGS[name]
    schema = schema_of(flags)
    arrays = list(columns.values())
    if [column for column in arrays if isinstance(column, pa.ChunkedArray)]:
        # Chunks come from callers, and from pyarrow for a list of more than 2 GiB. Where they end
        # differently from column to column, the batches are slices.
        batches = pa.Table.from_arrays(arrays, schema=schema).to_batches()
        return Batches(flags, [batch for batch in batches if batch.num_rows], fresh=False)
    made = [pa.RecordBatch.from_arrays(arrays, schema=schema)] if rows else []
    return Batches(flags, made, fresh)


def _values(column: Any) -> Any:
    values = _binary("value", column)
    if values.null_count:
        raise InvalidRequest("a value is missing (None or null): every message needs one")
    return values


def _keys(column: Any) -> Any:
    return _binary("key", column)


def _binary(name: str, column: Any) -> Any:
    try:
        if not isinstance(column, _ARROW_ARRAYS):
            _check_sequence(name, column)
            if not hasattr(column, "__array__"):
                return pa.array(column, _BINARY)
            # Asked for bytes at once, Arrow would take the memory of numpy's numbers for them.
            column = pa.array(column)
        column.validate(full=True)
        plain = column.cast(column.type.value_type) if _is_dictionary(column) else column
        if not _is_bytes(plain.type):
            raise InvalidRequest(f"{name}: Arrow type {column.type} is neither binary nor string")
        return plain.cast(_BINARY)
    except _CONVERSION_ERRORS as error:
        hint = ', or objects and serializer="json"' if name == "value" else ""
        raise InvalidRequest(f"{name}: pass a sequence of bytes or text{hint}: {error}") from error


def _check_sequence(name: str, column: Any) -> None:
    """Refuse what iterates, but not over one entry for each message in an order."""
    if not isinstance(column, list) and isinstance(column, _NOT_SEQUENCES):
        raise InvalidRequest(
            f"{name}: pass a sequence with an entry for each message, not one "
            f"{type(column).__name__}"
        )


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
            return _headers_of_arrow(column)
        _check_sequence("headers", column)
        return _headers_of_mappings(column)
    except _CONVERSION_ERRORS as error:
        raise InvalidRequest(
            f"headers: pass a mapping of names to bytes, or None, for each message: {error}"
        ) from error


def _headers_of_arrow(column: Any) -> Any:
    # A string column may hold bytes that are not UTF-8: no reader would accept them.
    column.validate(full=True)
    pair = getattr(column.type, "value_type", None)
    if pair is not None and pa.types.is_struct(pair) and pair.num_fields != 2:
        # Arrow's cast would drop the others without a word.
        raise InvalidRequest(f"headers: pairs have the fields key and value, not {pair}")
    # Some versions of Arrow refuse to cast to pairs that must not be null: those are built here.
    lists = column.cast(_NULLABLE_HEADERS)
    if isinstance(lists, pa.ChunkedArray):
        return pa.chunked_array(map(_headers_of_lists, lists.chunks), HEADERS_TYPE)
    return _headers_of_lists(lists)


def _headers_of_lists(lists: Any) -> Any:
    names, values = lists.flatten().flatten()
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(lists), 0))
    return _header_lists(pa.concat_arrays([pa.array([0], pa.int32()), ends]), names, values)


def _headers_of_mappings(column: Sequence[Mapping[str, bytes] | None]) -> Any:
    names: list[str] = []
    values: list[bytes] = []
    ends = [0]
    for mapping in column:
        if mapping:
            names.extend(mapping.keys())
            values.extend(mapping.values())
        elif mapping is not None and not isinstance(mapping, Mapping):
            raise TypeError(f"{mapping!r} is not a mapping")
        ends.append(len(names))
    arrays = pa.array(names, pa.string()), pa.array(values, _BINARY)
    return _header_lists(pa.array(ends, pa.int32()), *arrays)


def _header_lists(offsets: Any, names: Any, values: Any) -> Any:
    if names.null_count or values.null_count:
        raise InvalidRequest("headers: a name or a value is missing (None or null)")
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    return pa.ListArray.from_arrays(offsets, pairs, type=HEADERS_TYPE)


def _timestamps(column: Any) -> Any:
    try:
        if isinstance(column, _ARROW_ARRAYS):
            arrow = _timestamps_of_arrow(column)
        else:
            _check_sequence("timestamps", column)
            arrow = _timestamps_of_integers(column)
    except _CONVERSION_ERRORS as error:
        raise InvalidRequest(
            f"timestamps: pass milliseconds since 1970, or None, for each message: {error}"
        ) from error
    bounds = pc.min_max(arrow.cast(pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and (low < 0 or high > TIMESTAMP_MS_MAX):
        raise InvalidRequest(f"timestamps: {low} to {high} ms are outside the years 1970 to 9999")
    return arrow


def _timestamps_of_arrow(column: Any) -> Any:
    if not pa.types.is_timestamp(column.type):
        raise InvalidRequest(f"timestamp: Arrow type {column.type} is not a timestamp")
    # To coarser units by cutting off; to finer ones only where nothing overflows.
    finer = column.type.unit in {"us", "ns"}
    return column.cast(TIMESTAMP_TYPE, safe=not finer)


def _timestamps_of_integers(column: Any) -> Any:
    # Asked for integers at once, Arrow would cut 1.5 down to 1.
    arrow = pa.array(column)
    if not (pa.types.is_integer(arrow.type) or pa.types.is_null(arrow.type)):
        raise InvalidRequest(f"timestamps: pass whole milliseconds since 1970, not {arrow.type}")
    return arrow.cast(pa.int64()).cast(TIMESTAMP_TYPE)


_CONVERTERS: Final = {
    "value": _values,
    "key": _keys,
    "headers": _headers,
    "timestamp": _timestamps,
}
