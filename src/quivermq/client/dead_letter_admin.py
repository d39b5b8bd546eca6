"""Administration of dead letters: lists them, puts them back into their topics, drops them."""

from collections.abc import Iterable, Iterator
from typing import Final

from quivermq.client.admin import Admin
from quivermq.client.checks import check_number
from quivermq.client.cursor import Cursor
from quivermq.client.decode import messages_of
from quivermq.client.group_models import DeadLetter
from quivermq.client.models import Message
from quivermq.client.retry import Attempts
from quivermq.client.router import Router
from quivermq.errors import InvalidRequest, OffsetOutOfRange, TopicNotFound
from quivermq.intervals import Interval, intervals_of
from quivermq.wire import proto

_READ_MESSAGES: Final = 1000

Letters = int | DeadLetter | Iterable[int | DeadLetter]
"""Offsets in the dead-letter topic, or letters as they were listed."""


class DeadLetterAdmin:
    """The part of a client that administers dead letters."""

    def __init__(self, router: Router, admin: Admin) -> None:
        self._router = router
        self._admin = admin

    async def list_letters(self, topic: str, limit: int) -> list[DeadLetter]:
        """Letters of this topic that were neither redriven nor purged, the oldest first."""
        check_number("limit", limit, least=1, whole=True)
        found: list[DeadLetter] = []
        place = await self._place(topic)
        attempts = self._attempts(topic)
        for partition in await self._partitions(place, attempts):
            found += await self._letters(topic, place, partition, attempts, limit - len(found))
            if len(found) >= limit:
                break
        return found

    async def redrive(
        self, topic: str, offsets: Letters | None, partition: int | None, *, purge: bool
    ) -> int:
        """Put letters back, or drop them; returns how many."""
        place = await self._place(topic)
        attempts = self._attempts(topic)
        partitions = await self._partitions(place, attempts)
        if partition is not None and partitions and partition not in partitions:
            raise InvalidRequest(
                f"{place!r} has the partitions 0 to {len(partitions) - 1}: {partition!r}"
            )
        chosen: dict[int, list[Interval]]
        if offsets is not None:
            chosen = _chosen(offsets, partition, partitions)
        elif place == f"{topic}.dlq":
            chosen = {each: [] for each in partitions if partition in {None, each}}
        else:
            # Other topics may send theirs to the same place.
            chosen = {}
            for each in partitions:
                if partition in {None, each}:
                    mine = await self._letters(topic, place, each, attempts)
                    if mine:
                        chosen[each] = intervals_of([letter.offset for letter in mine])
        done = 0
        for number, intervals in chosen.items():
            request = proto.Request()
            redrive = request.redrive
            redrive.topic, redrive.partition, redrive.purge = place, number, purge
            for start, end in intervals:
                redrive.intervals.add(start=start, end=end)
            reply = await self._router.ask_leader(place, number, request, attempts)
            done += reply.response.redriven.messages
        return done

    async def _letters(
        self,
        topic: str,
        place: str,
        partition: int,
        attempts: Attempts,
        limit: int | None = None,
    ) -> list[DeadLetter]:
        """Of one partition of the dead-letter topic."""
        request = proto.Request()
        request.list_dead.topic, request.list_dead.partition = place, partition
        reply = await self._router.ask_leader(place, partition, request, attempts)
        found: list[DeadLetter] = []
        for interval in _slices(reply.response.dead_listed.intervals):
            for message in await self._read(place, partition, interval):
                letter = DeadLetter.of(message)
                if letter.topic in {topic, ""}:
                    found.append(letter)
            if limit is not None and len(found) >= limit:
                return found[:limit]
        return found

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

    async def _partitions(self, place: str, attempts: Attempts) -> list[int]:
        """Of the dead-letter topic; none if there is none yet."""
        try:
            return list(range(len((await self._router.refresh(place, attempts)).leaders)))
        except TopicNotFound:
            return []

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


def _slices(intervals: Iterable[proto.Interval]) -> Iterator[Interval]:
    """So many at a time as are read at once, however many there are."""
    for interval in intervals:
        for start in range(interval.start, interval.end, _READ_MESSAGES):
            yield start, min(interval.end, start + _READ_MESSAGES)
