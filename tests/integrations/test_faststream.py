"""The FastStream broker on a real broker: handlers, publishers, failures, ends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware, Depends, FastStream
from faststream.exceptions import (
    FeatureNotSupportedException,
    NackMessage,
    RejectMessage,
    SetupError,
    StopConsume,
)
from pydantic import BaseModel

import quivermq
from quivermq.integrations.faststream import (
    QuiverBroker,
    QuiverMessage,
    QuiverResponse,
    QuiverRouter,
)

WAIT_S = 30.0


class Order(BaseModel):
    id: int
    item: str = "apples"


def make_broker(servers: str, **options: Any) -> QuiverBroker:
    return QuiverBroker(servers, logger=None, **options)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - of things that tell no one
            await asyncio.sleep(0.005)


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        await work

    asyncio.run(main())


async def until_done(client: quivermq.Client, topic: str, group: str) -> None:
    """Nothing of the topic is left for the group: neither waiting nor leased."""

    def is_done() -> bool:
        info = client.group(topic, group)
        return info.lag == 0 and info.in_flight == 0

    await until(is_done)


def test_a_handler_gets_models_and_its_result_is_published(
    servers: str, client: quivermq.Client, topic: str
) -> None:
    client.create_topic(f"{topic}.invoices")

    async def main() -> None:
        broker = make_broker(servers)
        billed: list[Order] = []

        @broker.subscriber(topic, group="billing")
        @broker.publisher(f"{topic}.invoices", key="customer-7", headers={"kind": "invoice"})
        async def bill(order: Order) -> Order:
            billed.append(order)
            return Order(id=order.id, item="an invoice")

        async with broker:
            await broker.start()
            receipt = await broker.publish(Order(id=7), topic, correlation_id="c-7")
            assert receipt == quivermq.Receipt(topic, 0, 0)
            await until(lambda: billed)
            await until_done(client, topic, "billing")
        assert billed == [Order(id=7)]
        (invoice,) = client.read(f"{topic}.invoices")
        assert invoice.value == b'{"id":7,"item":"an invoice"}'
        assert invoice.key == b"customer-7"
        assert invoice.headers["content-type"] == b"application/json"
        assert invoice.headers["kind"] == b"invoice"
        assert invoice.headers["correlation_id"] == b"c-7"

    run(main())


def test_bodies_are_decoded_by_their_content_type(
    servers: str, client: quivermq.Client, topic: str
) -> None:
    async def main() -> None:
        broker = make_broker(servers)
        found: list[Any] = []

        @broker.subscriber(topic, group="g")
        async def handle(body: Any) -> None:
            found.append(body)

        async with broker:
            await broker.start()
            for body in ("text", b"\xff bytes", {"a": [1]}, None):
                await broker.publish(body, topic)
            client.produce(topic, b'{"of": "another program"}')
            client.produce(topic, b"17", headers={"content-type": b"text/plain"})
            await until(lambda: len(found) == 6)
        texts = ["text", b"\xff bytes", {"a": [1]}, b"", {"of": "another program"}, "17"]
        assert found == texts

    run(main())


def test_a_message_has_its_fields_and_dependencies_work(servers: str, topic: str) -> None:
    async def main() -> None:
        broker = make_broker(servers)
        found: list[tuple[QuiverMessage, int]] = []

        def doubled(number: int) -> int:
            return 2 * number

        @broker.subscriber(topic, group="g")
        async def handle(
            number: int, message: QuiverMessage, twice: int = Depends(doubled)
        ) -> None:
            found.append((message, twice))

        async with broker:
            await broker.start()
            await broker.publish(21, topic, key="k", priority=3, headers={"a": "1", "b": b"\xff"})
            await until(lambda: found)
        ((message, twice),) = found
        assert twice == 42
        assert message.headers["a"] == "1"
        assert message.headers["b"] == b"\xff"
        assert message.message_id == f"{topic}-0-0"
        raw = message.raw_message
        assert (raw.key, raw.priority, raw.delivery_count) == (b"k", 3, 1)

    run(main())


def failing_handler(
    broker: QuiverBroker, topic: str, policy: AckPolicy | None, error: Exception
) -> list[int]:
    deliveries: list[int] = []
    options = {} if policy is None else {"ack_policy": policy}

    @broker.subscriber(topic, group="g", **options)
    async def handle(message: QuiverMessage) -> None:
        deliveries.append(message.raw_message.delivery_count)
        raise error

    return deliveries


@pytest.mark.parametrize(
    ("policy", "error", "deliveries", "dead", "reason"),
    [
        (None, ValueError("no pears"), [1, 2, 3], 1, "ValueError: no pears"),
        (AckPolicy.NACK_ON_ERROR, ValueError("no pears"), [1, 2, 3], 1, "ValueError: no pears"),
        (AckPolicy.REJECT_ON_ERROR, ValueError("no pears"), [1], 1, "ValueError: no pears"),
        (AckPolicy.ACK, ValueError("no pears"), [1], 0, ""),
        (AckPolicy.ACK_FIRST, ValueError("no pears"), [1], 0, ""),
        (None, RejectMessage(reason="unreadable"), [1], 1, "unreadable"),
        (None, NackMessage(delay=0.01), [1, 2, 3], 1, "failed 3 times"),
    ],
)
def test_a_message_that_fails_goes_where_the_policy_says(
    servers: str,
    client: quivermq.Client,
    topic: str,
    policy: AckPolicy | None,
    error: Exception,
    deliveries: list[int],
    dead: int,
    reason: str,
) -> None:
    client.alter_topic(topic, retry=quivermq.Retry(base=0.01, longest=0.01))

    async def main() -> None:
        broker = make_broker(servers)
        seen = failing_handler(broker, topic, policy, error)
        async with broker:
            await broker.start()
            await broker.publish("pears", topic)
            await until(lambda: len(seen) >= len(deliveries))
            await until_done(client, topic, "g")
            await until(lambda: client.group(topic, "g").dead >= dead)
            await until(lambda: not dead or client.dead_letters(topic))
        assert seen == deliveries

    run(main())
    assert client.group(topic, "g").dead == dead
    if dead:
        (letter,) = client.dead_letters(topic)
        assert letter.reason.endswith(reason)


def test_with_the_manual_policy_a_handler_settles_itself(
    servers: str, client: quivermq.Client, topic: str
) -> None:
    client.alter_topic(topic, retry=quivermq.Retry(base=0.01, longest=0.01))

    async def main() -> None:
        broker = make_broker(servers)
        seen: list[int] = []

        @broker.subscriber(topic, group="g", ack_policy=AckPolicy.MANUAL)
        async def handle(message: QuiverMessage) -> None:
            seen.append(message.raw_message.delivery_count)
            if len(seen) == 1:
                await message.nack()
            else:
                await message.ack()
                await message.reject()  # settled already

        async with broker:
            await broker.start()
            await broker.publish("pears", topic)
            await until(lambda: len(seen) == 2)
            await until_done(client, topic, "g")
        assert seen == [1, 2]
        assert client.group(topic, "g").dead == 0

    run(main())


def test_several_workers_handle_at_a_time_and_each_message_once(
    servers: str, client: quivermq.Client, topic: str
) -> None:
    async def main() -> None:
        broker = make_broker(servers)
        at_a_time, most, seen = 0, 0, []

        @broker.subscriber(topic, group="g", max_workers=4)
        async def handle(number: int) -> None:
            nonlocal at_a_time, most
            at_a_time += 1
            most = max(most, at_a_time)
            await until(lambda: most == 4)
            seen.append(number)
            at_a_time -= 1

        async with broker:
            await broker.publish_batch(*range(100), topic=topic)
            await broker.start()
            await until(lambda: len(seen) == 100)
            await until_done(client, topic, "g")
        assert most == 4
        assert sorted(seen) == list(range(100))

    run(main())


def test_batches_go_in_and_out_as_lists(servers: str, client: quivermq.Client, topic: str) -> None:
    client.create_topic(f"{topic}.doubled")

    async def main() -> None:
        broker = make_broker(servers)
        found: list[list[Order]] = []

        @broker.subscriber(topic, group="g", batch=True, prefetch=50)
        @broker.publisher(f"{topic}.doubled", batch=True)
        async def handle(orders: list[Order]) -> list[Order]:
            found.append(orders)
            return [Order(id=2 * order.id) for order in orders]

        async with broker:
            receipts = await broker.publish_batch(*(Order(id=n) for n in range(100)), topic=topic)
            assert sum(receipt.count for receipt in receipts) == 100
            await broker.start()
            await until(lambda: sum(map(len, found)) == 100)
            await until_done(client, topic, "g")
        assert [order.id for batch in found for order in batch] == list(range(100))
        assert max(map(len, found)) > 1
        doubled = [Order.model_validate_json(m.value).id for m in client.read(f"{topic}.doubled")]
        assert doubled == list(range(0, 200, 2))

    run(main())


def test_a_batch_that_fails_comes_again_as_a_whole(
    servers: str, client: quivermq.Client, topic: str
) -> None:
    client.alter_topic(topic, retry=quivermq.Retry(base=0.01, longest=0.01))

    async def main() -> None:
        broker = make_broker(servers)
        found: list[int] = []

        @broker.subscriber(topic, group="g", batch=True)
        async def handle(numbers: list[int]) -> None:
            found.extend(numbers)
            if len(found) <= 5:
                raise ValueError("once")

        async with broker:
            await broker.publish_batch(*range(5), topic=topic)
            await broker.start()
            await until(lambda: len(found) >= 10)
            await until_done(client, topic, "g")
        assert sorted(found) == sorted([*range(5), *range(5)])

    run(main())


def test_a_router_has_a_prefix_and_middlewares_see_both_ways(
    servers: str, client: quivermq.Client, topic: str
) -> None:
    for name in ("in", "out"):
        client.create_topic(f"{topic}.{name}")

    async def main() -> None:
        seen: list[str] = []

        class Noting(BaseMiddleware):
            async def consume_scope(self, call_next: Any, msg: Any) -> Any:
                seen.append(f"consumes {msg.raw_message.topic}")
                return await call_next(msg)

            async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
                seen.append(f"publishes to {cmd.destination}")
                return await call_next(cmd)

        router = QuiverRouter(prefix=f"{topic}.")

        @router.subscriber("in", group="g")
        @router.publisher("out")
        async def handle(body: str) -> str:
            return body.upper()

        broker = make_broker(servers, middlewares=[Noting], routers=[router])
        async with broker:
            await broker.start()
            await broker.publish("pears", f"{topic}.in")
            await until(lambda: len(seen) == 3)
        into, out = f"{topic}.in", f"{topic}.out"
        assert seen == [f"publishes to {into}", f"consumes {into}", f"publishes to {out}"]

    run(main())


def test_a_result_goes_where_the_message_asks_for_it(
    servers: str, client: quivermq.Client, topic: str
) -> None:
    client.create_topic(f"{topic}.replies")

    async def main() -> None:
        broker = make_broker(servers)

        @broker.subscriber(topic, group="g")
        async def handle(number: int) -> QuiverResponse:
            return QuiverResponse(number + 1, key="answer", headers={"by": "handle"})

        replies = broker.subscriber(f"{topic}.replies", group="asker")
        async with broker:
            await broker.start()
            await broker.publish(41, topic, reply_to=f"{topic}.replies", correlation_id="q-1")
            reply = await replies.get_one(timeout=WAIT_S)
            assert reply is not None
            await reply.ack()
            assert await reply.decode() == 42
            assert reply.correlation_id == "q-1"
            assert reply.headers["by"] == "handle"
            assert reply.raw_message.key == b"answer"
            assert reply.reply_to == ""
            assert await replies.get_one(timeout=0.01) is None
            with pytest.raises(FeatureNotSupportedException, match="reply_to"):
                await broker.request(41, topic)

    run(main())


def test_a_subscriber_without_a_handler_is_iterated(
    servers: str, client: quivermq.Client, topic: str
) -> None:
    async def main() -> None:
        broker = make_broker(servers)
        subscriber = broker.subscriber(topic, group="g")
        found = []
        async with broker:
            await broker.publish_batch(1, 2, 3, topic=topic)
            async for message in subscriber:
                found.append(await message.decode())
                await message.ack()
                if len(found) == 3:
                    break
        assert found == [1, 2, 3]

        @broker.subscriber(topic, group="h")
        async def handle(number: int) -> None: ...

        (handled,) = [each for each in broker.subscribers if each.calls]
        with pytest.raises(SetupError, match="cannot be iterated"):
            await handled.get_one()

    run(main())


def test_stopping_lets_handlers_finish_and_gives_back_the_rest(
    servers: str, client: quivermq.Client, topic: str
) -> None:
    async def main() -> None:
        broker = make_broker(servers)
        begun, may_end, ended = asyncio.Event(), asyncio.Event(), []

        @broker.subscriber(topic, group="g", visibility=600.0)
        async def handle(number: int) -> None:
            begun.set()
            await may_end.wait()
            ended.append(number)

        await broker.connect()
        await broker.publish_batch(*range(10), topic=topic)
        await broker.start()
        await begun.wait()
        (subscriber,) = broker.subscribers
        stopping = asyncio.create_task(broker.stop())
        await until(lambda: not subscriber.running)
        may_end.set()
        await stopping
        assert ended == [0]

    run(main())
    # All others at once, though their leases would have lasted ten minutes.
    again = client.poll(topic, group="g", max_messages=100, wait=WAIT_S)
    assert [(m.value, m.delivery_count) for m in again] == [(b"%d" % n, 1) for n in range(1, 10)]


def test_a_handler_that_does_not_end_in_time_is_cancelled_and_its_message_given_back(
    servers: str, client: quivermq.Client, topic: str
) -> None:
    async def main() -> None:
        broker = make_broker(servers, graceful_timeout=0.1)
        begun = asyncio.Event()

        @broker.subscriber(topic, group="g", visibility=600.0)
        async def handle(number: int) -> None:
            begun.set()
            await asyncio.Event().wait()

        await broker.connect()
        await broker.publish(1, topic)
        await broker.start()
        await begun.wait()
        await broker.stop()

    run(main())
    (again,) = client.poll(topic, group="g", wait=WAIT_S)
    assert again.value == b"1"


def test_a_handler_can_stop_its_subscriber(
    servers: str, client: quivermq.Client, topic: str
) -> None:
    async def main() -> None:
        broker = make_broker(servers)
        seen: list[int] = []

        @broker.subscriber(topic, group="g", visibility=600.0)
        async def handle(number: int) -> None:
            seen.append(number)
            if number == 2:
                raise StopConsume

        async with broker:
            await broker.publish_batch(*range(5), topic=topic)
            await broker.start()
            await until(lambda: 2 in seen)
            (subscriber,) = broker.subscribers
            await until(lambda: not subscriber.running)
            # While the broker goes on, other consumers get the rest, and what failed.
            others: set[bytes] = set()
            async with asyncio.timeout(WAIT_S):
                while others != {b"2", b"3", b"4"}:
                    polled = await asyncio.to_thread(client.poll, topic, "g", wait=1.0)
                    others |= {message.value for message in polled}
        assert seen == [0, 1, 2]

    run(main())


def test_a_subscriber_goes_on_when_its_topic_was_deleted_and_is_there_again(
    servers: str, client: quivermq.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quivermq.integrations.faststream.subscriber._AGAIN_S", 0.05)

    async def main() -> None:
        told: list[str] = []
        logger = logging.getLogger("told")
        handler = logging.Handler()
        handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
        monkeypatch.setattr(logger, "handlers", [handler])
        broker = QuiverBroker(servers, logger=logger)
        seen: list[int] = []

        @broker.subscriber(topic, group="g", max_workers=2)
        async def handle(number: int) -> None:
            seen.append(number)

        async with broker:
            await broker.start()
            await broker.publish(1, topic)
            await until(lambda: seen == [1])
            client.delete_topic(topic)
            await until(lambda: any("ended" in line for line in told))
            client.create_topic(topic)
            client.produce(topic, b"2")
            await until(lambda: seen == [1, 2])

    run(main())


def test_the_workers_of_a_subscription_that_was_closed_end(servers: str, topic: str) -> None:
    async def main() -> None:
        broker = make_broker(servers)

        @broker.subscriber(topic, group="g", max_workers=2)
        async def handle(number: int) -> None: ...

        async with broker:
            await broker.start()
            (subscriber,) = broker.subscribers
            tasks = list(subscriber.tasks)  # type: ignore[attr-defined]
            await broker._connection.close()  # type: ignore[union-attr]
            await until(lambda: all(task.done() for task in tasks))

    run(main())


def test_an_application_runs_it(servers: str, topic: str) -> None:
    async def main() -> None:
        broker = make_broker(servers)
        app = FastStream(broker, logger=None)
        seen: list[int] = []

        @broker.subscriber(topic, group="g")
        async def handle(number: int) -> None:
            seen.append(number)
            app.exit()

        @app.after_startup
        async def send() -> None:
            assert await broker.ping()
            await broker.publish(7, topic)

        async with asyncio.timeout(WAIT_S):
            await app.run()
        assert seen == [7]
        assert not await broker.ping()

    run(main())
