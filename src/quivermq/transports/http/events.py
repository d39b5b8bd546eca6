"""The event feed as server-sent events: what happens in the cluster, as it happens.

Read from the topic `_events`, whose offsets are the ids: any broker goes on behind any id. Nothing
is leased, and a client that reads slowly is waited for.
"""

import asyncio
import json
import time
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Response
from starlette.types import Receive, Scope, Send

from quivermq.errors import InvalidRequest, OffsetOutOfRange, QuiverError, TopicNotFound
from quivermq.events import EVENTS_TOPIC, KINDS, Event
from quivermq.quantities import parse_duration
from quivermq.transports.http.backend import Backend, Fetched
from quivermq.transports.http.gate import BodyRoute
from quivermq.transports.http.statuses import error_answer, refusals
from quivermq.transports.http.stream import BEAT_S, EVENT_STREAM, RETRY_MS, say, watch
from quivermq.wire import error_to_proto

_AT_ONCE: Final = 100
_OFFSET_DIGITS: Final = 18


class EventRoute:
    """The handler."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(route_class=BodyRoute, tags=["cluster"])
        described = {
            "description": "Events: `id`, and as `data` a JSON object with time, kind, detail, "
            "broker, topic, partition, group, told_by and id.",
            "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
        }
        router.add_api_route(
            "/v1/events",
            self.events,
            response_class=Response,
            responses={**refusals(), 200: described},
        )
        return router

    async def events(
        self,
        kind: Annotated[
            list[str] | None, Query(description="Only of these kinds; several times for several.")
        ] = None,
        since: Annotated[
            str | None,
            Query(description="From so long ago on, as 10m or 7d; by default from now on."),
        ] = None,
        *,
        follow: Annotated[
            bool, Query(description="false: end behind the last event that there is.")
        ] = True,
        last_event_id: Annotated[
            str | None, Header(description="The id of the last event that arrived.")
        ] = None,
    ) -> Response:
        """Stream the events of the cluster, as server-sent events.

        With `Last-Event-ID` it goes on behind that event, at any broker.
        """
        kinds = _checked_kinds(kind or [])
        # An answer that has begun cannot become an error.
        offset = await self._first_offset(since, last_event_id or "")
        return EventFeedStream(self, offset, kinds, follow=follow)

    async def _first_offset(self, since: str | None, last: str) -> int:
        place = "latest"
        if since is not None:
            try:
                ago_ms = parse_duration(since) * 1000
            except ValueError as error:
                raise InvalidRequest(f"since: {error}") from error
            place = f"@{max(0, int(time.time() * 1000 - ago_ms))}"
        try:
            found = await self._backend.find_offset(EVENTS_TOPIC, 0, place)
        except TopicNotFound:
            # The first event makes it.
            return 0
        if last.isdecimal() and last.isascii() and len(last) <= _OFFSET_DIGITS:
            return int(last) + 1
        return found

    async def fetch(self, offset: int, wait_s: float, gone: asyncio.Event) -> Fetched:
        """Events from an offset on; waits for some. Raises if the client is gone."""
        task = asyncio.ensure_future(self._fetch(offset, wait_s))
        watching = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait([task, watching], return_when=asyncio.FIRST_COMPLETED)
            if gone.is_set():
                raise ConnectionResetError("the client is gone")
            return task.result()
        finally:
            for each in (task, watching):
                each.cancel()
            await asyncio.gather(task, watching, return_exceptions=True)

    async def _fetch(self, offset: int, wait_s: float) -> Fetched:
        try:
            return await self._backend.fetch(EVENTS_TOPIC, 0, offset, _AT_ONCE, wait_s)
        except OffsetOutOfRange as error:
            # Retention has dropped it; or the topic was made anew, and has not come so far.
            return Fetched([], error.earliest, error.earliest, error.end)
        except TopicNotFound:
            await asyncio.sleep(min(wait_s, 1.0))
            return Fetched([], 0, 0, 0)


class EventFeedStream(Response):
    """The answer that does not end, unless it was told to."""

    media_type = EVENT_STREAM

    def __init__(
        self, route: EventRoute, offset: int, kinds: frozenset[str], *, follow: bool
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._route = route
        self._offset = offset
        self._kinds = kinds
        self._follow = follow

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
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await send({"type": "http.response.body", "body": b""})

    async def _push(self, send: Send, gone: asyncio.Event) -> None:
        while True:
            found = await self._route.fetch(self._offset, BEAT_S if self._follow else 0.0, gone)
            told = 0
            for message in found.messages:
                event = Event.parse(message.value, message.offset)
                if event is not None and (not self._kinds or event.kind in self._kinds):
                    # Not as it is stored: a line break in it would end the event.
                    data = json.dumps(event.to_json())
                    await say(send, f"id: {message.offset}\ndata: {data}\n\n")
                    told = message.offset + 1
            self._offset = found.next_offset
            if not self._follow and self._offset >= found.end_offset:
                return
            if not self._offset:
                await say(send, ": waiting\n\n")
            elif told < self._offset:
                # Without data it is no event, but browsers remember where they are.
                await say(send, f": waiting\nid: {self._offset - 1}\n\n")


def _checked_kinds(kinds: list[str]) -> frozenset[str]:
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidRequest(f"there is no kind {kind[:50]!r}; there are: {', '.join(KINDS)}")
    return frozenset(kinds)
