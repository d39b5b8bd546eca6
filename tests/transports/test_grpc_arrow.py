"""Arrow batches through gRPC: stored and given as they are, converted where they must be."""

import struct
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import DEFAULT_LIMITS, Limits, Origin, check_batch, decode_messages
from quivermq.errors import InvalidRequest, TooLarge
from quivermq.transports.grpc import parts
from quivermq.transports.grpc.arrow_streams import batches_of, frames_of_batch, stream_parts
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from tests.transports.grpc_stage import calling, make_topic, metadata_of, poll, refusal, stream
from tests.transports.stage import on_served_loop

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def table(rows: int = 3) -> Any:
    """The columns of a body, but for what may be null: as other libraries write them."""
    return pa.table(
        {
            "value": pa.array([b"v%d" % n for n in range(rows)], pa.binary()),
            "key": pa.array([None, *(b"k%d" % n for n in range(1, rows))], pa.binary()),
            "headers": pa.array([[{"key": "a", "value": b"1"}]] * rows, HEADERS),
            "timestamp": pa.array(range(rows), pa.timestamp("ms", tz="UTC")),
        }
    )


def record_batch_bytes(sent: bytes) -> bytes:
    """The record batch of a stream, without schema and end."""
    messages = list(pa.ipc.MessageReader.open_stream(sent))
    schema_bytes = 8 + messages[0].metadata.size
    return sent[schema_bytes:-8]


@on_served_loop
async def test_batches_are_stored_and_given_as_they_came(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        sent = stream(table())
        request = api.ProduceRequest(topic="orders", arrow=sent, priority=2)
        (stored,) = (await stub.Produce(request)).stored
        assert (stored.first_offset, stored.count) == (0, 3)
        read = await stub.Fetch(api.FetchRequest(topic="orders", format=api.FORMAT_ARROW))
        (batch,) = read.batches
        assert record_batch_bytes(batch.stream) == record_batch_bytes(sent)
        assert (batch.first_offset, batch.count, batch.priority) == (0, 3, 2)
        assert pa.ipc.open_stream(batch.stream).read_all().to_pylist() == table().to_pylist()
        (delivery,) = (await poll(stub, format=api.FORMAT_ARROW, max_messages=2)).deliveries
        (leased,) = delivery.batches[0].leased
        assert (leased.first_offset, leased.count, leased.delivery_count) == (0, 2, 1)
        plain = (await poll(stub)).deliveries[0].messages
        assert [(m.offset, m.value, m.key) for m in plain] == [(2, b"v2", b"k2")]


def test_responses_around_bodies_are_what_protobuf_would_make() -> None:
    found = [*frames(stream(table(200))), *frames(stream(table(1)))]
    leased = [api.LeasedRange(first_offset=3, count=4, delivery_count=5)]
    batches = [parts.batch_parts(frame, leased) for frame in found]
    delivery = api.Delivery(topic="orders", partition=300, lease="x" * 200)
    response = parts.push_response(1 << 40, [parts.with_parts(delivery, "batches", batches)])
    read = api.Response.FromString(response)
    assert read.id == 1 << 40
    (pushed,) = read.push.deliveries
    assert (pushed.topic, pushed.partition, pushed.lease) == ("orders", 300, "x" * 200)
    for batch, frame in zip(pushed.batches, found, strict=True):
        assert batch.stream == b"".join(stream_parts(frame))
        assert batch.count == frame.header.count
        assert list(batch.leased) == leased
    # Written again by protobuf it is as long: nothing was lost, nothing is there twice.
    assert len(read.SerializeToString()) == len(response)


@on_served_loop
async def test_rows_with_keys_are_split_over_partitions(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub, partitions=3)
        stored = await stub.Produce(api.ProduceRequest(topic="orders", arrow=stream(table(30))))
        assert {each.partition for each in stored.stored} == {0, 1, 2}
        assert sum(each.count for each in stored.stored) == 30
        values = set()
        for number in range(3):
            read = await stub.Fetch(api.FetchRequest(topic="orders", partition=number))
            values |= {message.value for message in read.messages}
        assert len(values) == 30


@on_served_loop
async def test_streams_that_are_none_are_refused(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        for wrong in (
            b"nonsense",
            stream(table())[:-100],
            stream(pa.table({"value": pa.array([1])})),
            stream(pa.table({"other": pa.array([b""])})),
            stream(pa.table({"value": pa.array([None], pa.binary())})),
            stream(pa.table({"value": pa.array([], pa.binary())})),
        ):
            error = await refusal(stub.Produce(api.ProduceRequest(topic="orders", arrow=wrong)))
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, wrong[:50]
            assert metadata_of(error)["quiver-code"] == "InvalidRequest"


def frames(sent: bytes, limits: Limits = DEFAULT_LIMITS) -> list[Any]:
    origin = Origin()
    return [
        frame
        for batch in batches_of(sent, limits)
        for frame in frames_of_batch(batch, origin, limits)
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b"]),
        pa.array([b"a", b"b"], pa.large_binary()),
        pa.array(["a", "b"], pa.large_string()),
        pa.array([b"a", b"b"], pa.binary(1)),
    ],
)
def test_other_types_are_converted(column: Any) -> None:
    (frame,) = frames(stream(pa.table({"value": column})))
    assert [message.value for message in decode_messages(frame)] == [b"a", b"b"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"", b""], pa.binary(0)),
        pa.array([None, None]),
        pa.array(["a", "b"], pa.string_view()),
        pa.array([(1, 2, 3)] * 2, pa.month_day_nano_interval()),
        pa.array([[], []], pa.list_(pa.string(), 0)),
    ],
)
def test_types_that_stand_for_more_than_their_bytes_are_refused(column: Any) -> None:
    with pytest.raises(InvalidRequest, match="column value: send binary or string, not"):
        frames(stream(pa.table({"value": column})))


