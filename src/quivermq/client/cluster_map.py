"""A cache of the cluster's brokers, topics and leaders, often a bit stale.

Shared by threads: every change replaces a value in one step, and nothing is computed from two.
"""

from dataclasses import dataclass
from random import SystemRandom
from typing import Final

from quivermq.errors import InvalidRequest
from quivermq.wire import proto

# A broker that could not be reached is left alone for so long; meanwhile others pass requests on.
AVOID_SECONDS: Final = 5.0

# Of the system: programs seed the generator of the module.
_random = SystemRandom()


@dataclass(slots=True, eq=False)
class Route:
    """A topic's identity, and who leads its partitions."""

    topic: str
    id: bytes
    leaders: list[int]
    """By partition; 0: none, as far as is known."""
    replicas: list[tuple[int, ...]]
    heard_at: float

    def check(self, partition: int) -> int:
        """`partition`, if there is such a one."""
        # True is an int too.
        if type(partition) is not int or not 0 <= partition < len(self.leaders):
            raise InvalidRequest(
                f"topic {self.topic!r} has the partitions 0 to {len(self.leaders) - 1}: "
                f"{partition!r}"
            )
        return partition


class ClusterMap:
    """Addresses and routes, as last heard."""

    def __init__(self, servers: list[str]) -> None:
        self._given = frozenset(servers)
        self._servers = _random.sample(servers, len(servers))
        """In the order to ask; those given, and brokers that were put behind others."""
        self._addresses: dict[int, str] = {}
        self._zones: dict[int, str] = {}
        """Of the brokers that have one."""
        self._is_behind_gateway = False
        """Brokers are not to be asked, says a gateway that was."""
        self._avoided: dict[str, float] = {}
        self._routes: dict[str, Route] = {}

    def route(self, topic: str) -> Route | None:
        """The topic, if it is known."""
        return self._routes.get(topic)

    def address(self, node: int) -> str:
        """Where clients reach a node; "": not known. Behind a gateway: the gateway in use."""
        if self._is_behind_gateway:
            return self._servers[0] if node else ""
        return self._addresses.get(node, "")

    def zone(self, node: int) -> str:
        """The zone of a node; "": it has none, or is not known."""
        return self._zones.get(node, "")

    def leader_address(self, route: Route, partition: int, now: float) -> str:
        """Where the leader of a partition can be reached; "": not known, or avoided, or there is
        another route of the topic by now."""
        if self._routes.get(route.topic) is not route:
            return ""
        leader = route.leaders[partition]
        address = (
            self.address(leader) if self._is_behind_gateway else self._addresses.get(leader, "")
        )
        return "" if self._avoided and self._avoided.get(address, 0.0) > now else address

    def servers(self, now: float) -> list[str]:
        """All known servers, in the order to ask: the one that answered last comes first."""
        known = dict.fromkeys([*self._servers, *self._addresses.values()])
        avoided = self._avoided
        # Stable: avoided servers come last, in case that there are no others.
        return sorted(known, key=lambda server: avoided.get(server, 0.0) > now)

    def is_avoided(self, address: str, now: float) -> bool:
        """It could not be reached a moment ago."""
        return bool(self._avoided) and self._avoided.get(address, 0.0) > now

    def avoid(self, address: str, now: float) -> None:
        """It could not be reached: ask others for a while."""
        self._avoided[address] = now + AVOID_SECONDS
        self.ask_last(address)

    def ask_last(self, address: str) -> None:
        """It was of no help: ask the others first, be they given or heard of."""
        heard = dict.fromkeys(self._addresses.values())
        known = dict.fromkeys([*self._servers, *heard])
        if address in known:
            others = (each for each in known if each in self._given or each in heard)
            self._servers = [*(each for each in others if each != address), address]

    def stop_avoiding(self, address: str) -> None:
        """It answered: it may be asked first again."""
        if self._avoided:
            self._avoided.pop(address, None)

    def update(self, found: proto.ClusterMap, asked: list[str], now: float) -> None:
        """Take over what a broker knows of the brokers, and of the topics `asked` for."""
        addresses = {broker.id: broker.address for broker in found.brokers if broker.address}
        if found.brokers:
            self._is_behind_gateway = not addresses
            self._addresses = addresses
            self._zones = {broker.id: broker.zone for broker in found.brokers if broker.zone}
        for topic in found.topics:
            self._routes[topic.name] = _route(topic, now)
        there = {topic.name for topic in found.topics}
        for name in asked:
            if name not in there:
                self._routes.pop(name, None)

    def set_leader(self, topic: str, partition: int, leader: int, address: str) -> None:
        """Take over the leader of a partition, which another broker named."""
        if leader and address:
            self._addresses = {**self._addresses, leader: address}
        route = self._routes.get(topic)
        if route is not None and partition < len(route.leaders):
            route.leaders[partition] = leader

    def doubt(self, topic: str) -> None:
        """Some leader is another by now: ask before the topic is used again."""
        route = self._routes.get(topic)
        if route is not None:
            route.heard_at = float("-inf")

    def forget_beyond(self, most: int) -> None:
        """Keep so many topics at most, those that were heard of last."""
        for topic in list(self._routes)[: max(0, len(self._routes) - most)]:
            self._routes.pop(topic, None)

    def forget(self, topic: str) -> None:
        """Drop the route of a topic, which is wrong."""
        self._routes.pop(topic, None)


def _route(topic: proto.TopicMap, now: float) -> Route:
    places = sorted(topic.partitions, key=lambda place: place.partition)
    return Route(
        topic.name,
        topic.id,
        [place.leader for place in places],
        [tuple(place.replicas) for place in places],
        now,
    )
