"""Declares subscribers and publishers: the part that a broker and a router share."""

from collections.abc import Sequence
from typing import Any, cast

from fast_depends.dependencies import Dependant
from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.parser import CodecProto
from faststream._internal.types import CustomCallable
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from quivermq.integrations.faststream.configs import (
    PublishTo,
    QuiverBrokerConfig,
    QuiverPublisherConfig,
    QuiverPublisherSpecificationConfig,
    QuiverSubscriberConfig,
    QuiverSubscriberSpecificationConfig,
    SubscribeTo,
)
from quivermq.integrations.faststream.publisher import QuiverPublisher
from quivermq.integrations.faststream.specification import (
    QuiverPublisherSpecification,
    QuiverSubscriberSpecification,
)
from quivermq.integrations.faststream.subscriber import QuiverSubscriber


class QuiverRegistrator(Registrator[Any, QuiverBrokerConfig]):
    """Something that subscribers and publishers are declared on."""

    def subscriber(  # type: ignore[override]  # brokers have arguments of their own
        self,
        topic: str,
        *,
        group: str,
        max_workers: int = 1,
        batch: bool = False,
        prefetch: int = 64,
        visibility: float = 30.0,
        start: str = "earliest",
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> QuiverSubscriber:
        """Declare a handler of messages that `group` gets from `topic`.

        `max_workers` of them run at a time. With `batch=True` a handler gets a list of up to
        `prefetch` messages. `prefetch`, `visibility` and `start` are those of `client.subscribe`.
        A message whose handler raises is delivered again, until it becomes a dead letter:
        `ack_policy` changes that. The rest is as of FastStream's own brokers.
        """
        if max_workers < 1:
            raise SetupError(f"max_workers must be at least 1: {max_workers!r}")
        config = cast("QuiverBrokerConfig", self.config)
        to = SubscribeTo(
            topic=topic,
            group=group,
            prefetch=prefetch,
            visibility=visibility,
            start=start,
            max_workers=max_workers,
            batch=batch,
        )
        calls = CallsCollection[Any]()
        specified = QuiverSubscriberSpecificationConfig(
            to=to, title_=title, description_=description, include_in_schema=include_in_schema
        )
        subscriber = QuiverSubscriber(
            QuiverSubscriberConfig(
                to=to, no_reply=no_reply, _outer_config=config, _ack_policy=ack_policy
            ),
            QuiverSubscriberSpecification(config, specified, calls),
            calls,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]  # brokers have arguments of their own
        self,
        topic: str,
        *,
        key: str | bytes | None = None,
        priority: int = 0,
        delay: float = 0.0,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> QuiverPublisher:
        """Declare where the results of a handler are published, or keep it to `publish` with.

        `key`, `priority`, `delay` and `headers` are for all messages that have none of their own.
        With `batch=True` a list is published as that many messages, in one go.
        """
        config = cast("QuiverBrokerConfig", self.config)
        to = PublishTo(
            topic=topic,
            key=key,
            priority=priority,
            delay=delay,
            headers=headers or {},
            reply_to=reply_to,
            batch=batch,
        )
        specified = QuiverPublisherSpecificationConfig(
            to=to,
            schema_=schema,
            title_=title,
            description_=description,
            include_in_schema=include_in_schema,
        )
        publisher = QuiverPublisher(
            QuiverPublisherConfig(to=to, _outer_config=config),
            QuiverPublisherSpecification(config, specified),
        )
        super().publisher(publisher, persistent=persistent)
        return publisher
