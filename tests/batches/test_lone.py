"""Batches of one plain message are made and recognised without Arrow, and are what Arrow makes."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import (
    COUNTER_MAX,
    PRIORITY_MAX,
    Frame,
    Header,
    Limits,
    Origin,
    check_batch,
    decode_batch,
    decode_columns,
    decode_messages,
    encode_batch,
    lone_frame,
    schema_of,
)
from quivermq.batches.lone import LONE_BYTES_MAX, is_lone_body, lone_body
from quivermq.errors import Corrupt, TooLarge


def as_arrow_writes(value: bytes) -> bytes:
    batch = pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], schema=schema_of(0))
    return bytes(batch.serialize())


@given(st.binary(max_size=300))
def test_a_lone_body_is_what_arrow_writes(value: bytes) -> None:
    assert lone_body(value) == as_arrow_writes(value)
    assert is_lone_body(memoryview(lone_body(value)))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, LONE_BYTES_MAX - 1, LONE_BYTES_MAX])
def test_values_of_every_alignment_come_back(size: int) -> None:
    value = bytes(range(256)) * (size // 256) + bytes(size % 256)
    frame = encode_batch([value])
    assert bytes(frame.body) == as_arrow_writes(value)
    assert [message.value for message in decode_messages(frame)] == [value]


@given(st.binary(max_size=40), st.integers(0, 300), st.integers(1, 255))
def test_a_body_with_one_byte_changed_is_lone_only_if_that_byte_is_the_messages(
    value: bytes, at: int, change: int
) -> None:
    body = bytearray(lone_body(value))
    at %= len(body)
    body[at] ^= change
    front = len(lone_body(b""))
    assert is_lone_body(body) == (front <= at < front + len(value))


@given(st.binary(max_size=40), st.integers(1, 300))
def test_a_body_that_is_cut_short_is_not_lone(value: bytes, cut: int) -> None:
    body = lone_body(value)
    assert not is_lone_body(body[: max(0, len(body) - cut)])


def test_what_is_not_a_lone_body_is_checked_by_arrow() -> None:
    good = encode_batch([b"x" * 100])
    spoilt = bytes(good.body)[:-1] + b"!"
    # Arrow does not care what stands in the padding.
    check_batch(Frame(good.header, spoilt))
    check_batch(encode_batch([b"one", b"two"]))
    broken = bytes(good.body)[:160] + b"\xff" * (len(good.body) - 160)
    with pytest.raises(Corrupt):
        check_batch(Frame(good.header, broken))


def test_a_message_above_the_limit_is_refused_however_few_bytes_arrow_adds() -> None:
    limits = Limits(message_bytes_max=200)
    frame = encode_batch([b"x" * 100], limits=limits)
    check_batch(frame, limits)
    decode_batch(frame, limits)
    with pytest.raises(TooLarge):
        encode_batch([b"x" * 201], limits=limits)
    with pytest.raises(TooLarge):
        check_batch(encode_batch([b"x" * 201]), limits)


def test_a_header_that_counts_other_than_one_is_not_taken_for_a_lone_message() -> None:
    frame = encode_batch([b"x"])
    lying = Frame(Header(*frame.header[:-2], 2, frame.header.decoded_bytes), frame.body)
    with pytest.raises(Corrupt):
        check_batch(lying)


@given(
    st.binary(max_size=300),
    st.none() | st.binary(max_size=50),
    st.integers(0, COUNTER_MAX),
    st.integers(0, 2**32 - 1),
    st.integers(0, COUNTER_MAX >> 1),
    st.integers(0, PRIORITY_MAX),
)
def test_a_lone_frame_is_that_of_a_batch(
    value: bytes, key: bytes | None, producer_id: int, epoch: int, sequence: int, priority: int
) -> None:
    origin = Origin(producer_id, epoch, sequence, priority)
    frame = encode_batch([value], keys=None if key is None else [key], origin=origin)
    assert lone_frame(value, key, producer_id, epoch, sequence, priority) == bytes(frame)


def test_a_lone_message_is_decoded_as_arrow_does_it() -> None:
    frame = encode_batch([b"value"]).stamped(term=1, index=2, base_offset=3, timestamp_ms=4)  # type: ignore[arg-type]
    # Arrow does not care what stands in the padding, so this one is decoded by it.
    by_arrow = Frame(frame.header, bytes(frame.body)[:-1] + b"!")
    assert decode_messages(frame) == decode_messages(by_arrow)
    for first, stop in ((0, None), (0, 1), (1, None), (1, 1), (0, 0)):
        few = decode_columns(frame, first=first, stop=stop).values
        assert few == decode_columns(by_arrow, first=first, stop=stop).values
    limits = Limits(message_bytes_max=100)
    with pytest.raises(TooLarge):
        decode_columns(encode_batch([b"x" * 201]), limits)
