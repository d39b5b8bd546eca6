"""Reads all partitions of a topic: one after the other up to their ends, or, to follow them,
whichever has more."""

from collections import deque
from typing import Final

from quivermq.client.cursor import Cursor, Place, Span, parse_place
from quivermq.client.offsets import Offsets
from quivermq.client.router import Router
from quivermq.errors import InvalidRequest, TopicNotFound

# Brokers do not announce partitions that are added to a topic: so never wait for longer.
_WAIT_SECONDS: Final = 2.0


class TopicCursor:
    """Where one reader stands in all partitions of a topic, and how it gets on."""

    def __init__(
        self,
        router: Router,
        offsets: Offsets,
        topic: str,
        *,
        start: Place,
        stop: Place | None,
        follow: bool,
        follower_ok: bool,
    ) -> None:
        self._router = router
        self._offsets = offsets
        self._topic = topic
        self._start = parse_place("start", start)
        self._stop = None if stop is None else parse_place("stop", stop)
        self._follow = follow
        self._follower_ok = follower_ok
        self._cursors: deque[Cursor] = deque()
        """Those that have something to read, as far as is known; the first is being read."""
        self._positions: dict[int, int] = {}
        """Of the others, while they are followed."""
        self._ends: dict[int, int] = {}
        """Where each is to stop, if it is."""
        self._count = 0
        self._topic_id = b""
        self._is_closed = False

    async def next_span(self) -> Span | None:
        """The next frames; None: this is the end."""
        if not self._is_closed and not self._count:
            await self._begin()
        while not self._is_closed:
            if not self._cursors:
                if not self._positions:
                    break
                await self._await_more()
                continue
            cursor = self._cursors[0]
            span = await cursor.next_span()
            if span is not None and (span.frames or not self._follow):
                return span
            if span is None or await self._has_grown():
                self._leave(self._cursors.popleft())
        self.close()
        return None

    def close(self) -> None:
        """No more fetches; the connections go back."""
        self._is_closed = True
        for cursor in self._cursors:
            cursor.close()
        self._cursors.clear()

    async def _begin(self) -> None:
        # Fresh: partitions may have been added since the map was asked for.
        count = await self._partition_count()
        self._check_places(count)
        self._count = count
        if count == 1:
            # Followed without detours, for as long as it is the only one.
            self._cursors.append(self._cursor(0, is_followed=self._follow))
            return
        for partition in range(count):
            await self._add(partition)

    async def _add(self, partition: int) -> None:
        """Where each begins and ends is found out first: what is stored meanwhile comes later."""
        cursor = self._cursor(partition, is_followed=False)
        self._cursors.append(cursor)
        await cursor.begin()
        if self._follow and self._stop is not None:
            self._ends[partition] = await cursor.offset_of(self._stop)

    def _cursor(self, partition: int, *, is_followed: bool) -> Cursor:
        return Cursor(
            self._router,
            self._topic,
            partition,
            start=self._start,
            stop=self._stop,
            follow=is_followed,
            follower_ok=self._follower_ok,
            # One partition alone needs no more care than one that is named.
            topic_id=self._topic_id if self._count > 1 else b"",
            tells_pauses=is_followed,
        )

    def _leave(self, cursor: Cursor) -> None:
        """All that was there is read."""
        cursor.close()
        if cursor.is_followed and cursor.end is not None:
            self._ends[cursor.partition] = cursor.end
        if self._follow and cursor.offset < self._ends.get(cursor.partition, cursor.offset + 1):
            self._positions[cursor.partition] = cursor.offset

    async def _await_more(self) -> None:
        """Wait until some partition has more, and read on there."""
        found = await self._offsets.beyond({self._topic: self._positions}, _WAIT_SECONDS)
        held = found.get(self._topic)
        if held is None:
            await self._has_grown()
            return
        if bytes.fromhex(held.id) != self._topic_id:
            raise TopicNotFound(f"topic {self._topic!r} was deleted and created again")
        for partition, place in sorted(held.partitions.items()):
            if place.end > self._positions.get(partition, place.end):
                end = min(place.end, self._ends.get(partition, place.end))
                self._cursors.append(
                    Cursor(
                        self._router,
                        self._topic,
                        partition,
                        start=self._positions.pop(partition),
                        stop=end,
                        follow=False,
                        follower_ok=self._follower_ok,
                        topic_id=self._topic_id,
                        is_known=True,
                    )
                )

    async def _has_grown(self) -> bool:
        """Read partitions that were added, too."""
        before, self._count = self._count, await self._partition_count()
        for partition in range(before, self._count):
            await self._add(partition)
        return self._count > before

    async def _partition_count(self) -> int:
        attempts = self._router.attempts(f"reading {self._topic}")
        route = await self._router.refresh(self._topic, attempts)
        if self._topic_id and route.id != self._topic_id:
            raise TopicNotFound(f"topic {self._topic!r} was deleted and created again")
        self._topic_id = route.id
        return len(route.leaders)

    def _check_places(self, count: int) -> None:
        if count > 1 and (isinstance(self._start, int) or isinstance(self._stop, int)):
            raise InvalidRequest(
                f"topic {self._topic!r} has {count} partitions: an offset means something in one "
                "of them; name it with partition=..."
            )
