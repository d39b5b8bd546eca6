"""Reads a partition: a cursor that fetches ahead.

While the user works on what one fetch brought, the next is already under way.
"""

from datetime import datetime
from secrets import randbelow
from typing import Final, NamedTuple

from quivermq.batches import Frame, FrameKind
from quivermq.client.ask_leaders import check_same
from quivermq.client.producer.partition_stream import LeaderConnections
from quivermq.client.retry import Attempts
from quivermq.client.router import Router, Target
from quivermq.client.transport import Connection
from quivermq.errors import (
    ConnectionFailed,
    InvalidRequest,
    OffsetOutOfRange,
    Overloaded,
    QuiverError,
    Timeout,
)
from quivermq.wire import error_from_proto, frames_of, proto

FETCH_BYTES: Final = 4 << 20
"""The most that one fetch asks for."""

WAIT_SECONDS: Final = 5.0
"""How long the broker holds a fetch until there are messages."""

LAG_SECONDS: Final = 0.5
"""How long a follower may take to get messages that are known to exist."""

FOLLOWER_SECONDS: Final = 4.0
"""How long it may take to answer, if the leader can be asked instead."""

_DATA: Final = int(FrameKind.DATA)

Place = int | str | datetime
"""An offset, "earliest", "latest", or a time: a datetime, ISO 8601 text, or "@" and milliseconds
since 1970."""


class Span(NamedTuple):
    """Frames of a partition, and which offsets in them were asked for: those in [start, stop)."""

    frames: list[Frame]
    start: int
    stop: int | None
    partition: int


class ReadAhead(NamedTuple):
    """A fetch that is under way."""

    connection: Connection
    request_id: int
    target: Target
    deadline: float