def test_columns_in_another_order_are_converted() -> None:
    sent = stream(table().select(["timestamp", "key", "value"]))
    (frame,) = frames(sent)
    assert [message.key for message in decode_messages(frame)] == [None, b"k1", b"k2"]


def test_columns_after_the_value_in_another_order_are_converted() -> None:
    (frame,) = frames(stream(table().select(["value", "timestamp", "key"])))
    assert [message.key for message in decode_messages(frame)] == [None, b"k1", b"k2"]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_batches_are_taken(codec: str) -> None:
    values = pa.array([b"x" * 1000] * 100, pa.binary())
    (frame,) = frames(stream(pa.table({"value": values}), compression=codec))
    check_batch(frame)
    assert frame.header.count == 100


def test_what_decompresses_to_too_much_is_refused_before_it_is_done() -> None:
    values = pa.array([b"\0" * (1 << 20)] * 8, pa.binary())
    sent = stream(pa.table({"value": values}), compression="zstd")
    assert len(sent) < 100_000
    with pytest.raises(InvalidRequest, match="decompresses to more than"):
        frames(sent, Limits(batch_bytes_max=1 << 20))
    # The number in front of a compressed buffer is only a claim.
    claim = struct.pack("<q", 8 << 20)
    assert claim in sent
    with pytest.raises(InvalidRequest):
        frames(sent.replace(claim, struct.pack("<q", 1 << 50)))


def test_dictionaries_are_refused() -> None:
    column = pa.array(["a", "b"]).dictionary_encode()
    with pytest.raises(InvalidRequest, match="dictionary"):
        frames(stream(pa.table({"value": column})))


def test_a_stream_of_too_many_batches_is_refused() -> None:
    one = pa.table({"value": pa.array([b"x"], pa.binary())})
    many = pa.concat_tables([one] * 1_025)
    with pytest.raises(TooLarge, match="record batches"):
        frames(stream(many))


def test_a_stream_that_does_not_begin_with_its_schema_is_refused() -> None:
    sent = stream(table(20))
    # Arrow takes any first message for a schema if it is told to, and may crash over it.
    behind_schema = sent.index(b"\xff\xff\xff\xff", 8)
    with pytest.raises(InvalidRequest, match="begins with its schema, not with record batch"):
        frames(sent[behind_schema:])


def test_frames_make_streams_that_arrow_reads_and_back() -> None:
    (frame,) = frames(stream(table()))
    (again,) = frames(b"".join(stream_parts(frame)))
    assert again.body == frame.body


@given(st.data())
def test_changed_bytes_are_refused_or_make_sound_frames(data: st.DataObject) -> None:
    sent = bytearray(stream(table(20)))
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = frames(bytes(sent))
    except (InvalidRequest, TooLarge):
        return
    for frame in found:
        assert frame.header.count <= 20
