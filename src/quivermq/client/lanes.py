"""Producer identities for calls that come from many threads or tasks at a time.

A producer numbers its batches to a partition without gaps. Two calls at once under one identity
would have to wait for each other, or leave gaps. So every call takes a lane of its own: an identity
with its streams to partitions. One caller at a time uses one lane; many at a time use several.
"""

from typing import Final

from quivermq.client import forks
from quivermq.client.cluster_map import Route
from quivermq.client.outlets import Identity, Outlet
from quivermq.client.retry import Attempts
from quivermq.client.routing import Router
from quivermq.client.shipping import Links, NewIdentity, Stream
from quivermq.errors import Overloaded
from quivermq.wire import proto

LANES_MAX: Final = 64
"""Calls that produce at a time; more wait for their turn."""

STREAMS_MAX: Final = 10_000
"""Partitions that one lane remembers its numbers of."""


class Lane:
    """An identity, and its streams to partitions."""

    __slots__ = (
        "_is_pinned", "_is_replaceable", "_new_identity", "_router", "_sequence", "_streams",
        "identity", "links",
    )  # fmt: skip

    def __init__(
        self,
        router: Router,
        identity: Identity,
        new_identity: NewIdentity,
        *,
        sequence: int = 0,
        is_replaceable: bool = True,
        is_pinned: bool = False,
    ) -> None:
        self.identity = identity
        self.links = Links(router)
        self._router = router
        self._new_identity = new_identity
        self._sequence = sequence
        self._is_replaceable = is_replaceable
        self._is_pinned = is_pinned
        self._streams: dict[tuple[str, int], Stream] = {}

    def __len__(self) -> int:
        """How many partitions it remembers its numbers of."""
        return len(self._streams)

    def stream(self, route: Route, partition: int) -> Stream:
        """The stream to a partition."""
        found = self._streams.get((route.topic, partition))
        if found is not None:
            found.follow(route)
            return found
        outlet = Outlet(
            self.identity,
            next_sequence=self._sequence,
            is_replaceable=self._is_replaceable,
            is_pinned=self._is_pinned,
        )
        stream = Stream(self._router, self.links, self._new_identity, route, partition, outlet)
        self._streams[route.topic, partition] = stream
        return stream

    def abandon(self) -> None:
        """Nobody will settle what is under way; nobody may go on with its numbers."""
        for stream in self._streams.values():
            stream.abandon()
        self.links.release()


class Lanes:
    """All lanes of one client. Any thread may take one."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._turnstile = router.door.turnstile(LANES_MAX)
        self._idle: list[Lane] = []
        forks.watch(self)

    async def take(self, attempts: Attempts) -> Lane:
        """A lane for one call: `give_back` it, or `drop` it."""
        if not await self._turnstile.enter(attempts.deadline):
            raise Overloaded(
                f"more than {LANES_MAX} calls produce at a time, and none ended within "
                f"{attempts.timeout:g} s: use a producer() for many messages"
            )
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return Lane(self._router, await self.new_identity(attempts), self.new_identity)
        except BaseException:
            self._turnstile.leave()
            raise

    def give_back(self, lane: Lane) -> None:
        """The call ended, and everything it sent is settled."""
        lane.links.release()
        if len(lane) <= STREAMS_MAX:
            self._idle.append(lane)
        self._turnstile.leave()

    def drop(self, lane: Lane) -> None:
        """The call was interrupted: nobody may go on with its numbers."""
        lane.abandon()
        self._turnstile.leave()

    async def new_identity(self, attempts: Attempts) -> Identity:
        """One that nobody else has."""
        request = proto.Request()
        request.new_producer.SetInParent()
        granted = (await self._router.ask_any(request, attempts)).producer_granted
        return Identity(granted.producer_id, granted.producer_epoch)

    def after_fork(self) -> None:
        """The identities are the parent's; the threads that took places are not here."""
        self._idle = []
        self._turnstile = self._router.door.turnstile(LANES_MAX)
