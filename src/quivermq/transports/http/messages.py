"""The routes of messages: produce them, and read them by offset and by time."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from functools import partial
from secrets import randbelow
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from fastapi import APIRouter, Query, Request, Response

from quivermq.batches import Frame, Limits, Origin, encode_batches
from quivermq.client import BulkColumns, Layout, not_before_ms, partition_of, with_properties
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.transports.http.arrow_body import ARROW_STREAM, read_arrow
from quivermq.transports.http.backend import (
    Backend,
    check_only_one,
    place_of,
    while_connected,
)
from quivermq.transports.http.bodies import (
    DELAY_S_MAX,
    PARTITION_MAX,
    WAIT_S_MAX,
    EncodingQuery,
    LimitQuery,
    MessageBody,
    PartitionNumber,
    ProduceBody,
    TopicName,
)
from quivermq.transports.http.encoding import Encoding, to_bytes
from quivermq.transports.http.gate import BodyRoute
from quivermq.transports.http.models import (
    BatchAnswer,
    BatchesAnswer,
    MessageAnswer,
    MessagesAnswer,
    ProducedAnswer,
    ReceiptAnswer,
)
from quivermq.transports.http.statuses import Json, refusals

if TYPE_CHECKING:
    from quivermq.tracing import BrokerTracer

_SMALL_BYTES: Final = 16 << 10
"""Up to here a thread costs more than it saves."""
_STREAM_SCHEMA: Final = {"schema": {"type": "string", "format": "binary"}}
_ARROW_ONLY: Final = "Of an Arrow stream; JSON has it in each message."


class _Kind(NamedTuple):
    """The fields that all messages of one batch share."""

    partition: int
    priority: int
    delay: float


class _Batch(NamedTuple):
    """A batch, and which messages of the request are in it."""

    partition: int
    numbers: list[int]
    frame: Frame


class MessageRoutes:
    """The handlers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(route_class=BodyRoute, prefix="/v1/topics/{topic}", tags=["messages"])
        router.add_api_route(
            "/messages",
            self.produce,
            methods=["POST"],
            response_model=ProducedAnswer | BatchesAnswer,
            responses=refusals(404),
            openapi_extra={
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {"$ref": "#/components/schemas/ProduceBody"}
                        },
                        ARROW_STREAM: _STREAM_SCHEMA,
                    },
                }
            },
        )
        router.add_api_route(
            "/partitions/{partition}/messages",
            self.fetch,
            response_model=MessagesAnswer,
            responses=refusals(404, 416),
        )
        return router

    async def produce(
        self,
        topic: TopicName,
        request: Request,
        priority: Annotated[int, Query(ge=0, le=7, description=_ARROW_ONLY)] = 0,
        delay: Annotated[
            float, Query(ge=0, le=DELAY_S_MAX, allow_inf_nan=False, description=_ARROW_ONLY)
        ] = 0.0,
        partition: Annotated[
            int | None, Query(ge=0, le=PARTITION_MAX, description=_ARROW_ONLY)
        ] = None,
    ) -> Response:
        """Store messages, as JSON or as an Arrow stream; all are durable when this answers.

        An Arrow stream has a column `value`, and optionally `key`, `headers` and `timestamp`.
        """
        body = await request.body()
        if request.headers.get("content-type", "").partition(";")[0].strip() == ARROW_STREAM:
            return await self._produce_arrow(topic, body, Layout(priority, _due(delay)), partition)
        partitions = await self._backend.partitions_of(topic)
        broker = self._backend.broker
        lay_out = partial(_lay_out, topic, body, partitions, broker.limits, broker.tracer)
        if len(body) <= _SMALL_BYTES:
            batches = lay_out()
        else:
            # Thousands of messages take longer than the loop may be held.
            batches = await asyncio.to_thread(lay_out)
        receipts = await self._store(topic, batches)
        return await self._backend.json_of("receipts", receipts, _same, {})

    async def _produce_arrow(
        self, topic: str, body: bytes, layout: Layout, partition: int | None
    ) -> Response:
        table = await asyncio.to_thread(read_arrow, body)
        stored = await self._backend.core.producing.produce_many(
            topic, BulkColumns(table), layout, partition, None, 0
        )
        return Json(BatchesAnswer(batches=[BatchAnswer.of(each) for each in stored]))

    async def _store(self, topic: str, batches: list[_Batch]) -> list[ReceiptAnswer]:
        """Where each message is; if some could not be stored, the error says how many were."""

        async def frames() -> AsyncGenerator[tuple[int, Frame]]:
            for batch in batches:
                yield batch.partition, batch.frame

        try:
            stored = await self._backend.core.producing.copy(frames(), topic, None, 0)
        except QuiverError as error:
            error.args = (". ".join([str(error), *getattr(error, "__notes__", ())]),)
            raise
        places: dict[int, ReceiptAnswer] = {}
        for batch, receipt in zip(batches, stored, strict=True):
            for offset, number in enumerate(batch.numbers, receipt.first_offset):
                places[number] = ReceiptAnswer(partition=batch.partition, offset=offset)
        return [places[number] for number in range(len(places))]

    async def fetch(
        self,
        topic: TopicName,
        partition: PartitionNumber,
        request: Request,
        offset: Annotated[
            str | None,
            Query(
                description='An offset, "earliest" or "latest"; default: earliest.',
                pattern=r"^(earliest|latest|0|[1-9][0-9]{0,17})$",
            ),
        ] = None,
        time: Annotated[
            str | None,
            Query(
                description="Instead of an offset: ISO 8601, or @ and milliseconds since 1970.",
                max_length=100,
            ),
        ] = None,
        limit: LimitQuery = 100,
        wait: Annotated[
            float,
            Query(
                ge=0,
                le=WAIT_S_MAX,
                allow_inf_nan=False,
                description="Seconds to wait if there are no messages yet.",
            ),
        ] = 0.0,
        encoding: EncodingQuery = "utf8",
    ) -> Response:
        """Messages of a partition in order, whatever groups have done with them."""
        check_only_one(offset=offset, time=time)
        place = place_of("offset", offset or "earliest") if time is None else _time(time)
        start = await self._backend.find_offset(topic, partition, place)
        work = self._backend.fetch(topic, partition, start, limit, wait)
        found = await while_connected(request, work)
        return await self._backend.json_of(
            "messages",
            found.messages,
            lambda message: MessageAnswer.of(message, encoding),
            {
                "next_offset": str(found.next_offset),
                "start_offset": str(found.start_offset),
                "end_offset": str(found.end_offset),
            },
        )


