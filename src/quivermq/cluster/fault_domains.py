"""Which brokers fail together: those of one machine, and those of one zone.

The replicas of a partition are *apart* when no zone holds two more of them than another one that
has a broker to spare, and within a zone the same holds of its machines. That takes the smallest sum
of squares of how many replicas each zone holds, then each machine; so whether a move helps or does
harm is told by what it does to these sums (decision 0063).

The sets of brokers that are apart are the bases of a matroid. So the one with the least load is
found by taking the best broker of the least crowded place, again and again, and loads that no chain
of moves can make more even are as even as they can be.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol


class Crowding(NamedTuple):
    """How many of some replicas share a zone, and a machine, with a broker; or by how much that
    changes."""

    zone: int
    machine: int


NO_CHANGE: Final = Crowding(0, 0)


class Located(Protocol):
    """A broker, and where it runs."""

    @property
    def id(self) -> int: ...
    @property
    def zone(self) -> str: ...
    @property
    def machine(self) -> str: ...


class FaultDomains:
    """The zones and machines of brokers. A broker that is not known shares neither with any."""

    def __init__(self, brokers: Iterable[Located]) -> None:
        self._zone: dict[int, str] = {}
        self._machine: dict[int, tuple[str, str]] = {}
        for broker in brokers:
            self._zone[broker.id] = broker.zone
            self._machine[broker.id] = broker.zone, broker.machine
        zones, machines = set(self._zone.values()), set(self._machine.values())
        self.machines_matter = 1 < len(machines) < len(self._machine)
        self.matter = len(zones) > 1 or self.machines_matter
        """Whether any choice of brokers is better than another one."""

    def zone(self, node: int) -> str | None:
        return self._zone.get(node)

    def crowding(self, held: Sequence[int], node: int) -> Crowding:
        """How many replicas of `held` are in the zone of a node, and on its machine."""
        zone, machine = self._zone.get(node), self._machine.get(node)
        if zone is None:
            return Crowding(held.count(node), held.count(node))
        zones, machines = self._zone, self._machine
        return Crowding(
            sum(zones.get(other) == zone for other in held),
            sum(machines.get(other) == machine for other in held),
        )

    def change(self, held: Sequence[int], source: int, to: int) -> Crowding:
        """The change of the sums of squares, halved, if a replica moves: less than (0, 0) brings
        replicas further apart, more does harm."""
        here, there = self.crowding(held, source), self.crowding(held, to)
        same_zone = self._zone.get(source, source) == self._zone.get(to, to)
        same_machine = self._machine.get(source, source) == self._machine.get(to, to)
        return Crowding(
            0 if same_zone else there.zone - here.zone + 1,
            0 if same_machine else there.machine - here.machine + 1,
        )

    def partings(
        self, held: Sequence[int], nodes: Collection[int]
    ) -> list[tuple[Crowding, int, int]]:
        """The moves of one replica to one of `nodes` that bring them further apart: what each
        changes, from where and to where."""
        if not self.matter or len({self._zone.get(node, node) for node in held}) == len(held):
            return []
        moves = ((self.change(held, source, to), source, to) for source in held for to in nodes)
        return [move for move in moves if move[0] < NO_CHANGE and move[2] not in held]

    def lacks(self, load: Mapping[int, int], nodes: Collection[int]) -> dict[int, Crowding]:
        """For each node, by how much its zone, and its machine, could grow until every node has as
        much as the one with the most."""
        most = max((load[node] for node in nodes), default=0)
        zones: Counter[str] = Counter()
        machines: Counter[tuple[str, str]] = Counter()
        for node in nodes:
            zones[self._zone[node]] += most - load[node]
            machines[self._machine[node]] += most - load[node]
        return {
            node: Crowding(zones[self._zone[node]], machines[self._machine[node]]) for node in nodes
        }
