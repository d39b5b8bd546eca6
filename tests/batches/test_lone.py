"""Batches of one plain message are made and recognised without Arrow, and are what Arrow makes."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import (
    Frame,
    Header,
    Limits,
    check_batch,
    decode_batch,
    decode_messages,
    encode_batch,
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
