"""Publishers: the results of handlers, and what a program publishes itself."""

from collections.abc import Iterable
from typing import Any, cast

from faststream._internal.endpoint.publisher import PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.producer import ProducerProto
from faststream._internal.types import PublisherMiddleware
from faststream.exceptions import FeatureNotSupportedException
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand

from quivermq.integrations.faststream.configs import QuiverBrokerConfig, QuiverPublisherConfig
from quivermq.integrations.faststream.producer import NO_REQUESTS
from quivermq.integrations.faststream.publish_command import QuiverPublishCommand
from quivermq.integrations.faststream.specification import QuiverPublisherSpecification


class QuiverPublisher(PublisherUsecase):
    """Publishes to one topic."""

    _outer_config: QuiverBrokerConfig

    def __init__(
        self, config: QuiverPublisherConfig, specification: QuiverPublisherSpecification
    ) -> None:
        # FastStream's own publishers pass a specification with configs of their own too.
        super().__init__(config, cast("Any", specification))
        self.to = config.to

    @property
    def topic(self) -> str:
        """With the prefix of its router."""
        return self._outer_config.prefix + self.to.topic

    async def publish(
        self,
        message: Any = None,
        *messages: Any,
        key: str | bytes | None = None,
        priority: int | None = None,
        delay: float | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> Any:
        """Publish a message, or several with `batch=True`, and return where it is stored."""
        cmd = QuiverPublishCommand(
            message,
            *messages,
            topic=self.topic,
            key=self.to.key if key is None else key,
            priority=self.to.priority if priority is None else priority,
            delay=self.to.delay if delay is None else delay,
            headers=self.to.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to or self.to.reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        return await self._send(cmd, ())

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publish what a handler returned."""
        own = QuiverPublishCommand.from_cmd(cmd, batch=self.to.batch)
        own.destination = self.topic
        own.key = self.to.key if own.key is None else own.key
        own.priority = own.priority or self.to.priority
        own.delay = own.delay or self.to.delay
        own.reply_to = own.reply_to or self.to.reply_to
        own.add_headers(self.to.headers, override=False)
        await self._send(own, _extra_middlewares)

    async def _send(
        self, cmd: QuiverPublishCommand, middlewares: Iterable[PublisherMiddleware]
    ) -> Any:
        send = self._basic_publish_batch if self.to.batch else self._basic_publish
        return await send(cmd, producer=self._outer_config.producer, _extra_middlewares=middlewares)

    async def request(self, *_: Any, **__: Any) -> Any:
        """Requests have no answers here."""
        raise FeatureNotSupportedException(NO_REQUESTS)


class ReplyPublisher(FakePublisher):
    """Publishes the result of a handler where the message asked for it."""

    def __init__(self, producer: ProducerProto[Any], topic: str) -> None:
        super().__init__(producer=producer)
        self._topic = topic

    def patch_command(self, cmd: PublishCommand) -> QuiverPublishCommand:
        reply = QuiverPublishCommand.from_cmd(super().patch_command(cmd))
        reply.destination = self._topic
        return reply
