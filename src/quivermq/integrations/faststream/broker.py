"""The broker of an application, and routers that it includes."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from fast_depends import Provider, dependency_provider
from fast_depends.dependencies import Dependant
from fast_depends.library.serializer import SerializerProto
from faststream import ContextRepo
from faststream._internal.basic_types import LoggerProto
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.router import BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable
from faststream.exceptions import FeatureNotSupportedException
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec
from faststream.specification.schema.extra import Tag, TagDict

from quivermq.aio import connect
from quivermq.client import AsyncClient, BatchReceipt, ConnectOptions, Receipt
from quivermq.errors import QuiverError
from quivermq.integrations.faststream.configs import QuiverBrokerConfig
from quivermq.integrations.faststream.producer import NO_REQUESTS, QuiverProducer
from quivermq.integrations.faststream.publish_command import QuiverPublishCommand
from quivermq.integrations.faststream.registrator import QuiverRegistrator
from quivermq.tls import ClientTls
from quivermq.tracing import Tracing


class QuiverBroker(
    QuiverRegistrator,
    BrokerUsecase[Any, AsyncClient, QuiverBrokerConfig],
):
    """A FastStream broker over a cluster of QuiverMQ.

    >>> broker = QuiverBroker("127.0.0.1:7600")
    >>> @broker.subscriber("orders", group="billing")
    ... async def bill(order: Order) -> None: ...
    """

    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        tls: ClientTls = None,
        timeout: float = 10.0,
        tracing: Tracing = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        routers: Iterable[QuiverRegistrator] = (),
        specification_url: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
    ) -> None:
        """`servers`, `token`, `tls`, `timeout` and `tracing` are those of `quivermq.connect`;
        the rest is as of FastStream's own brokers."""
        super().__init__(
            servers=servers,
            token=token,
            tls=tls,
            timeout=timeout,
            tracing=tracing,
            routers=routers,
            config=QuiverBrokerConfig(
                producer=QuiverProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                logger=make_logger_state(
                    logger=logger, log_level=log_level, default_storage_cls=LoggerStorage
                ),
                fd_config=_injection(apply_types, serializer, provider, context),
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=_urls(servers) if specification_url is None else [specification_url],
                protocol="quiver",
                protocol_version="1",
                description=description,
                tags=tags,
                security=None,
            ),
        )

    async def _connect(self) -> AsyncClient:
        client = await connect(**self._connection_kwargs)
        self._attach(client)
        return client

    def _attach(self, client: AsyncClient) -> None:
        config = self.config.broker_config
        config.connected = client
        producer = config.producer
        if isinstance(producer, QuiverProducer):
            serializer = config.fd_config._serializer  # noqa: SLF001 - as FastStream's own
            producer.connect(client, serializer, config.broker_codec)

    async def start(self) -> None:
        """Connect, and let all subscribers handle messages."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Let handlers finish, give back what they did not begin, and disconnect."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            if self._connection is not None:
                await self._connection.close()
                self._connection = None
                self.config.broker_config.connected = None

    async def ping(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - FastStream's
        """Whether a broker answers in time."""
        if self._connection is None:
            return False
        try:
            async with asyncio.timeout(timeout):
                await self._connection.ping()
        except (QuiverError, TimeoutError):
            return False
        return True

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        key: str | bytes | None = None,
        priority: int = 0,
        delay: float = 0.0,
        partition: int | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> Receipt:
        """Publish a message: bytes, text, or whatever becomes JSON. Durable when this returns."""
        cmd = QuiverPublishCommand(
            message,
            topic=topic,
            key=key,
            priority=priority,
            delay=delay,
            partition=partition,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        receipt: Receipt = await self._basic_publish(cmd, producer=self.config.producer)
        return receipt

    async def publish_batch(  # type: ignore[override]  # brokers have arguments of their own
        self,
        *messages: Any,
        topic: str,
        key: str | bytes | None = None,
        priority: int = 0,
        delay: float = 0.0,
        partition: int | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> list[BatchReceipt]:
        """Publish several messages at once: far faster than one by one."""
        cmd = QuiverPublishCommand(
            *(messages or (None,)),
            topic=topic,
            key=key,
            priority=priority,
            delay=delay,
            partition=partition,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        receipts: list[BatchReceipt] = await self._basic_publish_batch(
            cmd, producer=self.config.producer
        )
        return receipts

    async def request(self, *_: Any, **__: Any) -> Any:
        """Requests have no answers here; `reply_to` names a topic for them."""
        raise FeatureNotSupportedException(NO_REQUESTS)


class QuiverRouter(QuiverRegistrator, BrokerRouter[Any, QuiverBrokerConfig]):
    """Subscribers and publishers that a broker includes, with a prefix of their topics."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[SubscriberRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        routers: Iterable[QuiverRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
    ) -> None:
        super().__init__(
            handlers=handlers,
            routers=routers,
            config=QuiverBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
        )


def _injection(use: bool, serializer: Any, provider: Any, context: Any) -> Any:  # noqa: FBT001
    return FastDependsConfig(
        use_fastdepends=use,
        serializer=serializer,
        provider=provider or dependency_provider,
        context=context or ContextRepo(),
    )


def _urls(servers: str | Iterable[str] | None) -> list[str]:
    options = ConnectOptions.of(servers, token=None, tls=False, timeout=1.0)
    return [f"quiver://{server}" for server in options.servers]


class LoggerStorage(DefaultLoggerStorage):
    """The broker's logger: each line names the topic, the group and the message."""

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 4, "group": 5}

    def register_subscriber(self, params: dict[str, Any]) -> None:
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        logger = self._get_logger_ref()
        if logger is None:
            columns = "".join(f"%({name})-{width}s | " for name, width in self._widths.items())
            logger = get_broker_logger(
                name="quiver",
                default_context=dict.fromkeys(self._widths, ""),
                message_id_ln=10,
                fmt=f"%(asctime)s %(levelname)-8s - {columns}%(message_id)-10s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger
