"""Producer identities for calls that come from many threads or tasks at a time.

A producer numbers its batches to a partition without gaps. Two calls at once under one identity
would have to wait for each other, or leave gaps. So every call takes a lane of its own: an identity
with the state of its outlets. One caller at a time uses one lane; many at a time use several.
"""

from typing import Final

from quivermq.client import forks
from quivermq.client.outlets import Identity, Outlet
from quivermq.client.retry import Attempts
from quivermq.client.routing import Router
from quivermq.errors import Overloaded
from quivermq.wire import proto

LANES_MAX: Final = 64
"""Calls that produce at a time; more wait for their turn."""

OUTLETS_MAX: Final = 10_000
"""Partitions that one lane remembers its numbers of."""


class Lane:
    """An identity, and where its numbers stand in each partition."""

    __slots__ = ("_is_replaceable", "_sequence", "identity", "outlets")

    def __init__(
        self, identity: Identity, *, sequence: int = 0, is_replaceable: bool = True
    ) -> None:
        self.identity = identity
        self.outlets: dict[tuple[bytes, int], Outlet] = {}
        self._sequence = sequence
        self._is_replaceable = is_replaceable

    def outlet(self, topic_id: bytes, partition: int) -> Outlet:
        """The outlet to a partition."""
        found = self.outlets.get((topic_id, partition))
        if found is None:
            found = self.outlets[topic_id, partition] = Outlet(
                self.identity, next_sequence=self._sequence, is_replaceable=self._is_replaceable
            )
        return found


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
            return Lane(await self.new_identity(attempts))
        except BaseException:
            self._turnstile.leave()
            raise

    def give_back(self, lane: Lane) -> None:
        """The call ended, and everything it sent is settled."""
        if len(lane.outlets) <= OUTLETS_MAX:
            self._idle.append(lane)
        self._turnstile.leave()

    def drop(self) -> None:
        """The call was interrupted: nobody may go on with its numbers."""
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
