"""The broker as the routes see it: the client's logic over the broker's own service."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel

from quivermq.batches import Frame
from quivermq.client import Core, Message, SharedConsumer, messages_of, parse_place
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.node import Host
from quivermq.transports.service_transport import ServiceTransport
from quivermq.transports.signing_in import current_caller
from quivermq.wire import error_from_proto, proto

T = TypeVar("T")
R = TypeVar("R")

TIMEOUT_S: Final = 10.0
_FETCH_BYTES: Final = 1 << 20


class ClientGoneError(ConnectionError):
    """The client did not wait for its answer."""


class Fetched(NamedTuple):
    """A part of a partition."""

    messages: list[Message]
    next_offset: int
    start_offset: int
    end_offset: int


class Backend:
    """The objects that all routes share."""

    def __init__(self, broker: Host) -> None:
        self.broker = broker
        self.service = broker.service
        transport = ServiceTransport(broker.service, broker.limits)
        self.core = Core(transport, [""], TIMEOUT_S)
        self._begun: set[tuple[str, str]] = set()

    async def ask(self, request: proto.Request, wait_s: float = 0.0) -> proto.Response:
        """The answer of the service; raises refusals."""
        return (await self._exchange(request, wait_s))[0]

    async def _exchange(
        self, request: proto.Request, wait_s: float
    ) -> tuple[proto.Response, Sequence[Frame]]:
        request.timeout_ms = int((TIMEOUT_S + wait_s) * 1000)
        response, frames = await self.service.call(request, caller=current_caller())
        if response.WhichOneof("body") == "error":
            raise error_from_proto(response.error)
        return response, frames

    async def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has that is produced to; creates it where that is allowed."""
        query = proto.MapQuery(topics=[topic], auto_create=True)
        found = (await self.ask(proto.Request(map=query))).map.topics
        # Raises that there is none, in the words of the client.
        return len(found[0].partitions if found else (await self.core.admin.describe([topic])))

    async def fetch(
        self, topic: str, partition: int, offset: int, limit: int, wait_s: float = 0.0
    ) -> Fetched:
        """Messages from an offset on: as many as are asked for and as fit into an answer."""
        request = proto.Request()
        fetch = request.fetch
        fetch.topic, fetch.partition, fetch.offset = topic, partition, offset
        fetch.bytes_max, fetch.wait_ms = _FETCH_BYTES, int(wait_s * 1000)
        fetch.stop = offset + limit
        response, frames = await self._exchange(request, wait_s)
        found: list[Message] = []
        size = 0
        async with self.broker.partitions.slices.turn() as turn:
            for frame in frames:
                base, end = frame.header.base_offset, frame.header.next_offset
                at = max(base, offset)
                # A batch may hold far more messages than are wanted, or than fit into an answer.
                while at < min(end, offset + limit) and size < _FETCH_BYTES:
                    stop = min(at + 100, end, offset + limit)
                    part = messages_of(frame, topic, partition, at, stop, self.broker.limits)
                    found += part
                    size += sum(len(message.value) for message in part)
                    at = stop
                    await turn.rest()
        next_offset = found[-1].offset + 1 if found else offset
        fetched = response.fetched
        return Fetched(found, next_offset, fetched.start_offset, fetched.end_offset)

    async def find_offset(self, topic: str, partition: int, place: int | str) -> int:
        """The offset of a place, as `parse_place` returns it."""
        if isinstance(place, int):
            return place
        request = proto.Request()
        find = request.find_offset
        find.topic, find.partition = topic, partition
        if place == "earliest":
            find.earliest = True
        elif place == "latest":
            find.latest = True
        else:
            find.timestamp_ms = int(place[1:])
        return (await self.ask(request)).offset_found.offset

    def consumer(self) -> SharedConsumer:
        """A consumer of its own, with a number that no other has."""
        return SharedConsumer(self.core.router, self._begun)

    async def json_of(
        self, name: str, values: Iterable[T], make: Callable[[T], BaseModel], rest: dict[str, Any]
    ) -> Response:
        """`{name: [values], **rest}`, made in parts: a long list must not hold the loop."""
        parts: list[str] = []
        async with self.broker.partitions.slices.turn() as turn:
            for value in values:
                parts.append(make(value).model_dump_json())
                await turn.rest()
        tail = "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in rest.items())
        return Response(f'{{"{name}":[{",".join(parts)}]{tail}}}', media_type="application/json")


async def while_connected(request: Request, work: Coroutine[Any, Any, R]) -> R:
    """The result of work that may take long; given up when the client is gone."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError("the client is gone")
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def place_of(name: str, text: str) -> int | str:
    """A place in a partition as a client wrote it."""
    return parse_place(name, int(text) if text.isdecimal() and len(text) < 20 else text)


def first_failure(outcomes: Sequence[object]) -> QuiverError | None:
    """The first refusal among results; raises what is none."""
    for outcome in outcomes:
        if isinstance(outcome, QuiverError):
            return outcome
        if isinstance(outcome, BaseException):
            raise outcome
    return None


def check_only_one(**given: object) -> None:
    """Raise `InvalidRequest` if several were given of which one would do."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidRequest(f"name one of {' and '.join(names)}, not both")
