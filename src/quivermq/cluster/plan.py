"""Plans: which replicas should go where, as pure functions of the catalog.

A plan is a list of moves, each with the members that one partition is to have, the preferred leader
first. It says nothing about when. Partitions that are being moved already are left alone, unless a
broker that goes away would be part of the result.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from quivermq.cluster.balance import LeaderBalance, ReplicaBalance
from quivermq.cluster.catalog_view import View
from quivermq.cluster.fault_domains import FaultDomains
from quivermq.cluster.placement import load_of, place
from quivermq.cluster.records import Placement, Topic, broker_member_of, node_of, partition_id
from quivermq.errors import InvalidRequest

METADATA_VOTERS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Move:
    """The members that a partition is to have; `old` are those that it has or was to have."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    old: tuple[int, ...] = ()

    @property
    def keeps_majority(self) -> bool:
        """Whether those that stay are enough to agree on the move, if the others are lost."""
        return 2 * len(set(self.replicas) & set(self.old)) > len(self.old)


@dataclass(frozen=True, slots=True)
class LeaderMove:
    """The node that is to lead a partition instead of the one that does."""

    topic: str
    partition: int
    to: int


def rebalance(view: View) -> list[Move]:
    """The fewest copies that give every partition its replicas, in different zones and on
    different machines as far as there are any, and every serving broker as many as any other, give
    or take one, as far as that allows; then the preferred leaders likewise."""
    members = {broker.id: broker.member for broker in view.serving}
    if not members:
        return []
    plan = _Plan(view, members)
    settled = [not placement.target for _, _, placement in plan.partitions]
    for (topic, _, placement), free in zip(plan.partitions, settled, strict=True):
        if free:
            # A broker that lost its disk has nothing of what its former self held.
            stay = [m for m in placement.replicas if members.get(node_of(m)) == broker_member_of(m)]
            plan.take(stay, min(topic.replication, len(members)))
        else:
            plan.take(placement.target, len(placement.target))
    plan.fill()
    for item, free in enumerate(settled):
        if free:
            plan.replicas.loosen(item)
            plan.replicas.part(item)
    plan.replicas.may_copy = True
    plan.replicas.level()
    return plan.moves(settled)


def drain(view: View, node: int) -> list[Move]:
    """Everything off a broker that leaves, spread over the others; nothing else is moved. There
    are fewer replicas where there are too few brokers."""
    view.broker(node)
    members = {broker.id: broker.member for broker in view.serving if broker.id != node}
    if not members:
        raise InvalidRequest(
            f"broker {node} is the last one that serves: add another before it can leave"
        )
    plan = _Plan(view, members)
    leaderless = []
    for _, _, placement in plan.partitions:
        stay = [member for member in placement.planned if node_of(member) != node]
        leaderless.append(placement.planned[0] not in stay)
        plan.take(stay, len(placement.planned))
    plan.fill()
    return [move for move in plan.moves(leaderless) if node in map(node_of, move.old)]


def replace(view: View, node: int, member_new: int) -> list[Move]:
    """The same broker under another number, in every partition that knows it under an old one."""
    moves = []
    for topic, partition, placement in view.partitions():
        number = placement.member_on(member_new)
        members = tuple(
            number if node_of(member) == node else member for member in placement.planned
        )
        if members != placement.planned:
            moves.append(Move(topic.name, partition, members, placement.planned))
    return moves


def grow(view: View, topic: Topic, partitions: int, dice: int | None = None) -> list[Placement]:
    """Homes for the partitions that `topic` lacks to have `partitions`."""
    return place(
        view.serving,
        load_of(view),
        partitions=partitions - len(topic.partitions),
        replication=min(topic.replication, max(1, len(view.serving))),
        dice=view.version if dice is None else dice,
    )


