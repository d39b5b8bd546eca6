"""Spans of clients, through a real broker."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.trace import SpanKind, StatusCode

import quivermq
import quivermq.aio
from quivermq.errors import InvalidRequest, QuiverError, TopicNotFound
from quivermq.tracing import context_of
from quivermq.tracing.contexts import LINKS_MAX, TRACEPARENT
from tests.tracing.stage import (
    attribute,
    in_thread,
    is_child,
    linked,
    span_id,
    traceparent,
    tracing,
)
from tests.transports.stage import on_loop


@on_loop
async def test_one_trace_leads_from_a_send_to_its_append(tmp_path: Path) -> None:
    async with (
        tracing(tmp_path) as (server, spans),
        quivermq.aio.connect(server.listen, tracing=spans.provider) as client,
    ):
        await client.create_topic("orders")
        with spans.tracer.start_as_current_span("checkout"):
            await client.produce("orders", b"one", headers={"shop": b"7"})
        (message,) = await client.poll("orders", "billing")
    checkout, sent, append = map(spans.one, ("checkout", "send orders", "append orders"))
    assert is_child(sent, checkout)
    assert is_child(append, sent)
    assert (sent.kind, append.kind) == (SpanKind.PRODUCER, SpanKind.SERVER)
    assert message.headers["shop"] == b"7"
    assert f"-{span_id(sent):016x}-".encode() in message.headers[TRACEPARENT]
    assert dict(sent.attributes or {}) == {
        "messaging.system": "quivermq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.quivermq.message.offset": 0,
    }
    assert attribute(append, "messaging.quivermq.node") == 1
    assert [event.name for event in append.events] == ["written"]


@on_loop
async def test_a_poll_links_to_the_producers_and_its_delivery_is_below_it(tmp_path: Path) -> None:
    async with (
        tracing(tmp_path) as (server, spans),
        quivermq.aio.connect(server.listen, tracing=spans.provider) as client,
    ):
        await client.create_topic("orders")
        for value in (b"one", b"two"):
            await client.produce("orders", value)
        messages = await client.poll("orders", "billing")
        await client.ack(messages)
        empty = await client.poll("orders", "billing", wait=0.0)
    sent = spans.all("send orders")
    received, nothing = spans.all("receive orders")
    deliver, ack, settle = map(spans.one, ("deliver orders", "ack orders", "settle orders"))
    assert linked(received) == [span_id(each) for each in sent]
    assert attribute(received, "messaging.batch.message_count") == 2
    assert attribute(received, "messaging.consumer.group.name") == "billing"
    assert received.kind == SpanKind.CLIENT
    assert is_child(deliver, received)
    # No span of the caller's: the acknowledgement goes where the delivery went.
    assert is_child(ack, deliver)
    assert is_child(settle, ack)
    assert attribute(ack, "messaging.operation.type") == "settle"
    assert empty == []
    assert attribute(nothing, "messaging.batch.message_count") == 0


@on_loop
async def test_a_blocking_client_has_the_spans_of_its_thread_as_parents(tmp_path: Path) -> None:
    async with tracing(tmp_path) as (server, spans):

        def work() -> None:
            with quivermq.connect(server.listen, tracing=spans.provider) as client:
                client.create_topic("orders")
                with spans.tracer.start_as_current_span("checkout"):
                    client.produce("orders", b"one")
                    with client.producer() as producer:
                        producer.send("orders", b"two")
                with spans.tracer.start_as_current_span("bill"):
                    batch = client.poll_arrow("orders", "billing", 2)
                    assert batch.table.num_rows == 2
                    batch.ack()

        await in_thread(work)
    checkout, bill = spans.one("checkout"), spans.one("bill")
    single, batch = spans.all("send orders")
    assert is_child(single, checkout)
    assert is_child(batch, checkout)
    received, ack = spans.one("receive orders"), spans.one("ack orders")
    assert is_child(received, bill)
    assert is_child(ack, bill)
    assert set(linked(received)) == {span_id(single), span_id(checkout)}
    assert [is_child(each, single) for each in spans.all("append orders")] == [True, False]
    assert [is_child(each, batch) for each in spans.all("append orders")] == [False, True]


@on_loop
async def test_messages_of_a_batch_carry_the_spans_of_their_senders(tmp_path: Path) -> None:
    async with tracing(tmp_path) as (server, spans):

        def work() -> list[dict[str, bytes]]:
            with quivermq.connect(server.listen, tracing=spans.provider) as client:
                client.create_topic("orders")
                with client.producer(linger=10.0) as producer:
                    for name in ("checkout", "refund"):
                        with spans.tracer.start_as_current_span(name):
                            producer.send("orders", name.encode())
                    producer.send("orders", b"of no span")
                    producer.send("orders", b"own", headers={TRACEPARENT: _foreign(7)})
                return [dict(each.headers) for each in client.read("orders")]

        first, second, third, fourth = await in_thread(work)
    sent = spans.one("send orders")
    checkout, refund = spans.one("checkout"), spans.one("refund")
    assert f"-{span_id(checkout):016x}-".encode() in first[TRACEPARENT]
    assert f"-{span_id(refund):016x}-".encode() in second[TRACEPARENT]
    # Without a sender's span, the batch's own: consumers find something to link to.
    assert f"-{span_id(sent):016x}-".encode() in third[TRACEPARENT]
    assert fourth == {TRACEPARENT: _foreign(7)}
    assert linked(sent) == [span_id(checkout), span_id(refund), 7]
    assert sent.parent is None
    assert attribute(sent, "messaging.batch.message_count") == 4
    assert is_child(spans.one("append orders"), sent)


@on_loop
async def test_lists_carry_the_span_of_their_sender(tmp_path: Path) -> None:
    async with (
        tracing(tmp_path) as (server, spans),
        quivermq.aio.connect(server.listen, tracing=spans.provider) as client,
    ):
        await client.create_topic("orders")
        async with client.producer() as producer:
            with spans.tracer.start_as_current_span("checkout"):
                await producer.send_many("orders", [b"1", b"2"], content_type="text/plain")
                await producer.flush()
            checkout, (sent,) = spans.one("checkout"), spans.all("send orders")
            await producer.send_many("orders", [b"3"])
        headers = [dict(each.headers) async for each in client.read("orders")]
    assert is_child(sent, checkout)
    assert linked(sent) == [span_id(checkout)]
    assert attribute(sent, "messaging.batch.message_count") == 2
    for each in headers[:2]:
        assert f"-{span_id(checkout):016x}-".encode() in each[TRACEPARENT]
        assert each["content-type"] == b"text/plain"
    later = spans.all("send orders")[1]
    assert f"-{span_id(later):016x}-".encode() in headers[2][TRACEPARENT]


@on_loop
async def test_links_are_bounded(tmp_path: Path) -> None:
    async with (
        tracing(tmp_path) as (server, spans),
        quivermq.aio.connect(server.listen, tracing=spans.provider) as client,
    ):
        await client.create_topic("orders")
        headers = [{TRACEPARENT: _foreign(number)} for number in range(1, LINKS_MAX + 100)]
        async with client.producer(linger=10.0) as producer:
            for each in headers:
                await producer.send("orders", b"", headers=each)
        await client.poll("orders", "billing", len(headers))
        await client.poll_arrow("orders", "shipping", len(headers))
    first = [*range(1, LINKS_MAX + 1)]
    assert linked(spans.one("send orders")) == first
    assert [linked(each) for each in spans.all("receive orders")] == [first, first]


@on_loop
async def test_many_messages_carry_the_span_of_their_call(tmp_path: Path) -> None:
    own = {TRACEPARENT: _foreign(7)}
    async with (
        tracing(tmp_path) as (server, spans),
        quivermq.aio.connect(server.listen, tracing=spans.provider) as client,
    ):
        await client.create_topic("orders")
        await client.produce_many("orders", [b"a", b"b"])
        await client.produce_many("orders", [b"c", b"d", b"e"], headers=[{"x": b"1"}, None, own])
        await client.produce_many("orders", pa.array([b"f"]))
        await client.produce_many("orders", pa.table({"value": [b"g"], "key": [b"k"]}))
        await client.produce_many("orders", pa.record_batch({"value": [b"h"]}))
        found = [dict(each.headers) async for each in client.read("orders")]
    contexts = [traceparent(each).encode() for each in spans.all("send orders")]
    one, two, three, four, five = ({TRACEPARENT: each} for each in contexts)
    assert found == [one, one, {"x": b"1", **two}, two, own, three, four, five]
    counts = [attribute(each, "messaging.batch.message_count") for each in spans.all("send orders")]
    assert counts == [2, 3, None, None, None]


@on_loop
async def test_a_delivery_runs_in_a_span_below_the_producers(tmp_path: Path) -> None:
    async with tracing(tmp_path) as (server, spans):
        handled = asyncio.Event()

        async def bill(message: quivermq.aio.AsyncLeasedMessage) -> None:
            with spans.tracer.start_as_current_span("bill"):
                await asyncio.sleep(0)
            handled.set()

        async with quivermq.aio.connect(server.listen, tracing=spans.provider) as client:
            await client.create_topic("orders")
            await client.produce("orders", b"one")
            # The span in which a program subscribes ends long before messages come.
            with spans.tracer.start_as_current_span("start"):
                subscription = client.subscribe("orders", group="billing", handler=bill)
            await handled.wait()
            await subscription.close()
        (deliver,) = await spans.wait("deliver orders")
    sent, process, work = map(spans.one, ("send orders", "process orders", "bill"))
    assert is_child(process, sent)
    assert is_child(work, process)
    assert process.kind == SpanKind.CONSUMER
    assert linked(process) == [span_id(sent), span_id(deliver)]
    assert deliver.parent is None
    assert attribute(process, "messaging.quivermq.message.delivery_count") == 1
    ack = spans.one("ack orders")
    assert is_child(ack, sent)
    assert is_child(spans.one("settle orders"), ack)


@on_loop
async def test_threads_that_handle_have_the_span_too(tmp_path: Path) -> None:
    async with tracing(tmp_path) as (server, spans):

        def work() -> None:
            with quivermq.connect(server.listen, tracing=spans.provider) as client:
                client.create_topic("orders")
                client.produce("orders", b"one")

                def bill(message: quivermq.LeasedMessage) -> None:
                    with spans.tracer.start_as_current_span("bill"):
                        message.ack()
                    subscription.close()

                subscription = client.subscribe("orders", group="billing", handler=bill)
                assert subscription.wait(20)

        await in_thread(work)
    sent, process, bill = map(spans.one, ("send orders", "process orders", "bill"))
    assert is_child(process, sent)
    assert is_child(bill, process)
    # Settled by a task that many callers share: its parent is this caller's span all the same.
    assert is_child(spans.one("ack orders"), bill)


@on_loop
async def test_what_many_settle_together_links_to_all_of_them(tmp_path: Path) -> None:
    async with (
        tracing(tmp_path) as (server, spans),
        quivermq.aio.connect(server.listen, tracing=spans.provider) as client,
    ):
        await client.create_topic("orders")
        await client.produce_many("orders", [b"a", b"b", b"c"])
        async with client.subscribe("orders", group="billing") as subscription:
            messages = [await anext(subscription) for _ in range(3)]
            for name, message in zip("abc", messages, strict=True):
                with spans.tracer.start_as_current_span(name):
                    await subscription.ack([message])
            await subscription.flush()
    acks = spans.all("ack orders")
    assert sum(attribute(each, "messaging.batch.message_count") for each in acks) == 3
    together = {each for ack in acks for each in linked(ack)}
    assert {span_id(spans.one(name)) for name in "abc"} <= together


@on_loop
async def test_errors_are_on_the_spans(tmp_path: Path) -> None:
    async with (
        tracing(tmp_path) as (server, spans),
        quivermq.aio.connect(server.listen, tracing=spans.provider, timeout=2.0) as client,
    ):
        with pytest.raises(TopicNotFound):
            await client.produce("nothing", b"")
        await client.create_topic("orders")
        with pytest.raises(InvalidRequest):
            await client.produce_many("orders", [b"a"], partition=7)
        await client.produce("orders", b"one")
        (message,) = await client.poll("orders", "billing")
        await message.nack(0)
        failed = asyncio.Event()

        def fail(_: object) -> None:
            failed.set()
            raise ArithmeticError("no such sum")

        async with client.subscribe("orders", group="billing", handler=fail):
            await failed.wait()
    for name, code in (
        ("send nothing", "TopicNotFound"),
        ("process orders", "ArithmeticError"),
    ):
        span = spans.all(name)[0]
        assert span.status.status_code is StatusCode.ERROR
        assert attribute(span, "error.type") == code
        assert [event.name for event in span.events] == ["exception"]
    assert attribute(spans.all("send orders")[0], "error.type") == "InvalidRequest"
    assert len(spans.all("nack orders")) >= 2


@on_loop
async def test_a_batch_that_fails_ends_its_span_with_the_error(tmp_path: Path) -> None:
    async with (
        tracing(tmp_path) as (server, spans),
        quivermq.aio.connect(server.listen, tracing=spans.provider, timeout=2.0) as client,
    ):
        await client.create_topic("orders")
        producer = client.producer()
        await producer.send("orders", b"one")
        await producer.flush()
        await client.delete_topic("orders")
        delivery = await producer.send("orders", b"two")
        with pytest.raises(QuiverError):
            await delivery
        await producer.abandon()
    stored, failed = spans.all("send orders")
    assert stored.status.status_code is StatusCode.UNSET
    assert failed.status.status_code is StatusCode.ERROR
    assert attribute(failed, "error.type") == "TopicNotFound"


@on_loop
async def test_a_batch_that_is_given_up_on_its_way_ends_its_span(tmp_path: Path) -> None:
    async with tracing(tmp_path) as (server, spans):
        client = await quivermq.aio.connect(server.listen, tracing=spans.provider)
        await client.create_topic("orders")
        producer = client.producer()
        await producer.send("orders", b"one")
        await producer.flush()
        held = asyncio.Event()
        server.broker.service.submit = lambda *_: held.set()  # type: ignore[assignment]
        await producer.send("orders", b"two")
        await held.wait()
        await producer.abandon()
        await client.close()
    _, given_up = spans.all("send orders")
    assert attribute(given_up, "error.type") == "ConnectionFailed"


@on_loop
async def test_iterated_messages_give_their_context(tmp_path: Path) -> None:
    async with (
        tracing(tmp_path) as (server, spans),
        quivermq.aio.connect(server.listen, tracing=spans.provider) as client,
    ):
        await client.create_topic("orders")
        await client.produce("orders", b"one")
        async with client.subscribe("orders", group="billing") as subscription:
            message = await anext(subscription)
            with spans.tracer.start_as_current_span("bill", context=context_of(message)):
                await message.ack()
    assert is_child(spans.one("bill"), spans.one("send orders"))
    assert is_child(spans.one("ack orders"), spans.one("bill"))


@on_loop
async def test_members_of_sticky_groups_receive_too(tmp_path: Path) -> None:
    async with tracing(tmp_path) as (server, spans):

        def work() -> None:
            with quivermq.connect(server.listen, tracing=spans.provider) as client:
                client.create_topic("orders")
                client.produce("orders", b"one")
                with client.consumer("orders", group="sticky") as consumer:
                    while not consumer.poll(wait=5.0):
                        spans.forget()

        with spans.tracer.start_as_current_span("bill"):
            await in_thread(work)
        async with quivermq.aio.connect(server.listen, tracing=spans.provider) as client:
            await client.produce("orders", b"two")
            async with client.consumer("orders", group="other") as consumer:
                while len(await consumer.poll(wait=5.0)) < 1:
                    pass
    first, *_, last = spans.all("receive orders")
    assert is_child(first, spans.one("bill"))
    assert attribute(first, "messaging.consumer.group.name") == "sticky"
    assert len(linked(first)) == 1
    assert linked(last)


@on_loop
async def test_clients_that_do_not_trace_leave_messages_as_they_are(tmp_path: Path) -> None:
    async with (
        tracing(tmp_path) as (server, spans),
        quivermq.aio.connect(server.listen) as client,
    ):
        await client.create_topic("orders")
        with spans.tracer.start_as_current_span("checkout"):
            await client.produce("orders", b"one")
        (message,) = await client.poll("orders", "billing")
        assert message.headers == {}
        assert not message.lease.trace
        await message.ack()
    assert set(spans.names) == {"checkout", "append orders", "deliver orders", "settle orders"}
    assert spans.one("append orders").parent is None


def _foreign(number: int) -> bytes:
    """A context of another program."""
    return f"00-{number:032x}-{number:016x}-01".encode()
