"""Shipments over connections: posting them to whoever leads, settling them in order, mending.

One `PartitionStream` carries one `PartitionSequencer` to its partition. Used by single produces, by
`produce_many` and by the sender of a producer alike, over either door.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from quivermq.client.cluster_map import Route
from quivermq.client.producer.sequencer import (
    InFlightBatch,
    PartitionSequencer,
    ProducerIdentity,
    StoredAt,
)
from quivermq.client.retry import Attempts
from quivermq.client.router import Router, Target
from quivermq.client.transport import Connection
from quivermq.errors import ConnectionFailed, NotLeader, QuiverError, Timeout, TopicNotFound
from quivermq.wire import error_from_proto, proto

IN_FLIGHT_BATCHES_MAX: Final = 8
"""Batches to one partition that may be under way at a time."""

NewIdentity = Callable[[Attempts], Awaitable[ProducerIdentity]]


class LeaderConnections:
    """The connections that an operation uses: each borrowed once, all given back at its end."""

    __slots__ = ("_borrowed", "_router")

    def __init__(self, router: Router) -> None:
        self._router = router
        self._borrowed: dict[str, Connection] = {}

    async def get(self, address: str, deadline: float) -> Connection:
        """The connection to this broker."""
        connection = self._borrowed.get(address)
        if connection is not None:
            if connection.is_open:
                return connection
            self._router.transport.release(self._borrowed.pop(address))
        connection = await self._router.connection(address, deadline)
        self._borrowed[address] = connection
        return connection

    def release(self) -> None:
        """Done with all of them."""
        while self._borrowed:
            self._router.transport.release(self._borrowed.popitem()[1])


class Attempt(NamedTuple):
    """An attempt under way."""

    connection: Connection
    request_id: int
    target: Target
    deadline: float


class PartitionStream:
    """An sequencer, and the way to its partition."""

    __slots__ = (
        "_links",
        "_new_identity",
        "_request",
        "_router",
        "partition",
        "route",
        "sequencer",
        "target",
    )  # fmt: skip

    def __init__(
        self,
        router: Router,
        links: LeaderConnections,
        new_identity: NewIdentity,
        route: Route,
        partition: int,
        sequencer: PartitionSequencer,
    ) -> None:
        self.sequencer = sequencer
        self.route = route
        self.partition = partition
        self.target: Target | None = None
        """Whom the last attempt asked."""
        self._router = router
        self._links = links
        self._new_identity = new_identity
        self._request = proto.Request()
        self._request.produce.topic = route.topic
        self._request.produce.topic_id = route.id
        self._request.produce.partition = partition

    def follow(self, route: Route) -> None:
        """The map says so: the topic may have been created again."""
        if route.id != self.route.id:
            self._request.produce.topic_id = route.id
            self.sequencer.restart()
        self.route = route

    async def post(self, flight: InFlightBatch, attempts: Attempts | None = None) -> None:
        """Launch a batch in flight, and send it. What goes wrong shows when it is settled."""
        attempts = attempts or self._attempts(flight.deadline)
        if self.sequencer.identity is None and not await self._has_new_identity(attempts, flight):
            return
        self.sequencer.launch(flight)
        if flight.outcome is None:
            await self._send(flight, attempts)

    def first_is_answered(self) -> bool:
        """The first of those under way can be settled without waiting for its answer."""
        ticket = self.sequencer.flying[0].ticket
        return not isinstance(ticket, Attempt) or ticket.connection.is_answered(ticket.request_id)

    async def settle_first(self) -> None:
        """Wait for the answer to the first of those under way; if it failed, mend."""
        flight = self.sequencer.flying[0]
        await self._answer(flight)
        if isinstance(flight.outcome, StoredAt):
            self.sequencer.flying.popleft()
        else:
            await self._mend()

    def abandon(self) -> None:
        """Nobody will settle what is under way."""
        for flight in self.sequencer.flying:
            if isinstance(flight.ticket, Attempt):
                flight.ticket.connection.forget(flight.ticket.request_id)
        self.sequencer.flying.clear()

    async def _mend(self) -> None:
        """Send what is under way again and again, in order, until all of it is settled."""
        sequencer = self.sequencer
        attempts = self._attempts(max(flight.deadline for flight in sequencer.flying))
        while True:
            for flight in sequencer.flying:
                await self._answer(flight)
            await self._learn(attempts)
            sequencer.regroup(self._router.transport.now(), attempts.last_word())
            if sequencer.identity is None:
                await self._has_new_identity(attempts, *sequencer.flying)
            if not sequencer.flying:
                return
            for flight in sequencer.flying:
                await self._send(flight, attempts)

    async def _send(self, flight: InFlightBatch, attempts: Attempts) -> None:
        """One attempt begins; `_answer` ends it."""
        was_sent = False
        target = self.target
        try:
            target = self._router.known_target(self.route, self.partition)
            if target is None:
                target = await self._router.target(self.route.topic, self.partition, attempts)
            self.target = target
            if target.topic_id != self.route.id:
                # Created again: its sequencer has to start anew, which `_learn` does.
                flight.fail(Timeout("the topic was created again"), was_sent=False)
                return
            deadline = attempts.attempt_deadline()
            connection = await self._links.get(target.address, deadline)
            request = self._request
            request.direct = target.direct
            request.timeout_ms = max(1, int((deadline - self._router.transport.now()) * 1000))
            was_sent = True
            request_id = await connection.post(request, (flight.frame,), deadline)
            flight.ticket = Attempt(connection, request_id, target, deadline)
        except (ConnectionFailed, Timeout) as error:
            if target is not None:
                self._router.map.avoid(target.address, self._router.transport.now())
            flight.fail(error, was_sent=was_sent)
        except QuiverError as error:
            flight.fail(error, was_sent=was_sent)

    async def _answer(self, flight: InFlightBatch) -> None:
        """One attempt ends: the batch in flight is stored, or says why not."""
        ticket = flight.ticket
        if not isinstance(ticket, Attempt) or flight.outcome is not None:
            return
        try:
            reply = await ticket.connection.take(ticket.request_id, ticket.deadline)
        except (ConnectionFailed, Timeout) as error:
            self._router.map.avoid(ticket.target.address, self._router.transport.now())
            flight.fail(error, was_sent=True)
            return
        response = reply.response
        if response.WhichOneof("body") == "error":
            flight.fail(error_from_proto(response.error), was_sent=True)
        elif len(response.produced.batches) != 1:
            problem = f"{ticket.target.address} sent nonsense: a batch was not answered"
            flight.fail(ConnectionFailed(problem), was_sent=True)
        else:
            (stored,) = response.produced.batches
            flight.ticket = None
            flight.settle(StoredAt(stored.first_offset, stored.timestamp_ms))

    async def _learn(self, attempts: Attempts) -> None:
        """From the first failure: who leads, and whether the topic is still the same."""
        first = next((each for each in self.sequencer.flying if each.outcome is None), None)
        if first is None or first.error is None:
            return
        topic = self.route.topic
        try:
            if self.target is not None and _may_pass(first.error):
                await self._router.recover(
                    topic, self.partition, self.target, first.error, attempts
                )
                self._excuse_ignorance()
            self.follow(self._router.map.route(topic) or self.route)
        except QuiverError as error:
            # The time is over, or the topic gone: the last word for all that is left.
            for flight in self.sequencer.flying:
                if flight.outcome is None:
                    flight.error = error
                    flight.deadline = 0.0

    def _excuse_ignorance(self) -> None:
        """There is such a topic, whatever a broker that lags behind said: ask it again."""
        for flight in self.sequencer.flying:
            if flight.outcome is None and isinstance(flight.error, TopicNotFound):
                flight.error = NotLeader(str(flight.error))

    async def _has_new_identity(self, attempts: Attempts, *flights: InFlightBatch) -> bool:
        """Get one; if there is none to be had, these are given up."""
        try:
            self.sequencer.adopt(await self._new_identity(attempts))
        except QuiverError as error:
            self.sequencer.flying.clear()
            for flight in flights:
                flight.settle(error)
            return False
        return True

    def _attempts(self, deadline: float) -> Attempts:
        what = f"producing to {self.route.topic}/{self.partition}"
        return Attempts(self._router.transport, self._router.timeout, what, deadline=deadline)


def _may_pass(error: QuiverError) -> bool:
    return error.retriable or isinstance(error, TopicNotFound)