def rebalance_leaders(
    view: View, leaders: Mapping[bytes, int], alive: Collection[int] | None = None
) -> list[LeaderMove]:
    """The transfers that let every serving broker lead as many partitions as any other, as far as
    replicas allow. `leaders` says which node leads each partition; only nodes that are `alive` are
    chosen, if that is given; partitions without a leader are left out."""
    nodes = [b.id for b in view.serving if alive is None or b.id in alive]
    spread, found = LeaderBalance(nodes), []
    for topic, partition, placement in view.partitions():
        leader = leaders.get(partition_id(topic.id, partition), 0)
        if leader:
            spread.add(leader, list(map(node_of, placement.replicas)))
            found.append((topic.name, partition, leader))
    spread.level()
    return [
        LeaderMove(topic, partition, to)
        for (topic, partition, leader), to in zip(found, spread.leader, strict=True)
        if to != leader
    ]


def metadata_voters(
    view: View, current: Collection[int] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The members of the metadata partition: voters and learners. Voters are as far apart as they
    can be; beyond that, members that vote already (`current`) stay voters while they serve. A
    broker that leaves only listens."""
    domains = FaultDomains(view.serving)
    member = {broker.id: broker.member for broker in view.serving}
    free = sorted(member, key=lambda node: (member[node] not in current, node))
    chosen: list[int] = []
    while free and len(chosen) < METADATA_VOTERS_MAX:
        chosen.append(min(free, key=lambda node: domains.crowding(chosen, node)))
        free.remove(chosen[-1])
    voters = {member[node] for node in chosen}
    members = [broker.member for broker in view.brokers.values()]
    return (
        tuple(member for member in members if member in voters),
        tuple(member for member in members if member not in voters),
    )


class _Plan:
    """A plan in the making: every partition, by its number here, and where its replicas lie."""

    def __init__(self, view: View, members: Mapping[int, int]) -> None:
        self._members = members
        self.partitions = list(view.partitions())
        self.replicas = ReplicaBalance(members, FaultDomains(view.brokers.values()))
        self._wanted: list[int] = []

    def take(self, stay: Sequence[int], wanted: int) -> None:
        """The next partition: the members that have it, and how many it is to have."""
        topic = self.partitions[len(self._wanted)][0]
        self.replicas.add(topic.name, list(map(node_of, stay)))
        self._wanted.append(wanted)

    def fill(self) -> None:
        """Give every partition as many replicas as it is to have, if there are brokers for them."""
        for item, wanted in enumerate(self._wanted):
            while len(self.replicas.held[item]) > wanted:
                self.replicas.drop(item)
        for item, wanted in enumerate(self._wanted):
            while len(self.replicas.held[item]) < wanted and self.replicas.spread(item):
                pass
        self.replicas.level()

    def moves(self, may_lead_elsewhere: Sequence[bool]) -> list[Move]:
        """The moves to make, with the preferred leaders balanced where they may be."""
        leaders = LeaderBalance(self._members)
        for item, ((_, _, placement), free) in enumerate(
            zip(self.partitions, may_lead_elsewhere, strict=True)
        ):
            held = self.replicas.held[item]
            stay = [node for node in map(node_of, placement.planned) if node in held]
            leaders.add((stay or held)[0], held if free else ())
        leaders.level()
        found = []
        for item, (topic, partition, placement) in enumerate(self.partitions):
            held, leader = self.replicas.held[item], leaders.leader[item]
            nodes = [leader, *(node for node in held if node != leader)]
            members = self._numbered(nodes, placement)
            if members != placement.planned:
                found.append(Move(topic.name, partition, members, placement.planned))
        return found

    def _numbered(self, nodes: Sequence[int], placement: Placement) -> tuple[int, ...]:
        known = {node_of(member): member for member in placement.planned}
        if not placement.target:
            # A replica whose disk was lost is made again, as a member on the broker's present one.
            known = {node: member for node, member in known.items() if node not in self._members}
        return tuple(
            known[node] if node in known else placement.member_on(self._members[node])
            for node in nodes
        )
