"""Takes Arrow data of any library as pyarrow has it, by the Arrow PyCapsule interface. No I/O.

Polars, pandas, DuckDB and others hand out their memory so, without a copy. Data frames become
tables, whose columns have their meaning by name; a series becomes an array.
"""

from typing import Any

from quivermq.batches import pa
from quivermq.errors import InvalidRequest


def is_arrow(data: Any) -> bool:
    """Whether it is pyarrow's."""
    return isinstance(data, (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table))


def as_arrow(data: Any) -> Any:
    """`data` as a pyarrow Table, RecordBatch, ChunkedArray or Array, if its type offers that by
    `__arrow_c_stream__` or `__arrow_c_array__`; everything else comes back as it is."""
    kind = type(data)
    is_stream = hasattr(kind, "__arrow_c_stream__")
    if not is_stream and not hasattr(kind, "__arrow_c_array__"):
        return data
    if is_arrow(data):
        return data
    try:
        return _stream(data) if is_stream else _array(data)
    except (pa.ArrowException, TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequest(f"{kind.__name__} gives no Arrow data: {error}") from error


def _stream(data: Any) -> Any:
    # Not `pa.table`, which takes streams of rows only: a series is a stream of values.
    chunks = pa.chunked_array(data)
    if not pa.types.is_struct(chunks.type):
        return _without_views(chunks)
    table = pa.Table.from_struct_array(chunks)
    columns = [_without_views(column) for column in table.columns]
    return pa.Table.from_arrays(columns, names=table.column_names)


def _array(data: Any) -> Any:
    array = pa.array(data)
    if not pa.types.is_struct(array.type):
        return _without_views(array)
    columns = [_without_views(column) for column in array.flatten()]
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in array.type])


def _without_views(column: Any) -> Any:
    """Arrow cannot choose rows of what refers to its bytes by views, as Polars does: a copy."""
    plain = _plain_type(column.type)
    return column if plain is column.type else column.cast(plain)


def _plain_type(kind: Any) -> Any:
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _plain_type(kind.value_type)
        return kind if inner is kind.value_type else pa.list_(inner)
    if pa.types.is_struct(kind):
        fields = [(field.name, _plain_type(field.type)) for field in kind]
        same = all(now is field.type for (_, now), field in zip(fields, kind, strict=True))
        return kind if same else pa.struct(fields)
    return kind
