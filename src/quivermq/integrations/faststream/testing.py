"""A broker in memory, for tests of handlers: nothing is connected, nothing is stored.

    async with TestQuiverBroker(broker) as test:
        await test.publish({"id": 7}, "orders")
        bill.mock.assert_called_once_with({"id": 7})

A published message is handled before `publish` returns, by one subscriber of each group. What a
handler raises is raised by `publish`: nothing is delivered again here.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final, cast

from faststream._internal.testing.broker import EnterType, TestBroker, change_producer

from quivermq.client import (
    AsyncClient,
    AsyncLeasedMessage,
    BatchReceipt,
    ConnectOptions,
    Lease,
    Receipt,
)
from quivermq.integrations.faststream.broker import QuiverBroker
from quivermq.integrations.faststream.producer import QuiverProducer
from quivermq.integrations.faststream.publish_command import QuiverPublishCommand
from quivermq.integrations.faststream.publisher import QuiverPublisher
from quivermq.integrations.faststream.subscriber import QuiverSubscriber

_NOWHERE: Final = "127.0.0.1:1"


class TestQuiverBroker(TestBroker[QuiverBroker, EnterType], broker=QuiverBroker):
    """Runs the handlers of brokers in memory; with `with_real=True`, on the real cluster."""

    def create_publisher_fake_subscriber(
        self, broker: QuiverBroker, publisher: QuiverPublisher
    ) -> tuple[QuiverSubscriber, bool]:
        """The subscriber that sees what a publisher publishes, and whether it is a real one."""
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        # Of a group that no consumer has, if the cluster is real.
        group = f"faststream-test-{secrets.token_hex(8)}"
        fake = broker.subscriber(
            publisher.topic, group=group, batch=publisher.to.batch, persistent=False
        )
        return fake, False

    @contextmanager
    def _patch_producer(self, broker: QuiverBroker) -> Iterator[None]:
        producer = MemoryProducer(broker, self.brokers)
        with change_producer(broker.config.broker_config, producer):
            yield

    async def _fake_connect(  # type: ignore[override]
        self, broker: QuiverBroker, *_: Any, **__: Any
    ) -> AsyncClient:
        # It connects when it is used, and in memory nothing uses it.
        client = AsyncClient(ConnectOptions.of(_NOWHERE, token=None, tls=False, timeout=1.0))
        broker._attach(client)  # noqa: SLF001 - the same package
        return client


class MemoryProducer(QuiverProducer):
    """Hands what is published to the handlers of its topic."""

    def __init__(self, broker: QuiverBroker, brokers: Sequence[QuiverBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)  # noqa: SLF001 - as FastStream's own
        self._brokers = brokers
        self._offsets: dict[str, Iterator[int]] = {}

    async def publish(self, cmd: QuiverPublishCommand) -> Receipt:
        message = await self._message(cmd, cmd.body)
        await self._deliver(cmd.destination, [message])
        return Receipt(cmd.destination, 0, message.offset)

    async def publish_batch(self, cmd: QuiverPublishCommand) -> list[BatchReceipt]:
        messages = [await self._message(cmd, body) for body in cmd.batch_bodies]
        if not messages:
            return []
        await self._deliver(cmd.destination, messages)
        return [BatchReceipt(0, messages[0].offset, len(messages))]

    async def _message(self, cmd: QuiverPublishCommand, body: Any) -> AsyncLeasedMessage:
        value, content_type = await self.codec.encode(body, self._serializer)
        offsets = self._offsets.setdefault(cmd.destination, count())
        key = cmd.key.encode() if isinstance(cmd.key, str) else cmd.key
        return AsyncLeasedMessage(
            topic=cmd.destination,
            partition=cmd.partition or 0,
            offset=next(offsets),
            key=key,
            value=value,
            headers=cmd.wire_headers(content_type),
            timestamp=int(time.time() * 1000),
            priority=cmd.priority,
            delivery_count=1,
            lease=Lease(cmd.destination, b"", "", 0, 1, _settle),
        )

    async def _deliver(self, topic: str, messages: list[AsyncLeasedMessage]) -> None:
        groups = set()
        for subscriber in _subscribers(self._brokers):
            if subscriber.topic == topic and subscriber.to.group not in groups:
                groups.add(subscriber.to.group)
                for taken in _as_taken(subscriber, messages):
                    await subscriber.process_message(taken)


def _as_taken(subscriber: QuiverSubscriber, messages: list[AsyncLeasedMessage]) -> list[Any]:
    """A list of all for a handler of batches, else one after the other."""
    return [messages] if subscriber.to.batch else list(messages)


def _subscribers(brokers: Sequence[QuiverBroker]) -> list[QuiverSubscriber]:
    return [cast("QuiverSubscriber", each) for broker in brokers for each in broker.subscribers]


async def _settle(_: Any) -> None:
    """There is no group whose message this was."""
