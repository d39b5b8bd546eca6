"""Finds the broker that is to answer a request: the leader of its partition, else any broker.

The knowledge is that of a client, a `ClusterMap`, and often a bit stale. A broker that does not
lead any more says so, and the map is asked for again: once for all requests that wait for it.
"""

import asyncio
from collections.abc import Callable
from secrets import randbelow
from typing import Any, Final

from quivermq.client import ROUTE_SECONDS_MAX, Attempts, Route, Router, Target
from quivermq.errors import NotLeader, QuiverError, TopicNotFound
from quivermq.node.tasks import end_tasks
from quivermq.node.time_slices import Slices
from quivermq.wire import proto

ROUTES_MAX: Final = 20_000
"""Topics that are remembered: past it, those that were asked for first are forgotten."""
_MAP_S: Final = 5.0

Place = tuple[str, int]


def _lone(body: Any) -> int:
    return int(body.partition)


def _first_of(name: str) -> Callable[[Any], int | None]:
    def first(body: Any) -> int | None:
        parts = getattr(body, name)
        if not parts:
            return None
        return int(parts[0]) if isinstance(parts[0], int) else int(parts[0].partition)

    return first


def _readers() -> dict[str, Callable[[Any], int | None]]:
    """By the kind of a request, how its first partition is found. All partitions of a request are
    led by one broker, as far as its client knows."""
    found: dict[str, Callable[[Any], int | None]] = {}
    for kind in proto.Request.DESCRIPTOR.oneofs_by_name["body"].fields:
        fields = kind.message_type.fields_by_name if kind.message_type else {}
        if "topic" not in fields:
            continue
        if "partition" in fields:
            found[kind.name] = _lone
        for name in ("partitions", "positions", "settlements"):
            if name in fields:
                found[kind.name] = _first_of(name)
    return found


_READERS: Final = _readers()


def place_of(request: proto.Request) -> Place | None:
    """The topic and the first partition of a request; None: any broker can answer it, or find out
    which one does."""
    kind = request.WhichOneof("body") or ""
    read = _READERS.get(kind)
    if read is None:
        return None
    body = getattr(request, kind)
    partition = read(body)
    return (body.topic, partition) if body.topic and partition is not None else None


class BrokerRoutes:
    """Knows the leaders as last heard, and asks brokers where one is not known."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._refreshing: dict[str, asyncio.Task[Route]] = {}
        # Spreads gateways over replicas.
        self._follower = randbelow(1 << 16)
        self.slices = Slices()

    # Sending.

    async def target(self, request: proto.Request, deadline: float) -> Target:
        """The broker to send a request to; `direct`: it leads, as far as is known. Raises
        `TopicNotFound`, and `ConnectionFailed` if no broker answers."""
        place = place_of(request)
        if place is None:
            return self._any()
        topic, partition = place
        router = self._router
        if not self._is_known(topic, partition):
            await self._refresh(topic, deadline)
        body = getattr(request, request.WhichOneof("body") or "")
        follower = self._follower + partition if getattr(body, "follower_ok", False) else None
        attempts = Attempts(router.transport, _MAP_S, "asking for the map", deadline=deadline)
        return await router.target(topic, partition, attempts, follower=follower)

    def _any(self) -> Target:
        router = self._router
        return Target(router.map.servers(router.transport.now())[0], False, b"")

    def _is_known(self, topic: str, partition: int) -> bool:
        route = self._fresh_route(topic)
        return route is not None and partition < len(route.leaders)

    def _fresh_route(self, topic: str) -> Route | None:
        route = self._router.map.route(topic)
        if route is None or self._router.transport.now() - route.heard_at > ROUTE_SECONDS_MAX:
            return None
        return route

    async def _refresh(self, topic: str, deadline: float) -> None:
        """Ask where a topic is, unless that is being asked. What was known is used on if brokers
        do not answer."""
        refreshing = self._refreshing.get(topic)
        if refreshing is None:
            attempts = Attempts(self._router.transport, _MAP_S, "asking for the map")
            refreshing = asyncio.create_task(self._router.refresh(topic, attempts), name="map")
            self._refreshing[topic] = refreshing
            refreshing.add_done_callback(lambda task: self._refreshed(topic, task))
        try:
            async with asyncio.timeout_at(deadline):
                # Shielded: others wait for the same answer.
                await asyncio.shield(refreshing)
        except TopicNotFound:
            raise
        except (TimeoutError, QuiverError) as error:
            if self._router.map.route(topic) is None:
                if isinstance(error, QuiverError):
                    raise
                raise NotLeader(f"no broker has said yet who leads {topic!r}; try again") from error

    def _refreshed(self, topic: str, task: "asyncio.Task[Route]") -> None:
        del self._refreshing[topic]
        if not task.cancelled():
            task.exception()  # seen: whoever asked may have given up
        self._router.map.forget_beyond(ROUTES_MAX)

    # Learning.

    def learn(self, request: proto.Request, target: Target, error: QuiverError) -> None:
        """A broker does not lead, or could not be asked: the next `target` is another one, or has
        been asked for again."""
        known, now = self._router.map, self._router.transport.now()
        if not isinstance(error, NotLeader):
            known.avoid(target.address, now)
        place = place_of(request)
        if place is None:
            known.ask_last(target.address)
        elif isinstance(error, NotLeader) and error.leader and known.address(error.leader):
            known.set_leader(*place, error.leader, "")
        else:
            known.doubt(place[0])

    def answered(self, target: Target) -> None:
        """A broker answered: it can be asked."""
        self._router.map.stop_avoiding(target.address)

    def take_over(self, found: proto.ClusterMap) -> None:
        """A map that a client asked for is of use to others."""
        self._router.map.update(found, [], self._router.transport.now())

    # Looking.

    def partition_count(self, topic: str) -> int:
        route = self._fresh_route(topic)
        if route is None:
            raise TopicNotFound(f"there is no topic {topic!r}, as far as this gateway knows")
        return len(route.leaders)

    def leader_in(self, topic: str, partition: int) -> int:
        route = self._router.map.route(topic)
        return route.leaders[partition] if route and partition < len(route.leaders) else 0

    async def close(self) -> None:
        await end_tasks(*self._refreshing.values())
