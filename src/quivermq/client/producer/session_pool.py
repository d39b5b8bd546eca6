"""A pool of producer sessions, for calls that come from many threads or tasks at a time.

A producer numbers its batches to a partition without gaps. Two calls at once under one identity
would have to wait for each other, or leave gaps. So every call takes a session of its own, which is
an identity with its streams to partitions, and gives it back to the pool.
"""

from typing import Final

from quivermq.client import fork_safety
from quivermq.client.asyncio_transport import AsyncioLimiter
from quivermq.client.blocking_transport import BlockingLimiter
from quivermq.client.cluster_map import Route
from quivermq.client.producer.partition_stream import (
    LeaderConnections,
    NewIdentity,
    PartitionStream,
)
from quivermq.client.producer.sequencer import PartitionSequencer, ProducerIdentity
from quivermq.client.retry import Attempts
from quivermq.client.router import Router
from quivermq.errors import Overloaded
from quivermq.wire import proto

SESSIONS_MAX: Final = 64
"""Calls that produce at a time; more wait for their turn."""

STREAMS_MAX: Final = 10_000
"""Partitions that one session remembers its numbers of."""


class ProducerSession:
    """An identity, and its streams to partitions."""

    __slots__ = (
        "_is_pinned",
        "_is_replaceable",
        "_new_identity",
        "_router",
        "_sequence",
        "connections",
        "identity",
        "streams",
    )  # fmt: skip

    def __init__(
        self,
        router: Router,
        identity: ProducerIdentity,
        new_identity: NewIdentity,
        *,
        sequence: int = 0,
        is_replaceable: bool = True,
        is_pinned: bool = False,
    ) -> None:
        self.identity = identity
        self.connections = LeaderConnections(router)
        self._router = router
        self._new_identity = new_identity
        self._sequence = sequence
        self._is_replaceable = is_replaceable
        self._is_pinned = is_pinned
        self.streams: dict[tuple[str, int], PartitionStream] = {}
        """By topic and partition: those that it remembers its numbers of."""

    def stream(self, route: Route, partition: int) -> PartitionStream:
        """The stream to a partition."""
        found = self.streams.get((route.topic, partition))
        if found is not None:
            if found.route is not route:
                found.follow(route)
            return found
        sequencer = PartitionSequencer(
            self.identity,
            next_sequence=self._sequence,
            is_replaceable=self._is_replaceable,
            is_pinned=self._is_pinned,
        )
        stream = PartitionStream(
            self._router, self.connections, self._new_identity, route, partition, sequencer
        )
        self.streams[route.topic, partition] = stream
        return stream

    def abandon(self) -> None:
        """Give up the batches in flight; its numbers must not be used again."""
        for stream in self.streams.values():
            stream.abandon()
        self.connections.release()


class SessionPool:
    """All sessions of one client. Any thread may take one."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._limiter = router.transport.limiter(SESSIONS_MAX)
        self._idle: list[ProducerSession] = []
        fork_safety.watch(self)

    async def take(self, attempts: Attempts) -> ProducerSession:
        """A session for one call: `give_back` it, or `drop` it."""
        if not await self._limiter.enter(attempts.deadline):
            raise Overloaded(
                f"more than {SESSIONS_MAX} calls produce at a time, and none ended within "
                f"{attempts.timeout:g} s: use a producer() for many messages"
            )
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return ProducerSession(
                self._router, await self.new_identity(attempts), self.new_identity
            )
        except BaseException:
            self._limiter.leave()
            raise

    def take_idle(self) -> ProducerSession | None:
        """The same without waiting; None if there is none to be had."""
        limiter = self._limiter
        if not isinstance(limiter, BlockingLimiter | AsyncioLimiter) or not limiter.try_enter():
            return None
        try:
            return self._idle.pop()
        except IndexError:
            limiter.leave()
            return None

    def give_back(self, session: ProducerSession) -> None:
        """The call ended, and everything it sent is settled."""
        if session.connections.borrowed:
            session.connections.release()
        if len(session.streams) <= STREAMS_MAX:
            self._idle.append(session)
        self._limiter.leave()

    def drop(self, session: ProducerSession) -> None:
        """The call was interrupted: the session's numbers must not be used again."""
        session.abandon()
        self._limiter.leave()

    async def new_identity(self, attempts: Attempts) -> ProducerIdentity:
        """An identity that no other producer has."""
        request = proto.Request()
        request.new_producer.SetInParent()
        granted = (await self._router.ask_any(request, attempts)).producer_granted
        return ProducerIdentity(granted.producer_id, granted.producer_epoch)

    def after_fork(self) -> None:
        """The identities are the parent's; the threads that took places are not here."""
        self._idle = []
        self._limiter = self._router.transport.limiter(SESSIONS_MAX)
