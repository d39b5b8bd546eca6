"""Decoding: views of the received bytes, messages as Python objects, and lies that are refused."""

import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from quivermq.batches import (
    HEADER_BYTES,
    Flag,
    Frame,
    FrameKind,
    Header,
    Index,
    Limits,
    Message,
    Offset,
    check_sizes,
    decode_batch,
    decode_messages,
    encode_batch,
    schema_of,
)
from quivermq.batches.limits import TIMESTAMP_MS_MAX
from quivermq.batches.schema import HEADERS_TYPE, TIMESTAMP_TYPE
from quivermq.errors import Corrupt, TooLarge
from tests.batches.samples import COLUMN_SETS, COMPRESSIONS, columns_of, frame_of, values_of


def raw_frame(flags: int, *columns: pa.Array, schema: pa.Schema | None = None) -> Frame:
    """A frame around whatever Arrow can serialize, past the encoder's checks."""
    names = schema or schema_of(flags)
    batch = pa.RecordBatch.from_arrays(list(columns), schema=names)
    body = batch.serialize().to_pybytes()
    header = Header(
        FrameKind.DATA,
        flags=flags,
        body_bytes=len(body),
        body_crc=crc32c(body),
        count=batch.num_rows,
        decoded_bytes=len(body),
    )
    return Frame.parse(header.pack() + body)


def buffers_of(array: pa.Array) -> Iterator[pa.Buffer]:
    return (buffer for buffer in array.buffers() if buffer is not None and buffer.size)


@pytest.mark.parametrize("kind_of_buffer", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("flags", COLUMN_SETS)
def test_every_arrow_buffer_lies_inside_the_received_bytes(flags: int, kind_of_buffer: Any) -> None:
    received = kind_of_buffer(b"??" + bytes(frame_of(flags)) + b"??")
    whole = pa.py_buffer(received)
    batch = decode_batch(Frame.parse(received, 2))
    first = whole.address + 2 + HEADER_BYTES
    last = whole.address + whole.size - 2
    places = [(b.address, b.address + b.size) for c in batch.columns for b in buffers_of(c)]
    assert len(places) >= 2
    assert all(first <= start and end <= last for start, end in places)


def test_decoding_a_plain_body_allocates_nothing_of_its_size() -> None:
    received = bytes(encode_batch([bytes(1_000_000)]))
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    batch = decode_batch(Frame.parse(received))
    assert pool.bytes_allocated() - before < 1_000
    assert batch.num_rows == 1


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("flags", COLUMN_SETS)
def test_the_batch_has_the_schema_that_the_flags_promise(flags: int, compression: Any) -> None:
    batch = decode_batch(Frame.parse(bytes(frame_of(flags, compression))))
    assert batch.schema.equals(schema_of(flags))
    assert batch.column("value").to_pylist() == values_of(5)


def test_messages_carry_offsets_timestamps_and_priority_of_their_frame() -> None:
    frame = frame_of(Flag.TIMESTAMP | Flag.KEY, rows=3).stamped(
        term=1, index=Index(1), base_offset=Offset(40), timestamp_ms=77
    )
    value = values_of(3)
    assert decode_messages(frame) == [
        Message(Offset(40), 0, b"key-0", value[0], {}, 3),
        Message(Offset(41), 77, None, value[1], {}, 3),
        Message(Offset(42), 2_000, b"key-2", value[2], {}, 3),
    ]


def test_messages_without_timestamps_have_the_one_of_their_frame() -> None:
    frame = encode_batch([b"a"]).stamped(
        term=1, index=Index(1), base_offset=Offset(0), timestamp_ms=77
    )
    assert decode_messages(frame)[0].timestamp == 77


def test_headers_go_to_their_own_messages() -> None:
    rows = [{"a": b"1", "b": b"2"}, None, {}, {"": b""}, {"a": b"3"}]
    frame = encode_batch([b"v"] * 5, headers=rows)
    assert [message.headers for message in decode_messages(frame)] == [row or {} for row in rows]


def test_messages_are_messages_and_can_be_pickled_copied_and_shown_as_json() -> None:
    for flags in COLUMN_SETS:
        message = decode_messages(frame_of(flags))[0]
        assert type(message) is Message
        assert pickle.loads(pickle.dumps(message)) == copy.deepcopy(message) == message
        assert json.loads(json.dumps(message.headers, default=bytes.decode)) == {}


def test_the_shared_empty_headers_cannot_be_changed() -> None:
    for message in decode_messages(frame_of()) + decode_messages(frame_of(Flag.HEADERS)):
        if not message.headers:
            with pytest.raises(TypeError, match="cannot be changed"):
                message.headers["mine"] = b"yours"  # type: ignore[index]
            with pytest.raises(TypeError, match="cannot be changed"):
                message.headers.update(mine=b"yours")  # type: ignore[attr-defined]
    assert not decode_messages(frame_of())[0].headers


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind != FrameKind.DATA])
def test_frames_of_other_kinds_hold_no_messages(kind: FrameKind) -> None:
    with pytest.raises(Corrupt, match=f"kind {kind.name.lower()} holds no messages"):
        decode_batch(Frame.of(kind, b"body"))


