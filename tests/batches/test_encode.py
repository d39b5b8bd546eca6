"""Encoding: the same messages come back, within the limits, in order, whatever they came in."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quivermq.batches import (
    Flag,
    Frame,
    Limits,
    Message,
    Origin,
    decode_batch,
    decode_messages,
    encode_batch,
    encode_batches,
)
from quivermq.batches.limits import COUNTER_MAX, TIMESTAMP_MS_MAX
from quivermq.errors import InvalidRequest, TooLarge
from tests.batches.samples import (
    COLUMN_SETS,
    COMPRESSIONS,
    ORIGIN,
    columns_of,
    frame_of,
    rows_of_columns,
    values_of,
)


def messages_in(frames: Any, limits: Limits | None = None) -> list[Message]:
    """All messages, each frame through its bytes as a receiver would."""
    held = limits or Limits()
    return [
        message
        for frame in frames
        for message in decode_messages(Frame.parse(bytes(frame), 0, held), held)
    ]


def arrow_buffers(batch: Any) -> list[bytes]:
    return [
        buffer.to_pybytes()
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None
    ]


def serialized(*columns: bytes) -> int:
    return len(encode_batch(list(columns)).body)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(rows=rows_of_columns, flags=st.sampled_from(COLUMN_SETS))
def test_messages_come_back_as_they_went_in(rows: Any, flags: int, compression: Any) -> None:
    values, keys, headers, stamps = (list(column) for column in zip(*rows, strict=True))
    chosen = {
        "keys": keys if flags & Flag.KEY else None,
        "headers": headers if flags & Flag.HEADERS else None,
        "timestamps": stamps if flags & Flag.TIMESTAMP else None,
    }
    frame = encode_batch(values, **chosen, compression=compression, origin=Origin(priority=4))
    empty = [None] * len(rows)
    assert messages_in([frame]) == [
        Message(offset, stamp or 0, key, value, header or {}, 4)
        for offset, (value, key, header, stamp) in enumerate(
            zip(values, *(column or empty for column in chosen.values()), strict=True)
        )
    ]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("flags", COLUMN_SETS)
def test_the_header_says_what_the_body_is(flags: int, compression: Any) -> None:
    header = frame_of(flags, compression).header
    assert header.flags == flags | {None: 0, "lz4": Flag.LZ4, "zstd": Flag.ZSTD}[compression]
    assert header.count == 5
    assert header.decoded_bytes == frame_of(flags).header.body_bytes
    assert (header.producer_id, header.producer_epoch, header.sequence) == (7, 2, 100)
    assert (header.priority, header.not_before_ms) == (3, 1_000)
    assert (header.term, header.index, header.base_offset, header.timestamp_ms) == (0, 0, 0, 0)


ARROW_SHAPES: dict[str, Callable[[list[bytes]], Any]] = {
    "array": pa.array,
    "slice": lambda rows: pa.array([b"x", *rows, b"y"]).slice(1, len(rows)),
    "one chunk": lambda rows: pa.chunked_array([rows], pa.binary()),
    "many chunks": lambda rows: pa.chunked_array([[row] for row in rows], pa.binary()),
    "record batch": lambda rows: pa.record_batch({"value": rows}),
    "table": lambda rows: pa.table({"value": rows}),
    "table in chunks": lambda rows: pa.table({"value": [b"x", *rows]}).slice(1),
    "dictionary": lambda rows: pa.array(rows).dictionary_encode(),
    "large": lambda rows: pa.array(rows, pa.large_binary()),
}


@pytest.mark.parametrize("shape", ARROW_SHAPES.values(), ids=ARROW_SHAPES)
@given(values=st.lists(st.binary(max_size=30), min_size=1, max_size=20))
def test_values_in_any_arrow_shape_make_one_frame_of_the_same_bytes(
    shape: Any, values: list[bytes]
) -> None:
    frame = encode_batch(shape(values))
    assert [message.value for message in messages_in([frame])] == values
    assert frame == encode_batch(values)


def test_a_table_of_many_small_chunks_is_not_many_frames() -> None:
    table = pa.concat_tables([pa.table({"value": [b"%d" % n]}) for n in range(500)])
    frames = list(encode_batches(table))
    assert [frame.header.count for frame in frames] == [500]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(rows=rows_of_columns, before=st.integers(0, 9), after=st.integers(0, 9), split=st.booleans())
def test_a_slice_does_not_carry_bytes_of_the_rows_around_it(
    rows: Any, before: int, after: int, split: bool, compression: Any
) -> None:
    secret = (b"SECRET" * 20, b"SECRET" * 20, [("SECRET" * 20, b"SECRET" * 20)], 0)
    inside = [(v, k, None if h is None else list(h.items()), t) for v, k, h, t in rows]
    columns = zip(*[secret] * before, *inside, *[secret] * after, strict=True)
    types = [pa.binary(), pa.binary(), pa.map_(pa.string(), pa.binary()), pa.timestamp("ms")]
    table = pa.table(
        [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)],
        names=["value", "key", "headers", "timestamp"],
    ).slice(before, len(rows))
    size = 1 if split else None
    for frame in encode_batches(table, compression=compression, frame_bytes=size):
        for buffer in arrow_buffers(decode_batch(frame)):
            assert b"SECRET" not in buffer
        assert b"SECRET" not in bytes(frame)


def test_splitting_does_not_copy_bytes_of_the_next_frame_into_the_padding() -> None:
    frames = list(encode_batches([b"a", b"SECRET" * 20], frame_bytes=1))
    assert b"SECRET" not in bytes(frames[0])
    assert frames[0] == encode_batch([b"a"])


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=40),
    frame_bytes=st.integers(1, 3_000),
    flags=st.sampled_from(COLUMN_SETS),
    compression=st.sampled_from(COMPRESSIONS),
    chunk=st.integers(1, 40),
)
def test_frames_keep_their_size_order_and_sequence_numbers(
    sizes: list[int], frame_bytes: int, flags: int, compression: Any, chunk: int
) -> None:
    values = [bytes([row]) * size for row, size in enumerate(sizes)]
    chunks = pa.chunked_array(
        [values[at : at + chunk] for at in range(0, len(values), chunk)], pa.binary()
    )
    frames = list(
        encode_batches(
            chunks,
            **columns_of(flags, len(values)),
            frame_bytes=frame_bytes,
            compression=compression,
            origin=ORIGIN,
        )
    )
    assert [message.value for message in messages_in(frames)] == values
    sequence = ORIGIN.sequence
    for frame in frames:
        assert frame.header.sequence == sequence
        assert frame.header.count == 1 or frame.header.decoded_bytes <= frame_bytes
        assert frame.header.body_bytes <= frame.header.decoded_bytes
        sequence += frame.header.count
    assert sequence == ORIGIN.sequence + len(values)


@pytest.mark.parametrize(
    "nothing", [[], pa.array([], pa.binary()), pa.table({"value": pa.nulls(0)})]
)
def test_no_messages_are_no_frames_and_no_batch(nothing: Any) -> None:
    assert list(encode_batches(nothing)) == []
    with pytest.raises(InvalidRequest, match="at least one message"):
        encode_batch(nothing)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_message_at_its_limit_passes_and_one_byte_more_is_too_large(compression: Any) -> None:
    limits = Limits(message_bytes_max=1_000)
    shared = {"keys": [b"k" * 100], "headers": [{"n" * 10: b"v" * 90}]}
    at_limit = encode_batch([b"v" * 800], **shared, compression=compression, limits=limits)
    assert len(messages_in([at_limit], limits)) == 1
    with pytest.raises(TooLarge, match=r"message of 1,001 bytes .* 1,000 \(message_bytes_max\)"):
        encode_batch([b"v" * 801], **shared, compression=compression, limits=limits)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_headers_at_their_limit_pass_and_one_byte_more_is_too_large(compression: Any) -> None:
    limits = Limits(headers_bytes_max=100)
    rows = [None, {"a": b"b"}, {"ab": b"v" * 48, "cd": b"v" * 48}, {}]
    values = [b"value"] * 4
    at_limit = encode_batch(values, headers=rows, compression=compression, limits=limits)
    assert messages_in([at_limit], limits)[2].headers == rows[2]
    rows[2] = {"ab": b"v" * 48, "cd": b"v" * 49}
    with pytest.raises(TooLarge, match=r"headers .* 101 bytes, .* 100 \(headers_bytes_max\)"):
        encode_batch(values, headers=rows, compression=compression, limits=limits)


def test_only_the_headers_of_the_slice_count() -> None:
    limits = Limits(headers_bytes_max=100)
    rows = [{"big": bytes(1_000)}, {"a": b"b"}, None, {"c": b"d" * 50}, {"big": bytes(1_000)}]
    arrow = pa.record_batch(
        [
            pa.array([bytes(200)] * 5),
            pa.array(
                [list(row.items()) if row else None for row in rows],
                pa.map_(pa.string(), pa.binary()),
            ),
        ],
        names=["value", "headers"],
    )
    frame = encode_batch(arrow.slice(1, 3), limits=limits)
    assert [message.headers for message in messages_in([frame], limits)] == [
        row or {} for row in rows[1:4]
    ]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_batch_at_its_limit_is_one_frame_and_one_byte_less_is_too_small(compression: Any) -> None:
    values = values_of(20)
    size = serialized(*values)
    at_limit = Limits(batch_bytes_max=size)
    frame = encode_batch(values, compression=compression, limits=at_limit)
    assert len(messages_in([frame], at_limit)) == 20
    short = Limits(batch_bytes_max=size - 1)
    with pytest.raises(TooLarge, match="batch_bytes_max"):
        encode_batch(values, compression=compression, limits=short)
    frames = list(encode_batches(values, compression=compression, limits=short))
    assert len(frames) == 2
    assert [message.value for message in messages_in(frames, short)] == values


def test_one_message_that_no_batch_can_hold_is_too_large() -> None:
    with pytest.raises(TooLarge, match="batch_bytes_max"):
        list(encode_batches([bytes(500)], limits=Limits(batch_bytes_max=400)))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_does_not_compress_stays_plain_and_within_its_limit(compression: Any) -> None:
    values = [random.Random(1).randbytes(10_000)]
    limits = Limits(batch_bytes_max=serialized(*values))
    frame = encode_batch(values, compression=compression, limits=limits)
    assert frame.header.flags == 0
    assert frame == encode_batch(values)
    assert messages_in([frame], limits)[0].value == values[0]


def test_nothing_comes_out_before_every_message_was_checked() -> None:
    chunks = pa.chunked_array([[b"fine"], [bytes(2_000)]], pa.binary())
    with pytest.raises(TooLarge):
        encode_batches(chunks, frame_bytes=10, limits=Limits(message_bytes_max=1_000))


def test_refusing_a_large_table_does_not_lay_it_all_out() -> None:
    values = pa.chunked_array([pa.array([bytes(1_000)])] * 1_000)
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(TooLarge, match="split them"):
        encode_batch(values, limits=Limits(batch_bytes_max=5_000))
    assert pa.default_memory_pool().bytes_allocated() - before < 50_000


BAD_ORIGINS: dict[str, Any] = {
    "none": None, "a tuple": (0, 0, 0, 0, 0), "a stranger": object(),
    "negative": Origin(sequence=-1), "true": Origin(priority=True), "float": Origin(priority=1.0),
    "text": Origin(producer_id="1"), "nothing": Origin(not_before_ms=None),  # type: ignore[arg-type]
    "above 7": Origin(priority=8), "epoch": Origin(producer_epoch=2**32),
    "producer": Origin(producer_id=COUNTER_MAX + 1), "sequence": Origin(sequence=COUNTER_MAX),
    "after 9999": Origin(not_before_ms=TIMESTAMP_MS_MAX + 1),
    "past what Python prints": Origin(sequence=10**5000),
}  # fmt: skip


@pytest.mark.parametrize("origin", BAD_ORIGINS.values(), ids=BAD_ORIGINS)
def test_an_origin_that_no_header_can_carry_is_an_invalid_request(origin: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"must be an Origin|must be a whole number from 0 to"):
        encode_batches([b"a"], origin=origin)


def test_the_largest_origin_is_carried() -> None:
    origin = Origin(COUNTER_MAX, 2**32 - 1, COUNTER_MAX >> 1, 7, TIMESTAMP_MS_MAX)
    header = Frame.parse(bytes(encode_batch([b"a"], origin=origin))).header
    assert (header.producer_id, header.producer_epoch, header.sequence) == origin[:3]


@pytest.mark.parametrize(
    "compression",
    ["gzip", "LZ4", "", b"lz4", 0, 1, True, [], {}, object(), np.array(["lz4", "zstd"])],
)
def test_an_unknown_compression_is_an_invalid_request(compression: Any) -> None:
    with pytest.raises(InvalidRequest, match="compression must be None, 'lz4' or 'zstd'"):
        encode_batches([b"a"], compression=compression)


@pytest.mark.parametrize("frame_bytes", [0, -1, True, 1.5, "9", [], -(10**5000)], ids=type)
def test_a_frame_size_that_is_none_is_an_invalid_request(frame_bytes: Any) -> None:
    with pytest.raises(InvalidRequest, match="frame_bytes must be a whole number"):
        encode_batches([b"a"], frame_bytes=frame_bytes)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
nested = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(nested, st.sampled_from(["values", "keys", "headers", "timestamps"]))
@settings(max_examples=300)
def test_arbitrary_python_values_are_encoded_or_refused(thing: Any, argument: str) -> None:
    arguments = {"values": [b"a", b"b"], argument: thing}
    try:
        frames = list(encode_batches(**arguments))
    except InvalidRequest:
        return
    assert all(decode_batch(frame).num_rows == frame.header.count for frame in frames)
