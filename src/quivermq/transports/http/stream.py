"""Server-sent events: messages of a group, pushed as they come, for as long as a client listens.

Every message is leased, as by a poll, and settled like one. Its event has an id. A client that lost
its connection says the last id it has seen (`Last-Event-ID`, as browsers do by themselves): what
was sent after that, and did not arrive, is given back at once, and comes again. The broker that
sent it remembers that, within limits; at any other it comes again when its lease ends.

A client that reads slowly is waited for: nothing more is leased for it meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from secrets import token_hex
from typing import Annotated, Final, Literal, NamedTuple

from fastapi import APIRouter, Header, Query, Response
from starlette.types import Receive, Scope, Send

from quivermq.client import AsyncLeasedMessage
from quivermq.errors import LeaseLost, QuiverError
from quivermq.transports.http.backend import Backend
from quivermq.transports.http.bodies import (
    LISTED_MAX,
    VISIBILITY_S_MAX,
    EncodingQuery,
    GroupName,
    LeaseBody,
    PollBody,
    TopicName,
)
from quivermq.transports.http.gate import BodyRoute
from quivermq.transports.http.leases import LeasedMessages, Leases, settlement
from quivermq.transports.http.models import LeasedMessageAnswer
from quivermq.transports.http.statuses import error_answer, refusals
from quivermq.wire import error_to_proto, proto

EVENT_STREAM: Final = "text/event-stream"
BEAT_S: Final = 5.0
"""A stream without messages says that it is alive so often: so both ends notice a lost one."""
RETRY_MS: Final = 1_000
REMEMBERED_EVENTS_MAX: Final = 1_000
"""The last events of one stream."""
REMEMBERED_STREAMS_MAX: Final = 1_000
"""Streams that ended a while ago."""
_RELEASE: Final = settlement(proto.Outcome.Value("RELEASE"))


class _Sent(NamedTuple):
    """An event that was written."""

    number: int
    partition: int
    lease: str
    offset: int


class SentEvents:
    """The last events of streams, also of some that have ended."""

    def __init__(self) -> None:
        self._streams: dict[str, deque[_Sent]] = {}

    def open(self) -> tuple[str, deque[_Sent]]:
        """The id of a new stream, and its events."""
        while len(self._streams) >= REMEMBERED_STREAMS_MAX:
            del self._streams[next(iter(self._streams))]
        name = token_hex(8)
        sent: deque[_Sent] = deque(maxlen=REMEMBERED_EVENTS_MAX)
        self._streams[name] = sent
        return name, sent

    def take_after(self, event_id: str) -> list[_Sent]:
        """The events that were sent after this one; the stream is forgotten."""
        name, _, number = event_id.partition("-")
        if not number.isdecimal() or len(number) > 18:
            return []
        sent = self._streams.pop(name, ())
        return [each for each in sent if each.number > int(number)]


class StreamRoute:
    """The handler."""

    def __init__(self, backend: Backend, leases: Leases) -> None:
        self._backend = backend
        self._leases = leases
        self._sent = SentEvents()

    def router(self) -> APIRouter:
        router = APIRouter(
            route_class=BodyRoute, prefix="/v1/topics/{topic}/groups/{group}", tags=["groups"]
        )
        events = {
            "description": "Events: `id`, and as `data` a LeasedMessageAnswer.",
            "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
        }
        router.add_api_route(
            "/stream",
            self.stream,
            response_class=Response,
            responses={**refusals(404), 200: events},
        )
        return router

    async def stream(
        self,
        topic: TopicName,
        group: GroupName,
        max_messages: Annotated[
            int, Query(ge=1, le=LISTED_MAX, description="Leased at a time.")
        ] = 64,
        visibility: Annotated[
            float,
            Query(
                ge=0.001,
                le=VISIBILITY_S_MAX,
                allow_inf_nan=False,
                description="Seconds; what is not settled by then is delivered again.",
            ),
        ] = 30.0,
        ack: Annotated[
            Literal["manual", "auto"],
            Query(description="auto: acknowledged before they are sent, at most once."),
        ] = "manual",
        start: Annotated[
            Literal["earliest", "latest"],
            Query(description="Where a group begins that does not exist yet."),
        ] = "earliest",
        encoding: EncodingQuery = "utf8",
        last_event_id: Annotated[
            str | None, Header(description="The id of the last event that arrived.")
        ] = None,
    ) -> Response:
        """Messages of a group as server-sent events, leased like those of a poll.

        Ack, nack, reject and extend them by their `lease`. What was sent after `Last-Event-ID`
        comes again.
        """
        # An answer that has begun cannot become an error.
        await self._backend.core.groups.groups(topic)
        unseen = self._sent.take_after(last_event_id) if last_event_id else []
        if unseen:
            await self._release(topic, group, unseen)
        body = PollBody(
            max_messages=max_messages,
            wait=BEAT_S,
            visibility=visibility,
            ack=ack,
            start=start,
            encoding=encoding,
            consumer="http stream",
        )
        return EventStream(self, topic, group, body)

    async def next_batch(
        self, topic: str, group: str, body: PollBody, gone: asyncio.Event
    ) -> LeasedMessages:
        """The next messages, none if none came for a while or the client is gone."""
        consumer = self._backend.consumer()
        task = asyncio.ensure_future(self._leases.poll_as(consumer, topic, group, body))
        watch = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
            if gone.is_set():
                raise ConnectionResetError("the client is gone")
            return task.result()
        except BaseException:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await consumer.release()
            raise
        finally:
            watch.cancel()

    def open(self) -> tuple[str, deque[_Sent]]:
        """A new stream."""
        return self._sent.open()

    async def give_back(
        self, topic: str, group: str, leased: LeasedMessages, unsent: Sequence[AsyncLeasedMessage]
    ) -> None:
        """These never left."""
        sent = [
            _Sent(0, message.partition, leased.name_of(message), message.offset)
            for message in unsent
        ]
        await self._release(topic, group, [each for each in sent if each.lease])

    async def _release(self, topic: str, group: str, sent: Sequence[_Sent]) -> None:
        offsets: dict[tuple[int, str], list[int]] = {}
        for each in sent:
            offsets.setdefault((each.partition, each.lease), []).append(each.offset)
        leases = [
            LeaseBody(partition=partition, lease=lease, offsets=[*found])
            for (partition, lease), found in offsets.items()
        ]
        try:
            if leases:
                await self._leases.settle(topic, group, leases, _RELEASE)
        except LeaseLost:
            # Settled, or expired: there is nothing to give back.
            return


class EventStream(Response):
    """The answer that does not end."""

    media_type = EVENT_STREAM

    def __init__(self, route: StreamRoute, topic: str, group: str, body: PollBody) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._route = route
        self._topic, self._group, self._body = topic, group, body
        self._number = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        gone = asyncio.Event()
        watching = asyncio.ensure_future(watch(receive, gone))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await say(send, f"retry: {RETRY_MS}\n\n")
            await self._push(send, gone)
        except QuiverError as error:
            # The client connects again by itself.
            problem = error_answer(error_to_proto(error)).model_dump_json()
            await say(send, f"event: error\ndata: {problem}\n\n")
            await send({"type": "http.response.body", "body": b""})
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _push(self, send: Send, gone: asyncio.Event) -> None:
        name, remembered = self._route.open()
        while True:
            leased = await self._route.next_batch(self._topic, self._group, self._body, gone)
            if not leased.messages:
                await say(send, ": waiting\n\n")
            at = 0
            try:
                for message in leased.messages:
                    self._number += 1
                    lease = leased.name_of(message)
                    await say(send, self._event(f"{name}-{self._number}", message, lease))
                    at += 1
                    if lease:
                        remembered.append(
                            _Sent(self._number, message.partition, lease, message.offset)
                        )
            finally:
                if at < len(leased.messages):
                    await self._route.give_back(
                        self._topic, self._group, leased, leased.messages[at:]
                    )

    def _event(self, name: str, message: AsyncLeasedMessage, lease: str) -> str:
        data = LeasedMessageAnswer.of_leased(message, lease, self._body.encoding).model_dump_json()
        return f"id: {name}\ndata: {data}\n\n"


async def say(send: Send, text: str) -> None:
    """Write a part of a stream; waits for a client that reads slowly."""
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def watch(receive: Receive, gone: asyncio.Event) -> None:
    """Notice that the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()
