"""Spans of a broker, for requests of every door."""

import asyncio
from pathlib import Path

import grpc.aio
import httpx
from opentelemetry.trace import SpanKind, StatusCode

import quivermq.aio
from quivermq.batches import Frame, encode_batch
from quivermq.node import BROKER
from quivermq.tracing.contexts import TRACEPARENT, Carried, carried_by
from quivermq.tracing.replication_spans import ARRIVED_MAX, MARKED_MAX, ReplicationSpans
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import proto
from tests.tracing.stage import Spans, attribute, is_child, traceparent, tracing
from tests.transports import grpc_stage
from tests.transports.stage import (
    PATIENCE_S,
    Talker,
    make_topic,
    on_loop,
    on_served_loop,
    store,
)

FOREIGN = f"00-{9:032x}-{7:016x}-01"
ORDERS = "/v1/topics/orders"


@on_served_loop
async def test_the_header_of_an_http_request_is_the_parent(tmp_path: Path) -> None:
    async with (
        tracing(tmp_path, http="127.0.0.1:0", auto_create_topics=True) as (server, spans),
        httpx.AsyncClient(base_url=f"http://{server.http}", timeout=PATIENCE_S) as client,
        quivermq.aio.connect(server.listen) as reader,
    ):
        headers = {"traceparent": FOREIGN, "tracestate": "shop=7"}
        body = {"messages": [{"value": "one"}]}
        answer = await client.post(f"{ORDERS}/messages", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        await client.post(f"{ORDERS}/messages", json=body)
        more = [{"shop": "7"}, {TRACEPARENT: "own"}]
        body = {"messages": [{"value": "", "headers": each} for each in more]}
        await client.post(f"{ORDERS}/messages", json=body, headers=headers)
        await client.post(
            f"{ORDERS}/groups/billing/poll", json={"max_messages": 1}, headers=headers
        )
        messages = [dict(each.headers) async for each in reader.read("orders")]
    append, alone, _ = spans.all("append orders")
    assert append.parent is not None
    assert (append.parent.trace_id, append.parent.span_id) == (9, 7)
    assert append.parent.is_remote
    assert append.parent.trace_state.get("shop") == "7"
    assert alone.parent is None
    # So that consumers find the way back to programs that know nothing of message headers.
    carried = {TRACEPARENT: FOREIGN.encode(), "tracestate": b"shop=7"}
    assert messages == [carried, {}, {"shop": b"7", **carried}, {TRACEPARENT: b"own"}]
    deliver = spans.one("deliver orders")
    assert deliver.parent is not None
    assert deliver.parent.span_id == 7


@on_served_loop
async def test_the_metadata_of_a_grpc_call_is_the_parent(tmp_path: Path) -> None:
    async with (
        tracing(tmp_path, grpc="127.0.0.1:0") as (server, spans),
        grpc.aio.insecure_channel(server.grpc) as channel,
    ):
        stub = grpc_stage.Stub(channel)
        await grpc_stage.make_topic(stub)
        request = api.ProduceRequest(
            topic="orders", partition=0, messages=grpc_stage.plain(b"one", b"two")
        )
        await stub.Produce(request, timeout=PATIENCE_S, metadata=(("traceparent", FOREIGN),))
        await stub.Produce(request, timeout=PATIENCE_S)
        wrong = api.ProduceRequest(topic="orders", partition=9, messages=grpc_stage.plain(b""))
        await grpc_stage.refusal(stub.Produce(wrong, timeout=PATIENCE_S))
        polled = await grpc_stage.poll(stub)
    found = [dict(each.headers) for each in polled.deliveries[0].messages]
    assert found == [{TRACEPARENT: FOREIGN.encode()}] * 2 + [{}, {}]
    append, alone, refused = spans.all("append orders")
    assert append.parent is not None
    assert (append.parent.trace_id, append.parent.span_id) == (9, 7)
    assert attribute(append, "messaging.batch.message_count") == 2
    assert alone.parent is None
    assert refused.status.status_code is StatusCode.ERROR
    assert attribute(refused, "error.type") == "InvalidRequest"
    assert attribute(spans.one("deliver orders"), "messaging.batch.message_count") == 4


@on_loop
async def test_a_request_over_tcp_carries_its_context(tmp_path: Path) -> None:
    async with tracing(tmp_path) as (server, spans):
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        produce = proto.Produce(topic="orders", partition=0)
        request = proto.Request(id=7, produce=produce, traceparent=FOREIGN)
        await talker.ask(request, encode_batch([b"one", b"two"]))
        nonsense = proto.Request(id=8, produce=produce, traceparent="00-nonsense" * 1_000)
        await talker.ask(nonsense, encode_batch([b"three"]))
        refused = await talker.ask(
            proto.Request(id=9, produce=proto.Produce(topic="nothing"), traceparent=FOREIGN),
            encode_batch([b"four"]),
        )
        assert refused.error.code == "TopicNotFound"
        talker.close()
    append, other = spans.all("append orders")
    assert append.parent is not None
    assert (append.parent.trace_id, append.parent.span_id) == (9, 7)
    assert other.parent is None
    failed = spans.one("append nothing")
    assert (failed.status.status_code, attribute(failed, "error.type")) == (
        StatusCode.ERROR,
        "TopicNotFound",
    )
    assert failed.kind is SpanKind.SERVER


@on_loop
async def test_a_poll_in_vain_has_no_span_and_one_that_is_cancelled_none_either(
    tmp_path: Path,
) -> None:
    async with tracing(tmp_path) as (server, spans):
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        poll = proto.Poll(topic="orders", group="g", partitions=[0], consumer=1, messages_max=9)
        answer = await talker.ask(proto.Request(id=5, poll=poll))
        assert not answer.polled.leased
        assert not answer.polled.traceparent
        poll.wait_ms = 60_000
        talker.say(proto.Request(id=6, poll=poll))
        talker.say(proto.Request(id=7, cancel=proto.Cancel(id=6)))
        await store(talker, b"one")
        poll.wait_ms = 0
        answer = await talker.ask(proto.Request(id=8, poll=poll))
        talker.close()
    deliver = spans.one("deliver orders")
    assert answer.polled.traceparent == traceparent(deliver)
    assert set(spans.names) == {"append orders", "deliver orders"}


@on_loop
async def test_a_settlement_that_is_cut_off_ends_its_span(tmp_path: Path) -> None:
    async with tracing(tmp_path) as (server, spans):
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        held = asyncio.Event()
        handlers = server.broker.service._handlers
        settle = handlers["settle"]

        async def slow(request: proto.Request) -> object:
            held.set()
            await asyncio.Event().wait()
            return await settle(request)

        handlers["settle"] = slow  # type: ignore[assignment]
        body = proto.Settle(topic="orders", group="g", consumer=1)
        body.settlements.add(lease=5)
        talker.say(proto.Request(id=5, settle=body))
        await held.wait()
        talker.close()
        (span,) = await spans.wait("settle orders")
    assert attribute(span, "error.type") == "Cancelled"
    assert server.broker.tracer is not None
    assert not server.broker.tracer._open


@on_loop
async def test_what_the_broker_asks_itself_has_no_spans(tmp_path: Path) -> None:
    async with tracing(tmp_path) as (server, spans):
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        request = proto.Request(produce=proto.Produce(topic="orders"))
        await server.broker.service.call_as_broker(request, [encode_batch([b"one"])])
        answered = asyncio.Event()
        server.broker.service.submit(
            request, [encode_batch([b"one"])], lambda *_: answered.set(), caller=BROKER
        )
        await answered.wait()
        talker.close()
    assert spans.names == []


def replication(spans: Spans) -> ReplicationSpans:
    found = ReplicationSpans(spans.tracer, 2)
    found.name_of = lambda partition: ("orders", 3) if partition == b"p" else None
    return found


def frames(count: int) -> list[Frame]:
    return [encode_batch([f"{number}".encode()]) for number in range(count)]


def test_a_follower_ends_its_span_when_the_batch_is_on_its_disk() -> None:
    spans = Spans()
    leader, follower = replication(spans), replication(spans)
    sent = frames(3)
    with spans.tracer.start_as_current_span("append") as append:
        leader.watch(sent[1:], append, carried_by(append))
        message = proto.PeerMessage(partition=b"p")
        stamped = [each.stamped(term=1, index=1, base_offset=4, timestamp_ms=5) for each in sent]
        leader.mark(message, stamped)
        assert [each.frame for each in message.traces] == [1, 2]
        leader.write(stamped[:2])
        leader.unwatch(sent)
        later = proto.PeerMessage(partition=b"p")
        leader.mark(later, stamped)
        assert not later.traces
    follower.arrive(message, stamped)
    follower.write(stamped[:2])
    (replicate,) = spans.all("replicate orders")
    assert is_child(replicate, spans.one("append"))
    assert attribute(replicate, "messaging.quivermq.node") == 2
    assert attribute(replicate, "messaging.destination.partition.id") == "3"
    assert attribute(replicate, "messaging.quivermq.message.offset") == 4
    assert [event.name for event in spans.one("append").events] == ["written"]
    follower.close()
    stored, unstored = spans.all("replicate orders")
    assert stored.status.status_code is StatusCode.UNSET
    assert attribute(unstored, "error.type") == "Unstored"


def test_contexts_of_a_peer_are_bounded_and_may_be_nonsense() -> None:
    spans = Spans()
    follower = replication(spans)
    message = proto.PeerMessage(partition=b"p")
    sent = frames(2)
    for number in (0, 1, 2, 1 << 31):
        message.traces.add(frame=number, traceparent="nonsense", tracestate="=" * 9_999)
    follower.arrive(message, sent)
    follower.write(sent)
    assert [span.parent for span in spans.all("replicate orders")] == [None, None]
    follower.arrive(proto.PeerMessage(partition=b"another", traces=message.traces), sent)
    follower.write(sent)
    assert len(spans.all("replicate orders")) == 2
    spans.forget()
    many = frames(ARRIVED_MAX + 5)
    for each in many:
        message = proto.PeerMessage(partition=b"p")
        message.traces.add(frame=0, traceparent=FOREIGN)
        follower.arrive(message, [each])
    assert len(spans.all("replicate orders")) == 5
    assert len(follower._arrived) == ARRIVED_MAX


def test_a_message_to_a_follower_has_so_many_contexts_at_most() -> None:
    spans = Spans()
    leader = replication(spans)
    sent = frames(MARKED_MAX + 1)
    leader.watch(sent, spans.tracer.start_span("append"), Carried(FOREIGN))
    message = proto.PeerMessage(partition=b"p")
    leader.mark(message, sent)
    assert len(message.traces) == MARKED_MAX