def nullable(flags: int) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema_of(flags)])


PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ONE_VALUE = pa.array([b"v"])


def headers_frame(headers: pa.Array) -> Frame:
    schema = pa.schema([schema_of(0).field(0), pa.field("headers", headers.type)])
    return raw_frame(int(Flag.HEADERS), ONE_VALUE, headers, schema=schema)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (raw_frame(0, pa.array([None], pa.binary()), schema=nullable(0)), "no value"),
        (headers_frame(pa.array([[{"key": None, "value": b""}]], PAIRS)), "no name or no value"),
        (headers_frame(pa.array([[{"key": "", "value": None}]], PAIRS)), "no name or no value"),
        (headers_frame(pa.array([[None]], PAIRS)), "no name or no value"),
        (raw_frame(4, ONE_VALUE, pa.array([-1], TIMESTAMP_TYPE)), "outside 1970 to 9999"),
        (
            raw_frame(4, ONE_VALUE, pa.array([TIMESTAMP_MS_MAX + 1], TIMESTAMP_TYPE)),
            "outside 1970 to 9999",
        ),
    ],
)
def test_what_arrow_allows_and_we_do_not_is_corrupt(frame: Frame, words: str) -> None:
    with pytest.raises(Corrupt, match=words):
        decode_batch(frame)


def test_header_names_that_are_not_utf8_are_corrupt() -> None:
    names = pa.StringArray.from_buffers(
        1, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")
    )
    pairs = pa.StructArray.from_arrays([names, ONE_VALUE], fields=list(HEADERS_TYPE.value_type))
    offsets = pa.array([0, 1], pa.int32())
    headers = pa.ListArray.from_arrays(offsets, pairs, type=HEADERS_TYPE)
    with pytest.raises(Corrupt, match="UTF8"):
        decode_batch(raw_frame(int(Flag.HEADERS), ONE_VALUE, headers))


def test_a_body_of_other_columns_than_the_flags_say_is_corrupt() -> None:
    body = bytes(encode_batch([b"a"]).body)
    header = encode_batch([b"a"], keys=[b"k"]).header
    sizes = {"body_bytes": len(body), "body_crc": crc32c(body), "decoded_bytes": len(body)}
    with pytest.raises(Corrupt):
        decode_batch(Frame.parse(header._replace(**sizes).pack() + body))


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(
    "limits",
    [Limits(message_bytes_max=100), Limits(headers_bytes_max=5)],
    ids=["message", "headers"],
)
def test_a_reader_holds_messages_to_its_own_limits(limits: Limits, compression: Any) -> None:
    frame = Frame.parse(bytes(frame_of(7, compression)))
    assert decode_batch(frame).num_rows == 5
    with pytest.raises(TooLarge):
        decode_batch(frame, limits)
    with pytest.raises(TooLarge):
        decode_messages(frame, limits)


@pytest.mark.parametrize("rows", [1, 2, 17])
@pytest.mark.parametrize("flags", COLUMN_SETS)
def test_the_largest_message_is_found_exactly(flags: int, rows: int) -> None:
    columns = columns_of(flags, rows)
    empty: list[Any] = [None] * rows
    largest = max(
        len(value)
        + len(key or b"")
        + sum(len(name) + len(entry) for name, entry in (headers or {}).items())
        for value, key, headers in zip(
            values_of(rows),
            columns.get("keys", empty),
            columns.get("headers", empty),
            strict=True,
        )
    )
    frame = encode_batch(values_of(rows), **columns)
    batch, size = decode_batch(frame), frame.header.decoded_bytes
    check_sizes(batch, size, Limits(message_bytes_max=largest))
    with pytest.raises(TooLarge, match=f"a message of {largest:,} bytes"):
        check_sizes(batch, size, Limits(message_bytes_max=largest - 1))
