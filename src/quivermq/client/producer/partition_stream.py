"""Sends batches to the leader of a partition, settles them in order, and sends them again.

One `PartitionStream` carries one `PartitionSequencer` to its partition. Used by single produces, by
`produce_many` and by the sender of a producer alike.
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

    __slots__ = ("_router", "borrowed")

    def __init__(self, router: Router) -> None:
        self._router = router
        self.borrowed: dict[str, Connection] = {}
        """By the address of their broker."""

    async def get(self, address: str, deadline: float) -> Connection:
        """The connection to this broker."""
        connection = self.borrowed.get(address)
        if connection is not None:
            if connection.is_open:
                return connection
            self._router.transport.release(self.borrowed.pop(address))
        connection = await self._router.connection(address, deadline)
        self.borrowed[address] = connection
        return connection

    def release(self) -> None:
        """Done with all of them."""
        while self.borrowed:
            self._router.transport.release(self.borrowed.popitem()[1])


class Attempt(NamedTuple):
    """An attempt under way."""

    connection: Connection
    request_id: int
    target: Target
    deadline: float


class PartitionStream:
    """A sequencer, and the way to its partition."""

    __slots__ = (
        "_connections",
        "_new_identity",
        "_router",
        "lone_fields",
        "partition",
        "request",
        "route",
        "sequencer",
        "target",
    )  # fmt: skip

    def __init__(
        self,
        router: Router,
        connections: LeaderConnections,
        new_identity: NewIdentity,
        route: Route,
        partition: int,
        sequencer: PartitionSequencer,
    ) -> None:
        self.sequencer = sequencer
        self.route = route
        self.partition = partition
        self.target: Target | None = None
        """The broker that the last attempt asked."""
        self._router = router
        self._connections = connections
        self._new_identity = new_identity
        self.request = proto.Request()
        """Every attempt fills in the rest of it."""
        self.lone_fields = b""
        """The fields of a request with a lone message, but for its id, once there was one."""
        self.request.produce.topic = route.topic
        self.request.produce.topic_id = route.id
        self.request.produce.partition = partition

    def follow(self, route: Route) -> None:
        """Use a newer route: the topic may have been created again."""
        if route.id != self.route.id:
            self.request.produce.topic_id = route.id
            self.lone_fields = b""
            self.sequencer.restart()
        self.route = route

    async def post(self, batch: InFlightBatch, attempts: Attempts | None = None) -> None:
        """Launch a batch in flight, and send it. What goes wrong shows when it is settled."""
        attempts = attempts or self._attempts(batch.deadline)
        if self.sequencer.identity is None and not await self._adopt_new_identity(attempts, batch):
            return
        self.sequencer.launch(batch)
        if batch.outcome is None:
            await self._send(batch, attempts)

    def first_is_answered(self) -> bool:
        """The first of those under way can be settled without waiting for its answer."""
        attempt = self.sequencer.in_flight[0].attempt
        return not isinstance(attempt, Attempt) or attempt.connection.is_answered(
            attempt.request_id
        )

    async def settle_first(self) -> None:
        """Wait for the answer to the first batch in flight; if it failed, send all again."""
        batch = self.sequencer.in_flight[0]
        await self._answer(batch)
        if isinstance(batch.outcome, StoredAt):
            self.sequencer.in_flight.popleft()
        else:
            await self._send_again()

    def abandon(self) -> None:
        """Give up the batches in flight."""
        for batch in self.sequencer.in_flight:
            if isinstance(batch.attempt, Attempt):
                batch.attempt.connection.forget(batch.attempt.request_id)
        self.sequencer.in_flight.clear()

    async def _send_again(self) -> None:
        """Send what is under way again and again, in order, until all of it is settled."""
        sequencer = self.sequencer
        attempts = self._attempts(max(batch.deadline for batch in sequencer.in_flight))
        while True:
            for batch in sequencer.in_flight:
                await self._answer(batch)
            await self._learn(attempts)
            sequencer.regroup(self._router.transport.now(), attempts.final_error())
            if sequencer.identity is None:
                await self._adopt_new_identity(attempts, *sequencer.in_flight)
            if not sequencer.in_flight:
                return
            for batch in sequencer.in_flight:
                await self._send(batch, attempts)

    async def _send(self, batch: InFlightBatch, attempts: Attempts) -> None:
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
                batch.fail(Timeout("the topic was created again"), was_sent=False)
                return
            deadline = attempts.attempt_deadline()
            connection = await self._connections.get(target.address, deadline)
            request = self.request
            request.direct = target.direct
            request.timeout_ms = max(1, int((deadline - self._router.transport.now()) * 1000))
            if self._router.tracer is not None:
                self._router.tracer.inject(request, batch.trace)
            was_sent = True
            request_id = await connection.post(request, (batch.frame,), deadline)
            batch.attempt = Attempt(connection, request_id, target, deadline)
        except (ConnectionFailed, Timeout) as error:
            if target is not None:
                self._router.map.avoid(target.address, self._router.transport.now())
            batch.fail(error, was_sent=was_sent)
        except QuiverError as error:
            batch.fail(error, was_sent=was_sent)

    async def _answer(self, batch: InFlightBatch) -> None:
        """One attempt ends: the batch in flight is stored, or has its error."""
        attempt = batch.attempt
        if not isinstance(attempt, Attempt) or batch.outcome is not None:
            return
        try:
            reply = await attempt.connection.take(attempt.request_id, attempt.deadline)
        except (ConnectionFailed, Timeout) as error:
            self._router.map.avoid(attempt.target.address, self._router.transport.now())
            batch.fail(error, was_sent=True)
            return
        batches = reply.response.produced.batches
        if len(batches) != 1:
            batch.fail(refusal_of(reply.response, attempt.target.address), was_sent=True)
            return
        (stored,) = batches
        batch.attempt = None
        batch.settle(StoredAt(stored.first_offset, stored.timestamp_ms))

    async def _learn(self, attempts: Attempts) -> None:
        """From the first failure: who leads, and whether the topic is still the same."""
        first = next((each for each in self.sequencer.in_flight if each.outcome is None), None)
        if first is None or first.error is None:
            return
        topic = self.route.topic
        try:
            if self.target is not None and _may_pass(first.error):
                await self._router.recover(
                    topic, self.partition, self.target, first.error, attempts
                )
                self._retry_unknown_topic()
            self.follow(self._router.map.route(topic) or self.route)
        except QuiverError as error:
            # The time is over, or the topic gone: the final error of all that is left.
            for batch in self.sequencer.in_flight:
                if batch.outcome is None:
                    batch.error = error
                    batch.deadline = 0.0

    def _retry_unknown_topic(self) -> None:
        """There is such a topic, whatever a broker that lags behind said: ask it again."""
        for batch in self.sequencer.in_flight:
            if batch.outcome is None and isinstance(batch.error, TopicNotFound):
                batch.error = NotLeader(str(batch.error))

    async def _adopt_new_identity(self, attempts: Attempts, *batches: InFlightBatch) -> bool:
        """Get one; if there is none to be had, these are given up."""
        try:
            self.sequencer.adopt(await self._new_identity(attempts))
        except QuiverError as error:
            self.sequencer.in_flight.clear()
            for batch in batches:
                batch.settle(error)
            return False
        return True

    def _attempts(self, deadline: float) -> Attempts:
        what = f"producing to {self.route.topic}/{self.partition}"
        return Attempts(self._router.transport, self._router.timeout, what, deadline=deadline)


def refusal_of(response: proto.Response, address: str) -> QuiverError:
    """The error in a response that does not tell where the one batch was stored."""
    if response.WhichOneof("body") == "error":
        return error_from_proto(response.error)
    return ConnectionFailed(f"{address} sent nonsense: a batch was not answered")


def _may_pass(error: QuiverError) -> bool:
    return error.retriable or isinstance(error, TopicNotFound)
