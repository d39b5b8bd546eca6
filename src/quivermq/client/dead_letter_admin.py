"""Administration of dead letters: lists them, puts them back into their topics, drops them."""

import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from quivermq.client.admin import Admin
from quivermq.client.checks import (
    Payload,
    as_bytes,
    check_number,
    checked_name,
    delay_seconds,
)
from quivermq.client.cursor import Cursor
from quivermq.client.decode import messages_of
from quivermq.client.group_models import DeadLetter, Redriven
from quivermq.client.models import Message
from quivermq.client.retry import Attempts
from quivermq.client.router import Router
from quivermq.errors import Forbidden, InvalidRequest, OffsetOutOfRange, TopicNotFound
from quivermq.intervals import Interval, IntervalSet, intervals_of, split_intervals
from quivermq.wire import LetterFilter, proto

logger = logging.getLogger("quivermq.client")

_READ_MESSAGES: Final = 1000
_ANY: Final = LetterFilter()
REDRIVE_TARGETS: Final = {"group": "@group", "all": ""}
"""Where letters go, as it is said to brokers; anything else is a topic."""

Letters = int | DeadLetter | Iterable[int | DeadLetter]
"""Offsets in the dead-letter topic, or letters as they were listed."""


def letter_filter(
    group: str | None = None,
    reason: str | None = None,
    key: Payload | None = None,
    older_than: float | timedelta | None = None,
    since: datetime | float | None = None,
) -> LetterFilter:
    """Arguments of a user as a filter."""
    for name, text in (("group", group), ("reason", reason)):
        if not isinstance(text, str | None):
            raise InvalidRequest(f"{name} is text, not {type(text).__name__}")
    before_ms = from_ms = 0
    if older_than is not None:
        check_number("older_than", seconds := delay_seconds(older_than), least=0)
        before_ms = max(1, int((time.time() - seconds) * 1000))
    if since is not None:
        moment = since.timestamp() if isinstance(since, datetime) else since
        check_number("since", moment, least=0)
        from_ms = int(moment * 1000)
    wanted_key = None if key is None else as_bytes("key", key)
    return LetterFilter("", group or "", reason or "", wanted_key, from_ms, before_ms)


