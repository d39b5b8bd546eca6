"""The largest requests and answers of gRPC: none holds the broker's event loop.

Tests fail when one callback takes longer than the budget of `tests/conftest.py`.
"""

from pathlib import Path

import grpc
import grpc.aio
import pytest

from quivermq.errors import InvalidRequest, TooLarge
from quivermq.transports.grpc import parts, requests
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from tests.transports.grpc_stage import Stub, calling, make_topic, metadata_of, poll, refusal
from tests.transports.stage import PATIENCE_S, on_served_loop

MANY = 10_000
LARGE = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]


@on_served_loop
async def test_the_largest_requests_do_not_hold_the_loop(tmp_path: Path) -> None:
    async with (
        calling(tmp_path) as (server, small),
        grpc.aio.insecure_channel(server.grpc, options=LARGE) as channel,
    ):
        stub = Stub(channel)
        await make_topic(small)
        headers = {"a": b"1", "b": b"2", "c": b"3"}
        message = api.NewMessage(value=b"x" * 100, key=b"k", headers=headers, timestamp_ms=1)
        request = api.ProduceRequest(topic="orders", messages=[message] * MANY)
        await stub.Produce(request, timeout=PATIENCE_S)
        polled = await poll(stub, max_messages=MANY, max_bytes=32 << 20)
        messages = [each for delivery in polled.deliveries for each in delivery.messages]
        assert len(messages) == MANY
        read = api.FetchRequest(topic="orders", max_messages=MANY, max_bytes=32 << 20)
        assert len((await stub.Fetch(read, timeout=PATIENCE_S)).messages) == MANY
        (delivery,) = polled.deliveries
        # Every second one: no two are a range.
        some = api.Selection(lease=delivery.lease, offsets=range(0, MANY, 2))
        ack = api.AckRequest(topic="orders", group="g", selections=[some])
        await stub.Ack(ack, timeout=PATIENCE_S)
        (group,) = (await stub.ListGroups(api.ListGroupsRequest(topic="orders"))).groups
        assert (group.done, group.in_flight) == (MANY // 2, MANY // 2)


def bytes_of(request: api.ProduceRequest | bytes) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


def field(number: int, content: bytes) -> bytes:
    return parts._varint(number << 3 | 2) + parts._varint(len(content)) + content


def many_headers(count: int) -> bytes:
    message = field(3, b"") * count
    return field(1, b"orders") + field(3, message)


def test_a_large_request_is_looked_through_before_it_is_parsed() -> None:
    large = api.NewMessage(value=b"x" * (1 << 20), headers={"a": b"1"})
    request = api.ProduceRequest(topic="orders", messages=[large, large])
    data = request.SerializeToString()
    assert requests.parse_call(api.ProduceRequest, data) == request
    said = api.Request(id=300, produce=request)
    assert requests.parse_session(said.SerializeToString()) == said
    assert requests.id_of(said.SerializeToString()) == 300
    heartbeats = field(12, b"") * 1_000_000
    for parse, wrong in (
        (requests.parse_session, heartbeats),
        (requests.parse_session, field(3, many_headers(1_000_000))),
        (requests.parse_session, field(7, b"x" * (1 << 20))),
    ):
        with pytest.raises(TooLarge):
            parse(wrong)
    for nonsense in (b"\xff" * (1 << 20), data[:-1], b"\xff"):
        with pytest.raises(InvalidRequest):
            requests.parse_call(api.ProduceRequest, nonsense)


@on_served_loop
async def test_requests_past_their_limits_do_not_hold_the_loop(tmp_path: Path) -> None:
    async with (
        calling(tmp_path) as (server, small),
        grpc.aio.insecure_channel(server.grpc, options=LARGE) as channel,
    ):
        stub = Stub(channel)
        await make_topic(small)
        for request in (
            api.ProduceRequest(topic="orders", messages=[api.NewMessage()] * 1_000_000),
            # Headers of one name, of which protobuf keeps the last.
            many_headers(1_000_000),
        ):
            produce = channel.unary_unary("/quiver.v1.Quiver/Produce", bytes_of)
            error = await refusal(produce(request, timeout=PATIENCE_S))
            assert metadata_of(error)["quiver-code"] == "TooLarge"
        lease = "AQAAAAFV4Jb4qNyErlh34akHkbxD"
        for selections in (
            [api.Selection(lease=lease)] * 1_001,
            [api.Selection(lease=lease, offsets=range(0, 20_002, 2))],
            [api.Selection(lease=lease)] * 50_000,
            [api.Selection(lease=lease, offsets=range(0, 1_000_000, 2))],
        ):
            ack = api.AckRequest(topic="orders", group="g", selections=selections)
            error = await refusal(stub.Ack(ack, timeout=PATIENCE_S))
            assert metadata_of(error)["quiver-code"] == "TooLarge"
