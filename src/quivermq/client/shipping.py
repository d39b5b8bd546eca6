"""Shipments over connections: posting them to whoever leads, settling them in order, mending.

One `Stream` carries one `Outlet` to its partition. Used by single produces, by `produce_many` and
by the sender of a producer alike, over either door.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from quivermq.client.cluster_map import Route
from quivermq.client.door import Connection
from quivermq.client.outlets import Identity, Outlet, Shipment, Stored
from quivermq.client.retry import Attempts
from quivermq.client.routing import Router, Target
from quivermq.errors import ConnectionFailed, NotLeader, QuiverError, Timeout, TopicNotFound
from quivermq.wire import error_from_proto, proto

IN_FLIGHT_BATCHES_MAX: Final = 8
"""Batches to one partition that may be under way at a time."""

NewIdentity = Callable[[Attempts], Awaitable[Identity]]


class Links:
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
            self._router.door.release(self._borrowed.pop(address))
        connection = await self._router.connection(address, deadline)
        self._borrowed[address] = connection
        return connection

    def release(self) -> None:
        """Done with all of them."""
        while self._borrowed:
            self._router.door.release(self._borrowed.popitem()[1])


class Ticket(NamedTuple):
    """An attempt under way."""

    connection: Connection
    request_id: int
    target: Target
    deadline: float


class Stream:
    """An outlet, and the way to its partition."""

    __slots__ = (
        "_links", "_new_identity", "_request", "_router", "outlet", "partition", "route", "target",
    )  # fmt: skip

    def __init__(
        self,
        router: Router,
        links: Links,
        new_identity: NewIdentity,
        route: Route,
        partition: int,
        outlet: Outlet,
    ) -> None:
        self.outlet = outlet
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
            self.outlet.restart()
        self.route = route

    async def post(self, shipment: Shipment, attempts: Attempts | None = None) -> None:
        """Launch a shipment, and send it. What goes wrong shows when it is settled."""
        attempts = attempts or self._attempts(shipment.deadline)
        if self.outlet.identity is None and not await self._has_new_identity(attempts, shipment):
            return
        self.outlet.launch(shipment)
        if shipment.outcome is None:
            await self._send(shipment, attempts)

    def first_is_answered(self) -> bool:
        """The first of those under way can be settled without waiting for its answer."""
        ticket = self.outlet.flying[0].ticket
        return not isinstance(ticket, Ticket) or ticket.connection.is_answered(ticket.request_id)

    async def settle_first(self) -> None:
        """Wait for the answer to the first of those under way; if it failed, mend."""
        shipment = self.outlet.flying[0]
        await self._answer(shipment)
        if isinstance(shipment.outcome, Stored):
            self.outlet.flying.popleft()
        else:
            await self._mend()

    def abandon(self) -> None:
        """Nobody will settle what is under way."""
        for shipment in self.outlet.flying:
            if isinstance(shipment.ticket, Ticket):
                shipment.ticket.connection.forget(shipment.ticket.request_id)
        self.outlet.flying.clear()

    async def _mend(self) -> None:
        """Send what is under way again and again, in order, until all of it is settled."""
        outlet = self.outlet
        attempts = self._attempts(max(shipment.deadline for shipment in outlet.flying))
        while True:
            for shipment in outlet.flying:
                await self._answer(shipment)
            await self._learn(attempts)
            outlet.regroup(self._router.door.now(), attempts.last_word())
            if outlet.identity is None:
                await self._has_new_identity(attempts, *outlet.flying)
            if not outlet.flying:
                return
            for shipment in outlet.flying:
                await self._send(shipment, attempts)

    async def _send(self, shipment: Shipment, attempts: Attempts) -> None:
        """One attempt begins; `_answer` ends it."""
        was_sent = False
        target = self.target
        try:
            target = self._router.known_target(self.route, self.partition)
            if target is None:
                target = await self._router.target(self.route.topic, self.partition, attempts)
            self.target = target
            if target.topic_id != self.route.id:
                # Created again: its outlet has to start anew, which `_learn` does.
                shipment.fail(Timeout("the topic was created again"), was_sent=False)
                return
            deadline = attempts.attempt_deadline()
            connection = await self._links.get(target.address, deadline)
            request = self._request
            request.direct = target.direct
            request.timeout_ms = max(1, int((deadline - self._router.door.now()) * 1000))
            was_sent = True
            request_id = await connection.post(request, (shipment.frame,), deadline)
            shipment.ticket = Ticket(connection, request_id, target, deadline)
        except (ConnectionFailed, Timeout) as error:
            if target is not None:
                self._router.map.avoid(target.address, self._router.door.now())
            shipment.fail(error, was_sent=was_sent)
        except QuiverError as error:
            shipment.fail(error, was_sent=was_sent)

    async def _answer(self, shipment: Shipment) -> None:
        """One attempt ends: the shipment is stored, or says why not."""
        ticket = shipment.ticket
        if not isinstance(ticket, Ticket) or shipment.outcome is not None:
            return
        try:
            reply = await ticket.connection.take(ticket.request_id, ticket.deadline)
        except (ConnectionFailed, Timeout) as error:
            self._router.map.avoid(ticket.target.address, self._router.door.now())
            shipment.fail(error, was_sent=True)
            return
        response = reply.response
        if response.WhichOneof("body") == "error":
            shipment.fail(error_from_proto(response.error), was_sent=True)
        elif len(response.produced.batches) != 1:
            problem = f"{ticket.target.address} sent nonsense: a batch was not answered"
            shipment.fail(ConnectionFailed(problem), was_sent=True)
        else:
            (stored,) = response.produced.batches
            shipment.ticket = None
            shipment.settle(Stored(stored.first_offset, stored.timestamp_ms))

    async def _learn(self, attempts: Attempts) -> None:
        """From the first failure: who leads, and whether the topic is still the same."""
        first = next((each for each in self.outlet.flying if each.outcome is None), None)
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
            for shipment in self.outlet.flying:
                if shipment.outcome is None:
                    shipment.error = error
                    shipment.deadline = 0.0

    def _excuse_ignorance(self) -> None:
        """There is such a topic, whatever a broker that lags behind said: ask it again."""
        for shipment in self.outlet.flying:
            if shipment.outcome is None and isinstance(shipment.error, TopicNotFound):
                shipment.error = NotLeader(str(shipment.error))

    async def _has_new_identity(self, attempts: Attempts, *shipments: Shipment) -> bool:
        """Get one; if there is none to be had, these are given up."""
        try:
            self.outlet.adopt(await self._new_identity(attempts))
        except QuiverError as error:
            self.outlet.flying.clear()
            for shipment in shipments:
                shipment.settle(error)
            return False
        return True

    def _attempts(self, deadline: float) -> Attempts:
        what = f"producing to {self.route.topic}/{self.partition}"
        return Attempts(self._router.door, self._router.timeout, what, deadline=deadline)


def _may_pass(error: QuiverError) -> bool:
    return error.retriable or isinstance(error, TopicNotFound)
