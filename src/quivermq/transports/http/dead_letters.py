"""The routes of dead letters and of delayed messages: list, show, redrive, purge; cancel."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response

from quivermq.client import DeadLetter
from quivermq.errors import Forbidden, InvalidRequest, OffsetOutOfRange, TopicNotFound
from quivermq.transports.http.backend import Backend
from quivermq.transports.http.bodies import (
    LISTED_MAX,
    PARTITION_MAX,
    U63_MAX,
    DelayedBody,
    EncodingQuery,
    LettersBody,
    LettersQuery,
    LimitQuery,
    OffsetNumber,
    PartitionNumber,
    RedriveBody,
    TopicName,
    numbers_of,
)
from quivermq.transports.http.encoding import Encoding
from quivermq.transports.http.gate import BodyRoute
from quivermq.transports.http.models import (
    CountAnswer,
    DelayedAnswer,
    DelayedListAnswer,
    LetterAnswer,
    LettersAnswer,
    RedrivenAnswer,
)
from quivermq.transports.http.statuses import Json, refusals
from quivermq.wire import LetterFilter, proto

_BYTES_MAX: Final = 4 << 20
"""Of the values in one answer."""


class DeadLetterRoutes:
    """The handlers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._admin = backend.core.dead_letters

    def router(self) -> APIRouter:
        router = APIRouter(route_class=BodyRoute, prefix="/v1", tags=["dead letters"])
        self._add(router, "/dead-letters", self.all_letters, LettersAnswer, "GET")
        letters = "/topics/{topic}/dead-letters"
        self._add(router, letters, self.letters, LettersAnswer, "GET")
        self._add(router, letters + "/{partition}/{offset}", self.letter, LetterAnswer, "GET", 416)
        self._add(router, letters + "/redrive", self.redrive, RedrivenAnswer, "POST")
        self._add(router, letters + "/purge", self.purge, CountAnswer, "POST")
        delayed = "/topics/{topic}/delayed"
        self._add(router, delayed, self.delayed, DelayedListAnswer, "GET", tag="delayed")
        self._add(router, delayed + "/cancel", self.cancel, CountAnswer, "POST", tag="delayed")
        return router

    def _add(
        self,
        router: APIRouter,
        path: str,
        handler: Any,
        answer: Any,
        method: str,
        *refused: int,
        tag: str = "",
    ) -> None:
        router.add_api_route(
            path,
            handler,
            methods=[method],
            response_model=answer,
            responses=refusals(404, *refused),
            tags=[tag] if tag else None,
        )

    async def letters(
        self,
        topic: TopicName,
        wanted: LettersQuery,
        limit: LimitQuery = 100,
        partition: Annotated[
            int | None, Query(ge=0, le=PARTITION_MAX, description="Only of this partition.")
        ] = None,
        offset: Annotated[
            int, Query(ge=0, le=U63_MAX, description="Only from this offset on.")
        ] = 0,
        encoding: EncodingQuery = "utf8",
    ) -> Response:
        """Messages of a topic that failed too often or were rejected, the oldest first."""
        wanted = wanted._replace(topic=topic)
        walk = self._walk(await self._place(topic), wanted, partition, offset)
        return await self._listed(walk, limit, encoding)

    async def all_letters(
        self, wanted: LettersQuery, limit: LimitQuery = 100, encoding: EncodingQuery = "utf8"
    ) -> Response:
        """The same of all topics."""
        return await self._listed(self._walk_all(wanted), limit, encoding)

    async def _listed(
        self, walk: AsyncIterator[DeadLetter], limit: int, encoding: Encoding
    ) -> Response:
        found: list[DeadLetter] = []
        size = 0
        is_complete = True
        async for letter in walk:
            if len(found) >= limit or size > _BYTES_MAX:
                is_complete = False
                break
            found.append(letter)
            size += len(letter.value)
        return await self._backend.json_of(
            "letters",
            found,
            lambda letter: LetterAnswer.of(letter, encoding),
            {"is_complete": is_complete},
        )

    async def letter(
        self,
        topic: TopicName,
        partition: PartitionNumber,
        offset: OffsetNumber,
        encoding: EncodingQuery = "utf8",
    ) -> Response:
        """One dead letter, by its place in the dead-letter topic."""
        place = await self._place(topic)
        found = (await self._backend.fetch(place, partition, offset, 1)).messages
        if not found:
            end = offset
            raise OffsetOutOfRange(
                f"{place}/{partition} has no message at {offset} yet", earliest=0, end=end
            )
        return Json(LetterAnswer.of(DeadLetter.of(found[0]), encoding))

    async def redrive(self, topic: TopicName, body: RedriveBody) -> Response:
        """Let dead letters be delivered again: to the group that failed, to all groups of their
        topic, or in another topic."""
        redriven = await self._admin.redrive(
            topic, _offsets(body), body.partition, body.to, body.rate, body.wanted
        )
        return Json(RedrivenAnswer(messages=int(redriven), stayed=redriven.stayed))

    async def purge(self, topic: TopicName, body: LettersBody) -> Response:
        """Drop dead letters."""
        purged = await self._admin.redrive(
            topic, _offsets(body), body.partition, wanted=body.wanted, purge=True
        )
        return Json(CountAnswer(messages=int(purged)))

    async def _place(self, topic: str) -> str:
        return (await self._backend.core.admin.describe([topic]))[0].dead_letter

    async def _walk_all(self, wanted: LetterFilter) -> AsyncIterator[DeadLetter]:
        for place in await self._admin.all_places():
            try:
                async for letter in self._walk(place, wanted, None, 0):
                    yield letter
            except Forbidden:
                # Of all topics those that the caller may read.
                continue

    async def _walk(
        self, place: str, wanted: LetterFilter, only: int | None, first: int
    ) -> AsyncIterator[DeadLetter]:
        """Letters that were neither redriven nor purged, a part at a time."""
        try:
            count = len((await self._backend.core.admin.describe([place]))[0].partitions)
        except TopicNotFound:
            # It is made for the first letter.
            return
        if only is not None and only >= count:
            raise InvalidRequest(f"{place!r} has partitions 0 to {count - 1}, not {only}")
        for partition in range(count) if only is None else [only]:
            async for interval in self._intervals(place, partition, wanted, first):
                at = max(interval.start, first)
                while at < interval.end:
                    limit = min(interval.end - at, LISTED_MAX)
                    part = await self._part(place, partition, at, limit)
                    for message in part:
                        # A broker of another release may know of no filters.
                        if wanted.wants(message.headers, message.key, message.timestamp):
                            yield DeadLetter.of(message)
                    at = part[-1].offset + 1 if part else interval.end

    async def _intervals(
        self, place: str, partition: int, wanted: LetterFilter, first: int
    ) -> AsyncIterator[proto.Interval]:
        while True:
            request = proto.Request()
            ask = request.list_dead
            ask.topic, ask.partition, ask.first = place, partition, first
            if not wanted.is_open:
                ask.filter.CopyFrom(wanted.pack())
            listed = (await self._backend.ask(request)).dead_listed
            for interval in listed.intervals:
                yield interval
            if not listed.next:
                return
            first = listed.next

    async def _part(self, place: str, partition: int, at: int, limit: int) -> Any:
        try:
            return (await self._backend.fetch(place, partition, at, limit)).messages
        except OffsetOutOfRange:
            # Retention was faster.
            return []

    async def delayed(self, topic: TopicName, limit: LimitQuery = 100) -> Response:
        """Messages that a producer delayed and that are not due yet, the next first."""
        found = await self._backend.core.groups.delayed(topic, limit)
        return Json(DelayedListAnswer(delayed=[DelayedAnswer.of(each) for each in found]))

    async def cancel(self, topic: TopicName, body: DelayedBody) -> Response:
        """Cancel delayed messages; answers how many of them were not due yet."""
        count = await self._backend.core.groups.cancel_delayed(
            topic, body.partition, numbers_of(body.offsets)
        )
        return Json(CountAnswer(messages=count))


def _offsets(body: LettersBody) -> list[int] | None:
    return None if body.offsets is None else numbers_of(body.offsets)
