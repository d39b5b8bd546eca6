"""Polls a topic that one broker leads, over blocking sockets, without coroutines.

The straight way of most polls, as `producer.lone_producer` is that of lone messages: one request to
a leader that is known, over a connection that is idle (decision 0061). It decides nothing. What is
not the plain case is left to the general way, `Poller.poll`, which also goes on with an attempt
that failed here as with one of its own, and with the rest of the time if nothing came.
"""

from typing import TYPE_CHECKING

from quivermq.client.ask_leaders import FailedAsk
from quivermq.client.retry import attempt_seconds
from quivermq.client.router import LeaderPartitions, Router
from quivermq.errors import ConnectionFailed, Timeout
from quivermq.wire import error_from_proto

if TYPE_CHECKING:
    from quivermq.client.shared.poll import LeasedRun, Poller, PollRequest


class LonePoller:
    """The straight way of polls to the leader of a topic. Any thread may use it."""

    def __init__(self, router: Router, polling: "Poller") -> None:
        self._router = router
        self._polling = polling
        self._attempt_seconds = attempt_seconds(router.timeout)

    def poll(
        self, request: "PollRequest", end: float, turn: int
    ) -> "list[LeasedRun] | FailedAsk | None":
        """Lease messages; or how that failed. None: this is not the plain case, or nothing came and
        there is time left."""
        router, polling = self._router, self._polling
        led = self._leader(request.topic, turn)
        connection = None if led is None else router.idle_connection(led.target.address)
        if led is None or connection is None:
            return None
        address, now = led.target.address, router.transport.now()
        wait = polling.wait_seconds(end - now)
        deadline = now + self._attempt_seconds + wait
        envelope = polling.envelope(request, led, wait)
        envelope.timeout_ms = max(1, int((deadline - now) * 1000))
        is_certain = False
        try:
            reply = connection.ask(envelope, (), deadline)
            is_certain = True
        except (ConnectionFailed, Timeout) as error:
            router.map.avoid(address, router.transport.now())
            return led, error
        finally:
            router.transport.release(connection)
            if not is_certain:
                polling.record_uncertain(request, led)
        router.map.stop_avoiding(address)
        if reply.response.WhichOneof("body") == "error":
            return led, error_from_proto(reply.response.error)
        leased_runs = polling.result_of(request, led, reply).leased_runs
        return leased_runs if leased_runs or router.transport.now() >= end else None

    def _leader(self, topic: str, turn: int) -> LeaderPartitions | None:
        """The broker that leads all partitions, if they are known to be led by one."""
        router = self._router
        route = router.fresh_route(topic)
        if route is None or self._polling.is_old(route):
            return None
        leaders = route.leaders
        if leaders.count(leaders[0]) != len(leaders):
            return None
        target = router.known_target(route, 0)
        if target is None:
            return None
        first = turn % len(leaders)
        partitions = [*range(first, len(leaders)), *range(first)]
        return LeaderPartitions(target, leaders[0], partitions)
