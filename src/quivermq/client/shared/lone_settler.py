"""Acknowledges messages of one lease over blocking sockets, without coroutines.

The straight way of most acknowledgements, as `producer.lone_producer` is that of lone messages: one
request to a leader that is known, over a connection that is idle (decision 0061). It decides
nothing. What is not the plain case is left to the general way, `Settler.try_settle`, which also
goes on with an attempt that failed here as with one of its own.
"""

from collections.abc import Sequence
from typing import Final

from quivermq.client.ask_leaders import FailedAsk
from quivermq.client.cluster_map import Route
from quivermq.client.retry import attempt_seconds
from quivermq.client.router import LeaderPartitions, Router, Target
from quivermq.client.shared.held_leases import HeldLeases, LeaseSource
from quivermq.client.shared.leases import ACK, Settlement, add_settlements, late_settlements
from quivermq.client.transport import Reply
from quivermq.errors import ConnectionFailed, Timeout
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
        if len(settlements) != 1:
            return None
        ((lease, terms, intervals),) = settlements
        if terms is not ACK or len(intervals) > PLAIN_INTERVALS_MAX:
            return None
        router, now = self._router, self._router.transport.now()
        route = router.fresh_route(lease.topic, lease.partition)
        if route is None or route.id != lease.topic_id:
            return None
        address = router.map.leader_address(route, lease.partition, now)
        connection = router.idle_connection(address)
        if connection is None:
            return None
        request = self._request(settlements)
        try:
            answer = connection.ask_plain(
                request.SerializeToString(), b"", now + self._attempt_seconds, is_all_settled
            )
        except (ConnectionFailed, Timeout) as error:
            router.map.avoid(address, router.transport.now())
            return _led(route, lease.partition, address), error
        finally:
            router.transport.release(connection)
        router.map.stop_avoiding(address)
        late: list[Settlement] = []
        if isinstance(answer, Reply):
            if answer.response.WhichOneof("body") == "error":
                refusal = error_from_proto(answer.response.error)
                return _led(route, lease.partition, address), refusal
            late = late_settlements(settlements, answer.response.settled)
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


def _led(route: Route, partition: int, address: str) -> LeaderPartitions:
    target = Target(address, True, route.id)
    return LeaderPartitions(target, route.leaders[partition], [partition])
