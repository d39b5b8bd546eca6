"""Whatever callers may pass as columns comes out as the same messages, and the rest is refused."""

import datetime as dt
from array import array
from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import Flag
from quivermq.batches.columns import record_batches_of
from quivermq.batches.limits import TIMESTAMP_MS_MAX
from quivermq.batches.schema import HEADERS_TYPE
from quivermq.errors import InvalidRequest
from tests.batches.samples import header_maps, small_bytes, timestamps

V = [b"a", b"b"]
PAIR = [("key", pa.string()), ("value", pa.binary())]
UNITS_PER_MS = {"s": 1_000, "ms": 1, "us": 1_000, "ns": 1_000_000}
BYTE = pa.py_buffer(b"\xff")
BAD_UTF8 = pa.StringArray.from_buffers(1, pa.array([0, 1], pa.int32()).buffers()[1], BYTE)


def column(name: str, *columns: Any, **named: Any) -> list[Any]:
    """One column of everything that `record_batches_of` makes of the arguments."""
    _, batches, _ = record_batches_of(*columns, **named)
    return [entry for batch in batches for entry in batch.column(name).to_pylist()]


def header_type(*fields: tuple[str, pa.DataType]) -> pa.DataType:
    return pa.list_(pa.struct(list(fields)))


BYTES_TYPES: list[tuple[pa.DataType, Callable[[list[bytes | None]], pa.Array]]] = [
    (pa.binary(), lambda rows: pa.array(rows, pa.binary())),
    (pa.large_binary(), lambda rows: pa.array(rows, pa.large_binary())),
    (pa.binary_view(), lambda rows: pa.array(rows, pa.binary_view())),
    (pa.dictionary(pa.int32(), pa.binary()), lambda rows: pa.array(rows).dictionary_encode()),
]


@given(st.lists(small_bytes, min_size=1), st.sampled_from([list, tuple, iter, pa.array]))
def test_values_pass_through_as_they_are(values: list[bytes], wrapped: Any) -> None:
    assert column("value", wrapped(values)) == values


@pytest.mark.parametrize("kind", [bytearray, memoryview, pa.scalar])
def test_other_bytes_like_entries_become_bytes(kind: Any) -> None:
    assert column("value", [kind(b"one"), kind(b"")]) == [b"one", b""]


def test_numpy_arrays_of_bytes_and_of_objects_are_sequences() -> None:
    assert column("value", np.array(V)) == V
    assert column("value", np.array(["a", "é"])) == [b"a", "é".encode()]
    assert column("key", V, np.array([None, b"k"], dtype=object)) == [None, b"k"]
    _, [batch], _ = record_batches_of(V, timestamps=np.array([1, 2], np.int32))
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1, 2]


@given(st.lists(st.text(max_size=20), min_size=1))
def test_text_is_stored_as_utf8(texts: list[str]) -> None:
    expected = [text.encode() for text in texts]
    assert column("value", texts) == expected
    for arrow_type in (pa.string(), pa.large_string(), pa.string_view()):
        assert column("value", pa.array(texts, arrow_type)) == expected


@pytest.mark.parametrize("build", [build for _, build in BYTES_TYPES])
@given(rows=st.lists(st.none() | small_bytes, min_size=2, max_size=12), data=st.data())
def test_arrow_keys_of_any_bytes_type_sliced_or_in_chunks_are_the_same_keys(
    build: Any, rows: list[bytes | None], data: st.DataObject
) -> None:
    keys = build([b"in front", *rows, b"behind"]).slice(1, len(rows))
    values = [b""] * len(rows)
    assert column("key", values, keys) == rows
    cut = data.draw(st.integers(0, len(rows)))
    chunks = pa.chunked_array([keys.slice(0, cut), keys.slice(cut, 0), keys.slice(cut)])
    assert column("key", values, chunks) == rows


@pytest.mark.parametrize("width", [0, 1, 16])
def test_bytes_of_a_fixed_size_are_bytes(width: int) -> None:
    values = [bytes([row]) * width for row in range(4)]
    assert column("value", pa.array(values, pa.binary(width)).slice(1)) == values[1:]


def test_a_key_column_of_the_null_type_is_no_keys() -> None:
    assert column("key", V, pa.nulls(2)) == [None, None]


@given(st.lists(st.none() | header_maps, min_size=1))
def test_headers_pass_through_from_mappings_and_from_arrow(rows: list[Any]) -> None:
    values = [b""] * len(rows)
    pairs = [
        [] if row is None else [{"key": k, "value": v} for k, v in row.items()] for row in rows
    ]
    assert column("headers", values, headers=rows) == pairs
    for arrow_type in (HEADERS_TYPE, header_type(*PAIR), pa.large_list(HEADERS_TYPE.value_type)):
        assert column("headers", values, headers=pa.array(pairs, arrow_type)) == pairs
    maps = pa.array(
        [None if row is None else list(row.items()) for row in rows],
        pa.map_(pa.string(), pa.binary()),
    )
    assert column("headers", values, headers=maps) == pairs
    chunks = pa.chunked_array([maps.slice(0, 1), maps.slice(1)])
    assert column("headers", values, headers=chunks) == pairs
    assert column("headers", values, headers=pa.nulls(len(rows))) == [[] for _ in rows]


