"""Stores messages: plain ones are laid out as frames here, Arrow batches are taken as they are."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from quivermq.batches import Frame, Origin, encode_batches
from quivermq.client import partition_of, rows_by_partition, with_properties
from quivermq.errors import InvalidRequest, TooLarge
from quivermq.transports.grpc.arrow_streams import Batch, batches_of, frames_of_batch
from quivermq.transports.grpc.call import Call
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import FRAMES_MAX, proto

_MESSAGES_MAX: Final = 10_000
"""Plain messages in one request: they are laid out on the event loop."""
_ROWS: Final = 2_500
"""Messages of one batch: others on the loop go on in between."""
_DELAY_MS_MAX: Final = 10 * 366 * 24 * 3600 * 1000


class Layer(NamedTuple):
    """Frames for one partition; for plain messages also which rows of the request they hold."""

    partition: int
    frames: list[Frame]
    rows: Sequence[int] = ()


class Producing:
    """Stores what calls and sessions bring."""

    def __init__(self) -> None:
        self._turns = 0

    async def produce(self, call: Call, request: api.ProduceRequest) -> api.ProduceResponse:
        """Store messages; raises the first refusal, and then others may be stored."""
        partitions = await call.partitions_of(request.topic, create=True)
        if bool(request.messages) == bool(request.arrow):
            raise InvalidRequest("a produce request has either messages or an Arrow stream")
        if request.messages:
            layers = await self._plain_layers(call, request, partitions)
        else:
            layers = list(self._arrow_layers(call, request, partitions))
        by_partition: dict[int, list[Layer]] = {}
        for layer in layers:
            by_partition.setdefault(layer.partition, []).append(layer)
        stored = await _all_stored(call, request.topic, by_partition)
        return _response(by_partition, stored, len(request.messages))

    def _next_partition(self, partitions: int) -> int:
        self._turns += 1
        return self._turns % partitions

    async def _plain_layers(
        self, call: Call, request: api.ProduceRequest, partitions: int
    ) -> list[Layer]:
        messages = request.messages
        if len(messages) > _MESSAGES_MAX:
            raise TooLarge(
                f"{len(messages):,} messages in one request are above the limit of "
                f"{_MESSAGES_MAX:,}: send fewer at once, or an Arrow stream"
            )
        found: list[Layer] = []
        async with call.broker.partitions.slices.turn() as turn:
            groups = self._groups(request, partitions)
            await turn.rest()
            for (partition, priority, delay_ms), rows in groups.items():
                origin = _origin(request, priority, delay_ms)
                for at in range(0, len(rows), _ROWS):
                    some = rows[at : at + _ROWS]
                    frames = _plain_frames(call, [messages[row] for row in some], origin)
                    found.append(Layer(partition, frames, some))
                    if origin.producer_id:
                        origin = origin._replace(sequence=origin.sequence + len(some))
                    await turn.rest()
        return found

    def _groups(
        self, request: api.ProduceRequest, partitions: int
    ) -> dict[tuple[int, int, int], list[int]]:
        """The rows of the request by partition, priority and delay."""
        default = self._default_partition(request, partitions)
        groups: dict[tuple[int, int, int], list[int]] = {}
        for row, message in enumerate(request.messages):
            partition = default
            if not request.HasField("partition") and message.HasField("key"):
                partition = partition_of(message.key, partitions)
            place = (partition, message.priority, message.delay_ms)
            groups.setdefault(place, []).append(row)
        if request.HasField("producer") and len(groups) > 1:
            raise InvalidRequest("messages of a producer have one priority and one delay")
        return groups

    def _default_partition(self, request: api.ProduceRequest, partitions: int) -> int:
        """Of what has no key: all of a request goes to one partition, as one batch."""
        if request.HasField("partition"):
            return request.partition
        if request.HasField("producer"):
            raise InvalidRequest(
                "messages of a producer need a partition: its sequence counts them"
            )
        return self._next_partition(partitions)

    def _arrow_layers(
        self, call: Call, request: api.ProduceRequest, partitions: int
    ) -> Iterator[Layer]:
        default = self._default_partition(request, partitions)
        origin = _origin(request, request.priority, request.delay_ms)
        is_split = partitions > 1 and not request.HasField("partition")
        batches = batches_of(request.arrow, call.limits)
        if not batches:
            raise InvalidRequest("the Arrow stream has no messages")
        for batch in batches:
            if is_split and "key" in batch.rows.schema.names:
                yield from _split(call, batch, origin, partitions, default)
            else:
                yield Layer(default, frames_of_batch(batch, origin, call.limits))
            if origin.producer_id:
                origin = origin._replace(sequence=origin.sequence + batch.rows.num_rows)


def _split(
    call: Call, batch: Batch, origin: Origin, partitions: int, default: int
) -> Iterator[Layer]:
    """The rows of a batch with keys, by partition."""
    try:
        batch.rows.validate(full=True)
        keys = batch.rows.column("key").cast(pa.binary()).to_pylist()
    except pa.ArrowException as error:
        raise InvalidRequest(f"the keys of the Arrow stream cannot be read: {error}") from error
    by_partition = rows_by_partition(keys, partitions)
    for partition, rows in by_partition.items():
        part = batch.rows.take(pa.array(rows, pa.int64()))
        frames = list(encode_batches(part, origin=origin, limits=call.limits))
        yield Layer(default if partition < 0 else partition, frames)


def _origin(request: api.ProduceRequest, priority: int, delay_ms: int) -> Origin:
    if delay_ms > _DELAY_MS_MAX:
        raise InvalidRequest(f"a delay of {delay_ms} ms is above the limit of {_DELAY_MS_MAX}")
    not_before_ms = int(time.time() * 1000) + delay_ms + 1 if delay_ms else 0
    if not request.HasField("producer"):
        return Origin(priority=priority, not_before_ms=not_before_ms)
    producer = request.producer
    if not producer.id:
        raise InvalidRequest("a producer needs an id: ask for one with NewProducer")
    return Origin(producer.id, producer.epoch, producer.sequence, priority, not_before_ms)


def _plain_frames(call: Call, messages: Sequence[api.NewMessage], origin: Origin) -> list[Frame]:
    keys = timestamps = None
    headers: list[Mapping[str, bytes] | None] | None = None
    if any(message.HasField("key") for message in messages):
        keys = [message.key if message.HasField("key") else None for message in messages]
    tracer = call.broker.tracer
    if tracer is not None or any(
        message.headers or message.content_type or message.ttl_ms for message in messages
    ):
        headers = [
            with_properties(
                dict(message.headers),
                message.content_type or None,
                message.ttl_ms / 1000 if message.ttl_ms else None,
                message.delay_ms / 1000,
            )
            for message in messages
        ]
    if tracer is not None and headers:
        headers = tracer.add_context(headers)
    if any(message.timestamp_ms for message in messages):
        timestamps = [message.timestamp_ms or None for message in messages]
    values = [message.value for message in messages]
    frames = encode_batches(
        values,
        keys=keys,
        headers=headers,
        timestamps=timestamps,
        origin=origin,
        limits=call.limits,
    )
    return list(frames)


async def _all_stored(
    call: Call, topic: str, by_partition: dict[int, list[Layer]]
) -> dict[int, Sequence[proto.Stored]]:
    async def store(partition: int, layers: list[Layer]) -> Sequence[proto.Stored]:
        frames = [frame for layer in layers for frame in layer.frames]
        if len(frames) > FRAMES_MAX:
            raise TooLarge(
                f"{len(frames)} batches of different priority and delay: send fewer at once"
            )
        request = proto.Request(produce=proto.Produce(topic=topic, partition=partition))
        response, _ = await call.ask(request, frames)
        return response.produced.batches

    storing = [store(partition, layers) for partition, layers in by_partition.items()]
    if len(storing) == 1:
        # Mostly there is one, which needs no task of its own.
        return {next(iter(by_partition)): await storing[0]}
    outcomes = await asyncio.gather(*storing, return_exceptions=True)
    found: dict[int, Sequence[proto.Stored]] = {}
    for partition, outcome in zip(by_partition, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        found[partition] = outcome
    return found


def _response(
    by_partition: dict[int, list[Layer]], stored: dict[int, Sequence[proto.Stored]], messages: int
) -> api.ProduceResponse:
    response = api.ProduceResponse()
    places: list[tuple[int, int]] = [(0, 0)] * messages
    for partition, layers in by_partition.items():
        batches = iter(stored[partition])
        for layer in layers:
            rows = iter(layer.rows)
            for _, batch in zip(layer.frames, batches, strict=False):
                response.stored.add(
                    partition=partition,
                    first_offset=batch.first_offset,
                    count=batch.count,
                    timestamp_ms=batch.timestamp_ms,
                    is_repeat=batch.is_repeat,
                )
                offsets = range(batch.first_offset, batch.first_offset + batch.count)
                for offset, row in zip(offsets, rows, strict=False):
                    places[row] = (partition, offset)
    for partition, offset in places:
        response.positions.add(partition=partition, offset=offset)
    return response