class Cursor:
    """Where one reader stands in a partition, and how it gets on."""

    def __init__(
        self,
        router: Router,
        topic: str,
        partition: int,
        *,
        start: Place,
        stop: Place | None,
        follow: bool,
        follower_ok: bool,
        topic_id: bytes = b"",
        is_known: bool = False,
        tells_pauses: bool = False,
    ) -> None:
        """With an id, only of the topic that has it: `TopicNotFound` if it was created again.
        `is_known`: everything from `start` to `stop` exists; a follower that does not have it yet
        is not the last to be asked. `tells_pauses`: a span without frames says that there was
        nothing for a while."""
        self.topic = topic
        self.partition = partition
        self._router = router
        self._links = LeaderConnections(router)
        self._start = parse_place("start", start)
        self._stop = None if stop is None else parse_place("stop", stop)
        self.is_followed = follow
        self._topic_id = topic_id
        self._is_known = is_known
        self._tells_pauses = tells_pauses
        # Readers spread over the followers, but each stays with one.
        self._follower = randbelow(1 << 16) if follower_ok else None
        self._offset = 0
        """Where the next fetch goes on, once `_begin` has found it out."""
        self._has_begun = False
        self._end: int | None = None
        """Behind the last message to hand out; None: there is no end."""
        self._is_at_start = True
        self._is_closed = False
        self._ahead: ReadAhead | None = None
        self._request = proto.Request()
        fetch = self._request.fetch
        fetch.topic, fetch.partition = topic, partition
        wait = LAG_SECONDS if is_known and follower_ok else WAIT_SECONDS
        fetch.bytes_max, fetch.wait_ms = FETCH_BYTES, int(wait * 1000)
        fetch.follower_ok = follower_ok

    async def next_span(self) -> Span | None:
        """The next frames; None: this is the end."""
        if self._is_closed:
            return None
        await self.begin()
        patience = self._router.transport.now() + self._router.timeout
        while True:
            start = self._offset
            if self._end is not None and start >= self._end:
                self.close()
                return None
            try:
                frames, next_offset = await self._fetch(start)
            except OffsetOutOfRange as error:
                if not (self._turns_to_leader() or self._skips_to_kept(error)):
                    raise
                continue
            if next_offset > start:
                self._offset = next_offset
                self._is_at_start = False
                await self._fetch_ahead(next_offset)
                return Span(frames, start, self._end, self.partition)
            if self._turns_to_leader():
                continue
            if self._tells_pauses:
                return Span([], start, self._end, self.partition)
            if not self.is_followed and self._router.transport.now() > patience:
                raise Timeout(
                    f"{self.topic}/{self.partition} should have messages from {start} to "
                    f"{self._end}, but none came within {self._router.timeout:g} s"
                )

    def close(self) -> None:
        """No more fetches; the connection goes back."""
        self._is_closed = True
        if self._ahead is not None:
            self._ahead.connection.forget(self._ahead.request_id)
            self._ahead = None
        self._links.release()

    @property
    def offset(self) -> int:
        """Where it goes on, once it has begun."""
        return self._offset

    @property
    def end(self) -> int | None:
        """Behind the last message that it reads; None: there is no end."""
        return self._end

    async def begin(self) -> None:
        """Find out where to start and where to stop, unless that is known."""
        if not self._has_begun:
            await self._begin()

    async def _begin(self) -> None:
        if self._is_known and isinstance(self._start, int) and isinstance(self._stop, int):
            self._offset, self._end = self._start, self._stop
            await self._turn_to_nearer()
            self._has_begun = True
            return
        stop = None if self._stop is None else await self.offset_of(self._stop)
        latest = None if self.is_followed else await self.offset_of("latest")
        start = await self.offset_of(self._start)
        ends = [end for end in (stop, latest) if end is not None]
        self._end = min(ends, default=None)
        try:
            if latest is not None and start > latest:
                # Beyond the end: the broker knows what to say.
                await self._fetch(start)
        except OffsetOutOfRange:
            self.close()
            raise
        self._offset = start
        await self._turn_to_nearer()
        self._has_begun = True

    async def _turn_to_nearer(self) -> None:
        """The leader has said what there is, all of it committed, so a follower that has it shows
        the same: one in the zone of this client is nearer. One that lacks some of it is left."""
        if self.is_followed or self._end is None or self._follower is not None:
            return
        if await self._router.is_nearer(self.topic, self.partition, self._attempts()):
            self._is_known = True
            self._follower = randbelow(1 << 16)
            fetch = self._request.fetch
            fetch.follower_ok, fetch.wait_ms = True, int(LAG_SECONDS * 1000)

    def _turns_to_leader(self) -> bool:
        """A follower lacks what is known to exist, or fails: from here on the leader is asked."""
        if not self._is_known or self._follower is None:
            return False
        self._follower = None
        self._request.fetch.follower_ok = False
        return True

    def _skips_to_kept(self, error: OffsetOutOfRange) -> bool:
        """Asked for the earliest, and retention was faster than the first fetch."""
        start = self._offset
        if self._start != "earliest" or not self._is_at_start or error.earliest <= start:
            return False
        self._offset = error.earliest
        return True

    async def offset_of(self, place: int | str) -> int:
        """The offset of a place; a time stands there as text with "@" in front."""
        if isinstance(place, int):
            return place
        request = proto.Request()
        find = request.find_offset
        find.topic, find.partition = self.topic, self.partition
        find.follower_ok = self._follower is not None
        if place == "earliest":
            find.earliest = True
        elif place == "latest":
            find.latest = True
        else:
            find.timestamp_ms = int(place[1:])
        attempts = self._attempts()
        while True:
            target = await self._target(attempts)
            request.direct, find.topic_id = target.direct, target.topic_id
            try:
                reply = await self._router.exchange(target.address, request, (), attempts)
            except QuiverError as error:
                await self._router.recover(self.topic, self.partition, target, error, attempts)
            else:
                return reply.response.offset_found.offset

    async def _fetch(self, offset: int) -> tuple[list[Frame], int]:
        """The frames from `offset` on, and where the next ones start."""
        attempts: Attempts | None = None
        while True:
            ahead, self._ahead = self._ahead, None
            target = None if ahead is None else ahead.target
            try:
                if target is None or ahead is None:
                    attempts = attempts or self._attempts()
                    target = await self._target(attempts)
                    ahead = await self._post(offset, target, attempts)
                return await self._answer(ahead)
            except QuiverError as error:
                if target is None:
                    raise  # no broker could be asked, for as long as there was time
                if not isinstance(error, Overloaded) and self._turns_to_leader():
                    continue
                attempts = attempts or self._attempts()
                await self._router.recover(self.topic, self.partition, target, error, attempts)

    async def _fetch_ahead(self, offset: int) -> None:
        """Ask for what comes next, without waiting for it."""
        if self._end is not None and offset >= self._end:
            return
        attempts = self._attempts()
        try:
            self._ahead = await self._post(offset, await self._target(attempts), attempts)
        except QuiverError:
            self._ahead = None  # the next fetch asks again, and meets the trouble

    async def _post(self, offset: int, target: Target, attempts: Attempts) -> ReadAhead:
        router, fetch = self._router, self._request.fetch
        deadline = attempts.attempt_deadline() + WAIT_SECONDS
        if self._is_known and self._follower is not None:
            # It may hang; the leader is there to be asked.
            deadline = min(deadline, router.transport.now() + LAG_SECONDS + FOLLOWER_SECONDS)
        try:
            connection = await self._links.get(target.address, deadline)
            self._request.direct = target.direct
            self._request.timeout_ms = max(1, int((deadline - router.transport.now()) * 1000))
            fetch.topic_id, fetch.offset, fetch.stop = target.topic_id, offset, self._end or 0
            request_id = await connection.post(self._request, (), deadline)
        except (ConnectionFailed, Timeout):
            router.map.avoid(target.address, router.transport.now())
            raise
        return ReadAhead(connection, request_id, target, deadline)

    async def _answer(self, ahead: ReadAhead) -> tuple[list[Frame], int]:
        router = self._router
        try:
            reply = await ahead.connection.take(ahead.request_id, ahead.deadline)
        except (ConnectionFailed, Timeout):
            router.map.avoid(ahead.target.address, router.transport.now())
            raise
        if reply.response.WhichOneof("body") == "error":
            raise error_from_proto(reply.response.error)
        frames = frames_of(reply.packet, router.limits)
        data = [frame for frame in frames if frame.header.kind == _DATA]
        return data, reply.response.fetched.next_offset

    async def _target(self, attempts: Attempts) -> Target:
        if self._topic_id:
            await check_same(self._router, self.topic, self._topic_id, attempts)
        return await self._router.target(
            self.topic, self.partition, attempts, follower=self._follower
        )

    def _attempts(self) -> Attempts:
        return self._router.attempts(f"reading {self.topic}/{self.partition}")


def parse_place(name: str, place: Place) -> int | str:
    """An offset, "earliest", "latest", or "@" and milliseconds since 1970."""
    if isinstance(place, datetime):
        return _time(name, place)
    # True is an int too.
    if type(place) is int and 0 <= place < 1 << 63:
        return place
    if isinstance(place, str):
        if place in {"earliest", "latest"}:
            return place
        number = place[1:20]
        if place == f"@{number}" and number.isdecimal() and int(number) < 1 << 63:
            return f"@{int(number)}"
        try:
            return _time(name, datetime.fromisoformat(place))
        except (ValueError, OverflowError):
            pass
    raise InvalidRequest(
        f'{name} must be an offset, "earliest", "latest", a datetime, its ISO 8601 text, or "@" '
        f"and milliseconds since 1970: {place!r}"
    )


def _time(name: str, moment: datetime) -> str:
    milliseconds = int(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise InvalidRequest(f"{name} must not be before 1970: {moment}")
    return f"@{milliseconds}"
