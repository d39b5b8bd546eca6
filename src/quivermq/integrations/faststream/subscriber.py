"""Subscribers: each calls its handler with what one subscription of a group brings."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, cast

from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy

from quivermq.client import AsyncLeasedMessage, AsyncSubscription
from quivermq.errors import QuiverError
from quivermq.integrations.faststream.configs import QuiverBrokerConfig, QuiverSubscriberConfig
from quivermq.integrations.faststream.message import (
    QuiverBatchParser,
    QuiverMessage,
    QuiverParser,
)
from quivermq.integrations.faststream.publisher import ReplyPublisher
from quivermq.integrations.faststream.specification import QuiverSubscriberSpecification

_AGAIN_S: Final = 1.0
"""Between the end of a subscription by an error and the next."""


class QuiverSubscriber(TasksMixin, SubscriberUsecase[Any]):
    """Handles messages of a topic for a group, `max_workers` of them at a time."""

    _outer_config: QuiverBrokerConfig

    def __init__(
        self,
        config: QuiverSubscriberConfig,
        specification: QuiverSubscriberSpecification,
        calls: CallsCollection[Any],
    ) -> None:
        self.to = config.to
        if config.to.batch:
            batches = QuiverBatchParser()
            config.parser, config.decoder = batches.parse_batch, batches.decode_batch
        else:
            single = QuiverParser()
            config.parser, config.decoder = single.parse_message, single.decode_message
        super().__init__(config, specification, calls)
        self._subscription: AsyncSubscription | None = None

    @property
    def topic(self) -> str:
        """With the prefix of its router."""
        return self._outer_config.prefix + self.to.topic

    async def start(self) -> None:
        """Subscribe, and handle what comes."""
        await super().start()
        self._post_start()
        if self.calls:
            self._subscription = self._subscribe()
            # Each takes messages itself: leases are extended of what a task has in hand.
            for _ in range(self.to.max_workers):
                self.add_task(self._work)

    async def stop(self) -> None:
        """Let handlers finish, within the graceful timeout, and give back all other messages."""
        try:
            await super().stop()
        finally:
            if self._subscription is not None:
                await self._subscription.close()
                self._subscription = None

    def _subscribe(self) -> AsyncSubscription:
        return self._outer_config.client.subscribe(
            self.topic,
            group=self.to.group,
            prefetch=self.to.prefetch,
            visibility=self.to.visibility,
            ack="auto" if self.ack_policy is AckPolicy.ACK_FIRST else "manual",
            start=self.to.start,
        )

    async def _work(self) -> None:
        while self.running:
            subscription = self._subscription
            if subscription is None:
                return
            try:
                await self._consume_all(subscription)
                if self._subscription is subscription:
                    return  # closed, and not renewed by another worker
            except QuiverError as error:
                self._log(logging.ERROR, f"the subscription to {self.topic} ended: {error}")
                await asyncio.sleep(_AGAIN_S)
                await self._renew(subscription)

    async def _consume_all(self, subscription: AsyncSubscription) -> None:
        if self.to.batch:
            async for batch in subscription.batches():
                await self.consume(batch)
                if not self.running:
                    return
            return
        async for message in subscription:
            # When it stops, messages that wait go back to the group, not to a handler.
            await self.consume(message)
            if not self.running:
                return

    async def _renew(self, ended: AsyncSubscription) -> None:
        """Subscribe again, unless another worker has, or it was stopped."""
        if self.running and self._subscription is ended:
            self._subscription = self._subscribe()
            await ended.close()

    async def get_one(self, *, timeout: float = 5) -> QuiverMessage | None:  # noqa: ASYNC109
        """The next message, for those who have no handler; None if none came in time."""
        self._check_no_handler()
        found = await self._outer_config.client.poll(
            self.topic,
            self.to.group,
            max_messages=1,
            wait=timeout,
            visibility=self.to.visibility,
            start=self.to.start,
        )
        return await self._processed(found[0]) if found else None

    async def __aiter__(self) -> AsyncIterator[QuiverMessage]:
        self._check_no_handler()
        async with self._subscribe() as subscription:
            async for raw in subscription:
                yield await self._processed(raw)

    async def _processed(self, raw: AsyncLeasedMessage) -> QuiverMessage:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        message = await process_msg(
            msg=raw,
            middlewares=(make(raw, context=context) for make in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        return cast("QuiverMessage", message)

    def _check_no_handler(self) -> None:
        if self.calls or self.to.batch:
            raise SetupError("a subscriber with a handler, or of batches, cannot be iterated")

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Iterable[PublisherProto]:
        return (ReplyPublisher(self._outer_config.producer, message.reply_to),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        return {
            "topic": self.topic,
            "group": self.to.group,
            "message_id": getattr(message, "message_id", ""),
        }