class DeadLetterAdmin:
    """The part of a client that administers dead letters."""

    def __init__(self, router: Router, admin: Admin) -> None:
        self._router = router
        self._admin = admin

    async def list_letters(
        self, topic: str | None, limit: int, wanted: LetterFilter = _ANY
    ) -> list[DeadLetter]:
        """Letters that were neither redriven nor purged, of this topic or of all; of each
        partition the oldest first."""
        check_number("limit", limit, least=1, whole=True)
        found: list[DeadLetter] = []
        async for letter in self.walk(topic, wanted):
            found.append(letter)
            if len(found) >= limit:
                break
        return found

    async def walk(
        self,
        topic: str | None,
        wanted: LetterFilter = _ANY,
        partition: int | None = None,
        first: int = 0,
    ) -> AsyncIterator[DeadLetter]:
        """The same one by one; only of this partition of the dead-letter topic, from `first` on."""
        places = [await self._place(topic)] if topic is not None else await self.all_places()
        wanted = wanted._replace(topic=topic or "")
        for place in places:
            try:
                async for letter in self._walk(place, wanted, partition, first):
                    yield letter
            except Forbidden:
                if topic is not None:
                    raise
                # Of all topics those that the user may read.

    async def _walk(
        self, place: str, wanted: LetterFilter, partition: int | None, first: int
    ) -> AsyncIterator[DeadLetter]:
        """Of one dead-letter topic."""
        for number in await self._partitions(place, partition, self._attempts(place)):
            async for intervals in self._intervals(place, number, wanted, first):
                for interval in _slices(intervals):
                    for message in await self._read(place, number, interval):
                        # Brokers before 0.3.0 know of no filters.
                        if wanted.wants(message.headers, message.key, message.timestamp):
                            yield DeadLetter.of(message)

    async def redrive(
        self,
        topic: str,
        offsets: Letters | None,
        partition: int | None,
        to: str = "group",
        rate: float | None = None,
        wanted: LetterFilter = _ANY,
        *,
        purge: bool = False,
    ) -> Redriven:
        """Put letters back, or drop them; returns how many."""
        place = await self._place(topic)
        numbers = await self._partitions(place, partition, self._attempts(place))
        chosen: dict[int, list[Interval]] = {number: [] for number in numbers}
        if offsets is not None:
            chosen = _chosen(offsets, partition, numbers)
        elif place != f"{topic}.dlq":
            # Other topics may send theirs to the same place.
            wanted = wanted._replace(topic=topic)
        body = proto.Redrive(topic=place, purge=purge)
        if not purge:
            body.to = await self._target(to)
        if not wanted.is_open:
            body.filter.CopyFrom(wanted.pack())
        if rate is not None:
            check_number("rate", rate, least=0.001)
        done, stayed = 0, 0
        for number, intervals in chosen.items():
            async for part in self._portions(place, number, intervals, wanted, rate):
                async for answer in self._redrive_at(body, number, part):
                    done, stayed = done + answer.messages, stayed + answer.stayed
        if stayed:
            logger.warning(
                '%s dead letters of %s stay: their originals or groups are gone; to="all" stores '
                "them again",
                f"{stayed:,}",
                topic,
            )
        return Redriven(done, stayed)

    async def _target(self, to: str) -> str:
        if to in REDRIVE_TARGETS:
            return REDRIVE_TARGETS[to]
        # Raises if there is no such topic.
        return (await self._admin.describe([checked_name("topic", to)]))[0].name

    async def _redrive_at(
        self, body: proto.Redrive, number: int, intervals: list[Interval]
    ) -> AsyncIterator[proto.Redriven]:
        """At one partition: as often as it takes to look at all letters."""
        asked = proto.Redrive()
        asked.CopyFrom(body)
        asked.partition = number
        for start, end in intervals:
            asked.intervals.add(start=start, end=end)
        while True:
            request = proto.Request()
            # What brokers of release 0.2.0 can do, they are asked in their way.
            is_old = not asked.to and not asked.HasField("filter")
            (request.redrive if is_old else request.redrive_to).CopyFrom(asked)
            attempts = self._attempts(body.topic)
            reply = await self._router.ask_leader(body.topic, number, request, attempts)
            redriven = reply.response.redriven
            yield redriven
            if not redriven.next:
                return
            asked.first = redriven.next

    async def _portions(
        self,
        place: str,
        number: int,
        named: list[Interval],
        wanted: LetterFilter,
        rate: float | None,
    ) -> AsyncIterator[list[Interval]]:
        """Intervals for one request each; with a rate, only as many as may go by now."""
        if rate is None:
            yield named
            return
        transport = self._router.transport
        due = transport.now()
        async for dead in self._intervals(place, number, wanted, 0):
            known = IntervalSet(dead)
            chosen = [x for low, high in named for x in known.within(low, high)] if named else dead
            for portion in split_intervals(chosen, max(1, int(rate))):
                if (wait := due - transport.now()) > 0:
                    await transport.sleep(wait)
                due = transport.now() + sum(end - start for start, end in portion) / rate
                yield portion

    async def _intervals(
        self, place: str, partition: int, wanted: LetterFilter, first: int
    ) -> AsyncIterator[list[Interval]]:
        """Of one partition of a dead-letter topic, as many at a time as a broker looks at."""
        while True:
            request = proto.Request()
            ask = request.list_dead
            ask.topic, ask.partition, ask.first = place, partition, first
            if not wanted.is_open:
                ask.filter.CopyFrom(wanted.pack())
            attempts = self._attempts(place)
            reply = await self._router.ask_leader(place, partition, request, attempts)
            listed = reply.response.dead_listed
            yield [
                (max(part.start, first), part.end) for part in listed.intervals if part.end > first
            ]
            if not listed.next:
                return
            first = listed.next

    async def _read(self, place: str, partition: int, interval: Interval) -> list[Message]:
        cursor = Cursor(
            self._router,
            place,
            partition,
            start=interval[0],
            stop=interval[1],
            follow=False,
            follower_ok=False,
        )
        found: list[Message] = []
        try:
            while (span := await cursor.next_span()) is not None:
                for frame in span.frames:
                    found += messages_of(
                        frame, place, partition, span.start, span.stop, self._router.limits
                    )
        except OffsetOutOfRange:
            pass  # retention was faster
        finally:
            cursor.close()
        return found

    async def _place(self, topic: str) -> str:
        return (await self._admin.describe([topic]))[0].dead_letter

    async def all_places(self) -> list[str]:
        """The dead-letter topics of all topics."""
        known = {topic.name: topic.dead_letter for topic in await self._admin.describe([])}
        return sorted(set(known.values()) & known.keys())

    async def _partitions(self, place: str, partition: int | None, attempts: Attempts) -> list[int]:
        """Of the dead-letter topic, or this one; none if there is no such topic yet."""
        try:
            count = len((await self._router.refresh(place, attempts)).leaders)
        except TopicNotFound:
            return []
        if partition is None:
            return list(range(count))
        if isinstance(partition, bool) or partition not in range(count):
            raise InvalidRequest(f"{place!r} has the partitions 0 to {count - 1}: {partition!r}")
        return [partition]

    def _attempts(self, topic: str) -> Attempts:
        return self._router.attempts(f"looking after the dead letters of {topic}")


def _chosen(
    offsets: Letters, partition: int | None, partitions: list[int]
) -> dict[int, list[Interval]]:
    if not isinstance(offsets, int | Iterable):
        raise InvalidRequest(f"name offsets, or letters as they were listed: {offsets!r}")
    letters = [offsets] if isinstance(offsets, int | DeadLetter) else list(offsets)
    chosen: dict[int, list[int]] = {}
    for letter in letters:
        if isinstance(letter, DeadLetter):
            chosen.setdefault(letter.partition, []).append(letter.offset)
            continue
        check_number("offset", letter, least=0, whole=True)
        if partition is None and len(partitions) > 1:
            raise InvalidRequest(
                "the dead-letter topic has several partitions: name the one that the offsets are "
                "of with partition=..., or give letters as dead_letters lists them"
            )
        chosen.setdefault(partition or 0, []).append(letter)
    return {number: intervals_of(found) for number, found in chosen.items()}


def _slices(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """So many at a time as are read at once, however many there are."""
    for start, end in intervals:
        for low in range(start, end, _READ_MESSAGES):
            yield low, min(end, low + _READ_MESSAGES)