@pytest.mark.parametrize("kind", [dict, OrderedDict, MappingProxyType])
def test_any_mapping_may_be_headers(kind: Any) -> None:
    assert column("headers", [b""], headers=[kind({"a": b"b"})]) == [[{"key": "a", "value": b"b"}]]
    assert column("headers", [b""], headers=[kind({})]) == [[]]


@given(st.lists(st.none() | timestamps, min_size=1))
def test_timestamps_pass_through_as_milliseconds(rows: list[int | None]) -> None:
    _, [batch], _ = record_batches_of([b""] * len(rows), timestamps=rows)
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == rows


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+05:30"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_arrow_timestamps_of_every_unit_and_zone_are_the_same_instants(
    unit: str, zone: str | None
) -> None:
    instants_ms = [0, 1_000, None, 1_700_000_000_000]
    scale = UNITS_PER_MS[unit]
    stored = [
        ms if ms is None else ms // scale if unit == "s" else ms * scale for ms in instants_ms
    ]
    given_array = pa.array(stored, pa.timestamp(unit, zone))
    _, [batch], _ = record_batches_of([b""] * 4, timestamps=given_array)
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == instants_ms


def test_what_is_finer_than_a_millisecond_is_cut_off() -> None:
    given_array = pa.array([1_999, 2_000], pa.timestamp("us"))
    _, [batch], _ = record_batches_of(V, timestamps=given_array)
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1, 2]


def test_a_table_with_columns_in_any_order_is_taken_whole() -> None:
    table = pa.table(
        {
            "timestamp": pa.chunked_array([[1], [2]], pa.timestamp("ms")),
            "key": pa.array([None, b"k"]),
            "value": pa.array(V),
        }
    )
    for arrow in (table, table.combine_chunks().to_batches()[0]):
        flags, batches, _ = record_batches_of(arrow)
        assert flags == Flag.KEY | Flag.TIMESTAMP
        assert [row for batch in batches for row in batch.column("key").to_pylist()] == [None, b"k"]


@pytest.mark.parametrize(
    "nothing",
    [
        [], (), pa.array([], pa.binary()), pa.nulls(0), pa.chunked_array([], pa.string()),
        pa.chunked_array([[], []], pa.binary()), pa.table({"value": pa.array([], pa.binary())}),
    ],
)  # fmt: skip
def test_nothing_makes_no_batches(nothing: Any) -> None:
    assert record_batches_of(nothing)[:2] == (0, [])


class Stranger:
    """Something that no column is made of."""


BAD_VALUES = {
    "none": None, "a number": 5, "one bytes": b"ab", "one str": "ab",
    "one bytearray": bytearray(b"ab"), "one memoryview": memoryview(b"ab"), "a set": {b"a"},
    "a mapping": {b"a": b"b"}, "another mapping": MappingProxyType({b"a": b"b"}),
    "numbers": [1, 2], "floats": [1.5], "booleans": [True], "lists": [[b"a"]],
    "a missing one": [b"a", None], "a stranger": Stranger(), "strangers": [Stranger()],
    "lone surrogates": ["\ud800"], "an array of numbers": array("i", [1]), "a range": range(3),
    "a scalar": pa.scalar(b"x"), "a type": bytes, "arrow numbers": pa.array([1]),
    "arrow lists": pa.array([[b"a"]]), "arrow nulls": pa.nulls(2),
    "a dictionary of numbers": pa.array([1, 1]).dictionary_encode(),
    "a dictionary with null": pa.DictionaryArray.from_arrays(pa.array([0]), pa.nulls(1)),
    "run ends": pa.RunEndEncodedArray.from_arrays([2], [b"a"]),
    "another column": pa.table({"value": V, "x": V}), "no value column": pa.table({"key": V}),
    "a column twice": pa.table([V, V], names=["value", "value"]), "no columns": pa.table({}),
    "numpy numbers": np.array([1, 2]), "numpy table": np.array([V, V]),
    "a numpy scalar": np.array(b"a"), "numpy floats": np.array([1.5]),
    "offsets that lie": pa.Array.from_buffers(
        pa.binary(), 2, [None, pa.array([0, 1 << 30, 1], pa.int32()).buffers()[1], BYTE]
    ),
    "indexes that lie": pa.DictionaryArray.from_arrays(
        pa.array([9]), pa.array([b"a"]), safe=False
    ),
}  # fmt: skip


