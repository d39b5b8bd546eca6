"""One partition that a member of a sticky group owns: claims it, prefetches, and commits.

Lives on an event loop. Where the user stands in it is kept by the `DeliveryBuffer`.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from quivermq.batches import Frame, FrameKind
from quivermq.client.models import Message
from quivermq.client.router import Router
from quivermq.client.sticky.unread_messages import UnreadMessages
from quivermq.client.transport import Reply
from quivermq.errors import Fenced, OffsetOutOfRange, QuiverError
from quivermq.wire import frames_of, proto

WAIT_SECONDS: Final = 5.0
"""How long a broker holds a fetch until there are messages."""
CROWDED_WAIT_SECONDS: Final = 0.5
"""The same where partitions have to take turns."""
FETCHES_AT_ONCE: Final = 500
"""Of one consumer: brokers limit the open requests of a connection."""
FETCH_BYTES_MAX: Final = 32 << 20
AGAIN_SECONDS: Final = 0.2
_DATA: Final = int(FrameKind.DATA)

Start = Literal["earliest", "latest"]


class Ownership(NamedTuple):
    """The partition that is owned, by which group, in which epoch."""

    topic: str
    group: str
    partition: int
    epoch: int


class OwnedPartition:
    """Messages of one partition in order, from where the group stands."""

    def __init__(
        self,
        router: Router,
        owned: Ownership,
        start: Start,
        bytes_max: int,
        fetches: asyncio.Semaphore,
        put: Callable[["OwnedPartition", list[Frame]], None],
        kind: type[Message] = Message,
    ) -> None:
        """`put` is called with what was fetched."""
        self.owned = owned
        self.partition, self.epoch = owned.partition, owned.epoch
        self.bytes_max = bytes_max
        """Past this, nothing more is fetched until some is handed out."""
        self.committed = -1
        """Where the group stands, as far as the cluster knows; -1: that is not known yet."""
        self.yielded = 0
        """Behind the last message that the user was given."""
        self.past = 0
        """Behind the last message that the user is done with."""
        self.unread = UnreadMessages(owned.topic, owned.partition, router.limits, kind)
        """What was fetched and not given out, which the `DeliveryBuffer` guards."""
        self.awaits_room = False
        """So much is unread that nothing is fetched."""
        self.is_withdrawn = False
        """Nothing more of it is given to the user."""
        self.is_paused = False
        """The user wants nothing of it for a while."""
        self.holds = 0
        """The number of callbacks and seeks that want nothing given out until they are done."""
        self.seeking = asyncio.Lock()
        self.claimed = asyncio.Event()
        """Where the group stands is known."""
        self.freed = asyncio.Event()
        """The user is done with all that it was given, after it was withdrawn."""
        self._router = router
        self._start = start
        self._fetches = fetches
        self._put = put
        self._topic_id = b""
        self._fetch_at = 0
        """The first offset that is not fetched yet."""
        self._room = asyncio.Event()
        self._committing = asyncio.Lock()
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Claim it and read ahead, for as long as it is owned; raises what will not pass. Once it
        was cancelled, it can be run again."""
        while self.committed < 0:
            try:
                await self._claim()
            except QuiverError as error:
                await _pause(error)
        while True:
            await self._await_room()
            try:
                self._fetch_at = await self._fetch(self._fetch_at)
            except OffsetOutOfRange as error:
                # Retention was faster. What it deleted is counted where the group lives.
                is_behind = self._fetch_at < error.earliest
                self._fetch_at = error.earliest if is_behind else error.end
                self.unread.skip_to(self._fetch_at)
            except QuiverError as error:
                await _pause(error)

    async def _await_room(self) -> None:
        while True:
            # Said before it is looked for: who takes looks for this afterwards.
            self.awaits_room = True
            if self.has_room:
                break
            await self._room.wait()
            self._room.clear()
        self.awaits_room = False

    @property
    def has_room(self) -> bool:
        """More may be fetched."""
        return self.unread.bytes < self.bytes_max

    def find_room(self) -> None:
        """Some was taken, so that there is room."""
        self._room.set()

    def is_of(self, message: Message) -> bool:
        """The message is one of this partition."""
        return message.partition == self.partition and message.topic == self.owned.topic

    @property
    def is_open(self) -> bool:
        """Its messages may be given out."""
        return not (self.is_withdrawn or self.is_paused or self.holds)

    async def commit_past(self) -> None:
        """Remember that the group is done with what the user is past; raises `Fenced`."""
        async with self._committing:
            # Not before: it may go back while this waits.
            if self.past > self.committed:
                await self._commit(self.past)

    async def seek(self, place: int | str, rewind: Callable[[int], None]) -> int:
        """Go on from another place, for whichever member owns it; returns its offset. `rewind` is
        called with it once it is committed. Nothing may be given out, nor fetched, meanwhile."""
        offset = place if isinstance(place, int) else await self._find_offset(place)
        async with self._committing:
            await self._commit(offset)
            rewind(offset)
            self._fetch_at = offset
        return offset

    async def _commit(self, offset: int) -> None:
        request = proto.Request()
        body = request.commit_offset
        body.topic, body.group, body.partition, body.epoch = self._named
        body.offset = offset
        await self._ask(request, body, "committing")
        self.committed = offset
        self._moved.set()

    async def await_committed(self, offset: int) -> None:
        """Wait until so much is committed."""
        while self.committed < offset:
            self._moved.clear()
            await self._moved.wait()

    async def _claim(self) -> None:
        request = proto.Request()
        body = request.claim
        body.topic, body.group, body.partition, body.epoch = self._named
        claimed = (await self._ask(request, body, "claiming")).response.claimed
        offset = claimed.offset if claimed.has_committed else await self._find_offset(self._start)
        if not claimed.has_committed and self._start == "latest":
            # A member that takes over before the first commit must not start at a later "latest".
            await self._commit(offset)
        self.committed = self._fetch_at = self.yielded = self.past = offset
        self.unread.restart(offset)
        self.claimed.set()

    async def _find_offset(self, place: str) -> int:
        """The offset of a place; a time stands there as text with "@" in front."""
        request = proto.Request()
        find = request.find_offset
        find.topic, find.partition = self.owned.topic, self.partition
        if place == "latest":
            find.latest = True
        elif place == "earliest":
            find.earliest = True
        else:
            find.timestamp_ms = int(place[1:])
        return (await self._ask(request, find, "looking into")).response.offset_found.offset

    async def _fetch(self, offset: int) -> int:
        """Get what comes next; returns where to go on."""
        request = proto.Request()
        body = request.fetch
        body.topic, body.group, body.partition, body.epoch = self._named
        body.offset, body.bytes_max = offset, min(self.bytes_max, FETCH_BYTES_MAX)
        async with self._fetches:
            wait = CROWDED_WAIT_SECONDS if self._fetches.locked() else WAIT_SECONDS
            body.wait_ms = int(wait * 1000)
            reply = await self._ask(request, body, "reading", wait)
        frames = frames_of(reply.packet, self._router.limits) if reply.packet.batches else []
        data = [frame for frame in frames if frame.header.kind == _DATA]
        if data:
            self._put(self, data)
        return max(offset, reply.response.fetched.next_offset)

    async def _ask(
        self,
        request: proto.Request,
        body: proto.CommitOffset | proto.Claim | proto.FindOffset | proto.Fetch,
        what: str,
        wait: float = 0.0,
    ) -> Reply:
        """The answer of the leader, of this very topic and not of one that is called the same."""
        router, topic, partition = self._router, self.owned.topic, self.partition
        attempts = router.attempts(f"{what} {topic}/{partition}")
        route = await router.route(topic, attempts)
        while partition >= len(route.leaders):
            # It was just added: the coordinator that assigned it knows more than the map.
            route = await router.refresh(topic, attempts, latest=True)
            await attempts.pause()
        while True:
            target = await router.target(topic, partition, attempts)
            if self._topic_id not in {b"", target.topic_id}:
                raise Fenced(f"topic {topic!r} was deleted and created again")
            request.direct, body.topic_id = target.direct, target.topic_id
            try:
                reply = await router.exchange(target.address, request, (), attempts, wait)
            except QuiverError as error:
                await router.recover(topic, partition, target, error, attempts)
            else:
                self._topic_id = target.topic_id
                return reply

    @property
    def _named(self) -> tuple[str, str, int, int]:
        owned = self.owned
        return owned.topic, owned.group, owned.partition, owned.epoch


async def _pause(error: QuiverError) -> None:
    """Wait after a failure that may pass, as often as it takes; raise one that may not."""
    if not error.retriable:
        raise error
    await asyncio.sleep(AGAIN_SECONDS)
