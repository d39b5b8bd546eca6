"""Acknowledges messages of one lease in the plain case, with one request.

The straight way of most acknowledgements, as `producer.lone_producer` is that of lone messages: one
request to a leader that is known, over a connection that is idle (decision 0061). It decides
nothing. What is not the plain case is left to the general way, `Settler.try_settle`, which also
goes on with an attempt that failed here as with one of its own.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from quivermq.client.ask_leaders import FailedAsk
from quivermq.client.asyncio_transport import AsyncioConnection
from quivermq.client.cluster_map import Route
from quivermq.client.retry import attempt_seconds
from quivermq.client.router import LeaderPartitions, Router, Target
from quivermq.client.shared.held_leases import HeldLeases, LeaseSource
from quivermq.client.shared.leases import ACK, Settlement, add_settlements, late_settlements
from quivermq.client.transport import Reply
from quivermq.errors import ConnectionFailed, QuiverError, Timeout
from quivermq.wire import error_from_proto, is_all_settled, proto

PLAIN_INTERVALS_MAX: Final = 100
"""Of one acknowledgement: what has more is not plain."""


class LoneSettler:
    """The straight way of acknowledgements to their leaders. Any thread may use it."""

    def __init__(self, router: Router, held_leases: HeldLeases) -> None:
        self._router = router
        self._held_leases = held_leases
        self._attempt_seconds = attempt_seconds(router.timeout)

    def settle(self, settlements: Sequence[Settlement]) -> list[Settlement] | FailedAsk | None:
        """Send an acknowledgement, and return what of it came too late; or how it failed. None:
        this is not the plain case, and nothing was sent."""
        plain = self._plain(settlements)
        connection = None if plain is None else self._router.idle_connection(plain.address)
        if plain is None or connection is None:
            return None
        try:
            answer = connection.ask_plain(
                self._request(settlements).SerializeToString(),
                b"",
                self._router.transport.now() + self._attempt_seconds,
                is_all_settled,
            )
        except (ConnectionFailed, Timeout) as error:
            return self._fail(plain, error)
        finally:
            self._router.transport.release(connection)
        return self._outcome(plain, answer if isinstance(answer, Reply) else None, settlements)

    async def settle_on_loop(
        self, settlements: Sequence[Settlement]
    ) -> list[Settlement] | FailedAsk | None:
        """The same on an event loop."""
        plain = self._plain(settlements)
        connection = None if plain is None else self._router.ready_connection(plain.address)
        if plain is None or not isinstance(connection, AsyncioConnection):
            return None
        deadline = self._router.transport.now() + self._attempt_seconds
        connection.expect_answer()
        try:
            reply = await connection.ask(self._request(settlements), (), deadline)
        except (ConnectionFailed, Timeout) as error:
            return self._fail(plain, error)
        return self._outcome(plain, reply, settlements)

    def _plain(self, settlements: Sequence[Settlement]) -> "_Plain | None":
        """Where to send them, if this is the plain case and nothing has to be found out."""
        if len(settlements) != 1:
            return None
        ((lease, terms, intervals),) = settlements
        if terms is not ACK or len(intervals) > PLAIN_INTERVALS_MAX:
            return None
        router = self._router
        route = router.fresh_route(lease.topic, lease.partition)
        if route is None or route.id != lease.topic_id:
            return None
        address = router.map.leader_address(route, lease.partition, router.transport.now())
        return _Plain(route, lease.partition, address) if address else None

    def _fail(self, plain: "_Plain", error: QuiverError) -> FailedAsk:
        self._router.map.avoid(plain.address, self._router.transport.now())
        return plain.led, error

    def _outcome(
        self, plain: "_Plain", reply: Reply | None, settlements: Sequence[Settlement]
    ) -> list[Settlement] | FailedAsk:
        """The settlements that an answer says came too late, or its refusal."""
        self._router.map.stop_avoiding(plain.address)
        late: list[Settlement] = []
        if reply is not None:
            if reply.response.WhichOneof("body") == "error":
                return plain.led, error_from_proto(reply.response.error)
            late = late_settlements(settlements, reply.response.settled)
        ((lease, _, intervals),) = settlements
        source = LeaseSource(lease.topic, lease.group, lease.partition)
        self._held_leases.remove(source, lease.token, intervals)
        return late

    def _request(self, settlements: Sequence[Settlement]) -> proto.Request:
        lease = settlements[0].lease
        request = proto.Request(direct=True)
        request.timeout_ms = max(1, int(self._attempt_seconds * 1000))
        settle = request.settle
        settle.topic, settle.topic_id, settle.group = lease.topic, lease.topic_id, lease.group
        settle.consumer = self._held_leases.consumer
        add_settlements(settle, settlements)
        return request


class _Plain(NamedTuple):
    """Where an acknowledgement goes."""

    route: Route
    partition: int
    address: str

    @property
    def led(self) -> LeaderPartitions:
        target = Target(self.address, True, self.route.id)
        return LeaderPartitions(target, self.route.leaders[self.partition], [self.partition])