def _same(receipt: ReceiptAnswer) -> ReceiptAnswer:
    return receipt


def _due(delay: float) -> int:
    return not_before_ms(delay) if delay else 0


def _time(text: str) -> int | str:
    place = place_of("time", text)
    if isinstance(place, int) or not place.startswith("@"):
        raise InvalidRequest(f"time must be ISO 8601, or @ and milliseconds: {text!r}")
    return place


def _lay_out(
    topic: str, body: bytes, partitions: int, limits: Limits, tracer: "BrokerTracer | None"
) -> list[_Batch]:
    """The messages of a body as batches; raises unless all of them can be stored."""
    found = ProduceBody.model_validate_json(body)
    batches: list[_Batch] = []
    for kind, numbers in _kinds(topic, found, partitions).items():
        messages = [found.messages[number] for number in numbers]
        origin = Origin(priority=kind.priority, not_before_ms=_due(kind.delay))
        at = 0
        for frame in _frames(messages, found.encoding, origin, limits, tracer):
            end = at + frame.header.count
            batches.append(_Batch(kind.partition, numbers[at:end], frame))
            at = end
    return batches


def _timestamps(messages: Sequence[MessageBody]) -> list[int | None] | None:
    found = [message.timestamp for message in messages]
    return found if any(each is not None for each in found) else None


def _kinds(topic: str, body: ProduceBody, partitions: int) -> dict[_Kind, list[int]]:
    """Which messages go together, by their numbers."""
    # Those without a key take turns, request by request: one batch is better than several.
    anywhere = randbelow(partitions)
    kinds: dict[_Kind, list[int]] = {}
    for number, message in enumerate(body.messages):
        partition = anywhere
        if message.partition is not None:
            partition = message.partition
        elif message.key is not None:
            key = to_bytes("key", message.key, message.encoding or body.encoding)
            partition = partition_of(key, partitions)
        if partition >= partitions:
            raise InvalidRequest(
                f"topic {topic!r} has partitions 0 to {partitions - 1}, not {partition}"
            )
        kind = _Kind(partition, message.priority, message.delay)
        kinds.setdefault(kind, []).append(number)
    return kinds


def _frames(
    messages: Sequence[MessageBody],
    encoding: Encoding,
    origin: Origin,
    limits: Limits,
    tracer: "BrokerTracer | None",
) -> Iterator[Frame]:
    values: list[bytes] = []
    keys: list[bytes | None] = []
    headers: list[Mapping[str, bytes] | None] = []
    for message in messages:
        used = message.encoding or encoding
        values.append(to_bytes("value", message.value, used))
        keys.append(None if message.key is None else to_bytes("key", message.key, used))
        own = {name: to_bytes("header", each, used) for name, each in message.headers.items()}
        headers.append(
            with_properties(own, message.content_type, message.ttl, message.delay) or None
        )
    if tracer is not None:
        headers = tracer.add_context(headers)
    return encode_batches(
        values,
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
        timestamps=_timestamps(messages),
        origin=origin,
        limits=limits,
    )
