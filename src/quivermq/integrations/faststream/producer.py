"""Publishes for a FastStream broker, over the client that the broker has connected."""

from typing import Any

from fast_depends.library.serializer import SerializerProto
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.types import AsyncCallable, CustomCallable
from faststream.exceptions import FeatureNotSupportedException, IncorrectState

from quivermq.client import AsyncClient, BatchReceipt, Receipt
from quivermq.integrations.faststream.message import QuiverParser
from quivermq.integrations.faststream.publish_command import QuiverPublishCommand

NO_REQUESTS = (
    "QuiverMQ has no answers to requests: publish with `reply_to`, and subscribe to that topic"
)


class QuiverProducer(ProducerProto[QuiverPublishCommand]):
    """Stores messages; what it has published is durable."""

    _parser: AsyncCallable
    _decoder: AsyncCallable

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        default = QuiverParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self._client: AsyncClient | None = None
        self._serializer: SerializerProto | None = None
        self.codec: CodecProto = DefaultCodec()

    def connect(
        self, client: AsyncClient, serializer: SerializerProto | None, codec: CodecProto | None
    ) -> None:
        self._client = client
        self._serializer = serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        self._client = None

    @property
    def client(self) -> AsyncClient:
        if self._client is None:
            raise IncorrectState("the broker is not connected: await broker.connect() first")
        return self._client

    async def publish(self, cmd: QuiverPublishCommand) -> Receipt:
        """Store one message, and return its place."""
        value, content_type = await self.codec.encode(cmd.body, self._serializer)
        return await self.client.produce(
            cmd.destination,
            value,
            key=cmd.key,
            headers=cmd.wire_headers(content_type),
            priority=cmd.priority,
            delay=cmd.delay,
            partition=cmd.partition,
        )

    async def publish_batch(self, cmd: QuiverPublishCommand) -> list[BatchReceipt]:
        """Store several messages in one go, and return their places."""
        encoded = [await self.codec.encode(body, self._serializer) for body in cmd.batch_bodies]
        if not encoded:
            return []
        return await self.client.produce_many(
            cmd.destination,
            [value for value, _ in encoded],
            keys=None if cmd.key is None else [cmd.key] * len(encoded),
            headers=[cmd.wire_headers(content_type) for _, content_type in encoded],
            priority=cmd.priority,
            delay=cmd.delay,
            partition=cmd.partition,
        )

    async def request(self, _: QuiverPublishCommand, /) -> Any:
        raise FeatureNotSupportedException(NO_REQUESTS)