@pytest.mark.parametrize("values", BAD_VALUES.values(), ids=BAD_VALUES)
def test_values_that_are_not_messages_are_an_invalid_request(values: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"value|column"):
        record_batches_of(values)


BAD_KEYS = {
    "too few": [b"a"], "too many": [b"a"] * 3, "one bytes": b"ab", "a number": 0, "false": False,
    "numbers": [1, 2], "lone surrogates": ["\udfff", None], "arrow numbers": pa.array([1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("keys", BAD_KEYS.values(), ids=BAD_KEYS)
def test_keys_that_are_not_bytes_for_each_message_are_an_invalid_request(keys: Any) -> None:
    with pytest.raises(InvalidRequest, match="key"):
        record_batches_of(V, keys)


BAD_HEADERS = {
    "too few": [{}], "one mapping": {"a": b"b"}, "an empty mapping": {}, "zeros": [0, 0],
    "empty texts": ["", ""], "empty lists": [[], []], "false": [False, None], "texts": ["ab", "c"],
    "numbers": [1, 2], "pairs": [[("a", b"b")], None], "a number": 5, "one str": "ab",
    "one bytes": b"ab", "a set": {1, 2}, "strangers": [Stranger(), None],
    "lone surrogates in a name": [{"\ud800": b""}, None],
    "lone surrogates in a value": [{"a": "\ud800"}, None],
    "a name that is not utf-8": [{b"\xff": b""}, None], "a number for a name": [{1: b""}, None],
    "no name": [{None: b""}, None], "no value": [{"a": None}, None],
    "a number for a value": [{"a": 1}, None], "a list for a value": [{"a": [b"x"]}, None],
    "numpy numbers": np.array([1, 2]), "numpy arrays": [np.array([1, 2]), None],
    "arrow text": pa.array(["a", "b"]),
    "other fields": pa.array([[{"k": "a", "v": b"b"}], None]),
    "a field more": pa.array([[{"key": "a", "value": b"b", "x": 1}], None]),
    "a field less": pa.array([[{"key": "a"}], None]),
    "arrow null value": pa.array([[{"key": "a", "value": None}], None], header_type(*PAIR)),
    "arrow null pair": pa.array([[None], None], header_type(*PAIR)),
    "arrow name that is not utf-8": pa.ListArray.from_arrays(
        pa.array([0, 1, 1], pa.int32()),
        pa.StructArray.from_arrays([BAD_UTF8, pa.array([b"x"])], names=["key", "value"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("headers", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_headers_that_are_not_names_with_bytes_are_an_invalid_request(headers: Any) -> None:
    with pytest.raises(InvalidRequest, match="headers"):
        record_batches_of(V, headers=headers)


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
BAD_TIMESTAMPS = {
    "too few": [1], "negative": [-1, 0], "after 9999": [TIMESTAMP_MS_MAX + 1, 0],
    "past int64": [2**63, 0], "past everything": [10**5000, 0], "a float": [1.5, 0],
    "a whole float": [1.0, 0], "not a number": [float("nan"), 0], "booleans": [True, False],
    "texts": ["1", "2"], "datetimes": [NOON, None], "dates": [NOON.date(), None],
    "decimals": [Decimal(1), None], "lists": [[1], [2]], "one str": "ab", "one bytes": b"ab",
    "a mapping": {1: 2, 3: 4}, "a set": {1, 2}, "a number": 5, "false": False,
    "numpy floats": np.array([1.5, 2]), "numpy table": np.array([[1, 2], [3, 4]]),
    "numpy unsigned": np.array([2**64 - 1, 2], np.uint64),
    "numpy dates": np.array(["2026-01-01", "2026-01-02"], "datetime64[ms]"),
    "arrow numbers": pa.array([1, 2]), "arrow dates": pa.array([1, 2], pa.date32()),
    "arrow negative": pa.array([-1, 0], pa.timestamp("ms")),
    "arrow overflow": pa.array([2**62, 0], pa.timestamp("s")),
    "arrow after 9999": pa.array([TIMESTAMP_MS_MAX // 1_000 + 1, 0], pa.timestamp("s")),
}  # fmt: skip


@pytest.mark.parametrize("stamps", BAD_TIMESTAMPS.values(), ids=BAD_TIMESTAMPS)
def test_timestamps_out_of_range_are_an_invalid_request(stamps: Any) -> None:
    with pytest.raises(InvalidRequest, match="timestamp"):
        record_batches_of(V, timestamps=stamps)


def test_columns_beside_a_table_are_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match="put 'key' into the Arrow data"):
        record_batches_of(pa.table({"value": V}), V)


def test_what_a_generator_of_the_caller_raises_is_not_disguised() -> None:
    def broken() -> Any:
        yield b"a"
        raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="the caller's own"):
        record_batches_of(broken())
