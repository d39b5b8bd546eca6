"""Packets that are written and read without protobuf are those of protobuf."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.wire import (
    cut_id,
    id_field,
    is_all_settled,
    plain_fields,
    plain_packet,
    proto,
    stored_offset,
)
from tests.wire.samples import data_frame, packed, unchecked

numbers = st.integers(0, 2**64 - 1)
ids = st.integers(1, 2**64 - 1)


def answer_to(request_id: int, *stored: proto.Stored) -> proto.Response:
    return proto.Response(id=request_id, produced=proto.Produced(batches=stored))


def fields_of(response: proto.Response, request_id: int) -> bytes | None:
    content = packed(response.SerializeToString())
    return plain_fields(memoryview(content), id_field(request_id))


def read(response: proto.Response, request_id: int) -> int | None:
    fields = fields_of(response, request_id)
    return None if fields is None else stored_offset(fields)


@given(ids, st.binary(max_size=20), st.integers(0, 2**32 - 1))
def test_the_packet_of_a_request_is_protobufs(
    request_id: int, topic_id: bytes, partition: int
) -> None:
    produce = proto.Produce(topic="orders", topic_id=topic_id, partition=partition)
    request = proto.Request(timeout_ms=2_500, direct=True, produce=produce)
    envelope, frame = request.SerializeToString(), data_frame()
    request.id = request_id
    by_protobuf = packed(request.SerializeToString(), [frame])
    assert plain_packet(id_field(request_id), envelope, bytes(frame)) == by_protobuf


@given(ids, st.binary(max_size=30))
def test_the_id_is_cut_from_a_response(request_id: int, text: bytes) -> None:
    response = proto.Response(id=request_id, error=proto.Error(message=text.hex()))
    rest = proto.Response(error=response.error).SerializeToString()
    assert cut_id(response.SerializeToString()) == (request_id, rest)


def test_a_response_without_an_id_is_left_to_protobuf() -> None:
    assert cut_id(b"") is None
    assert cut_id(proto.Response(done=proto.Done()).SerializeToString()) is None
    assert cut_id(b"\x08\xff\xff") is None


@given(ids, numbers, st.integers(1, 2**32 - 1), numbers, st.booleans())
def test_the_offset_of_an_answer_is_protobufs(
    request_id: int, offset: int, count: int, timestamp_ms: int, is_repeat: bool
) -> None:
    stored = proto.Stored(
        first_offset=offset, count=count, timestamp_ms=timestamp_ms, is_repeat=is_repeat
    )
    assert read(answer_to(request_id, stored), request_id) == offset


STORED = proto.Stored(first_offset=7, count=1, timestamp_ms=9)


OTHERS = [
    answer_to(6, STORED),
    answer_to(5),
    answer_to(5, STORED, STORED),
    answer_to(5, proto.Stored()),
    answer_to(5, proto.Stored(timestamp_ms=9)),
    answer_to(0, STORED),
    proto.Response(id=5, done=proto.Done()),
    proto.Response(id=5, error=proto.Error(code="Timeout", message="?")),
    proto.Response(id=5),
    proto.Response(),
]


@pytest.mark.parametrize("response", OTHERS)
def test_any_other_answer_is_left_to_protobuf(response: proto.Response) -> None:
    assert read(response, 5) is None


def test_what_is_not_one_whole_packet_is_left_to_the_receiver() -> None:
    envelope = answer_to(5, STORED).SerializeToString()
    good = packed(envelope)
    assert plain_fields(memoryview(good), id_field(5)) == envelope[2:]
    others = [good + good, good + b"?", packed(envelope, [data_frame()]), unchecked(envelope)]
    others += [good[:size] for size in range(len(good))]
    for content in others:
        assert plain_fields(memoryview(content), id_field(5)) is None


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_no_bit_may_change_on_the_way(at: int, bit: int) -> None:
    content = bytearray(packed(answer_to(5, STORED).SerializeToString()))
    content[at % len(content)] ^= 1 << bit
    assert plain_fields(memoryview(content), id_field(5)) is None


def test_settlements_of_which_one_is_lost_are_left_to_protobuf() -> None:
    settled = proto.Settled()
    assert is_all_settled(fields_of(proto.Response(id=300, settled=settled), 300) or b"") is True
    settled.lost.add()
    others = [proto.Response(id=300, settled=settled), *OTHERS]
    for other in others:
        assert is_all_settled(fields_of(other, other.id) or b"") is None
