"""Places the partitions of a topic on brokers, balanced by replicas and by leaders.

Replicas go to the brokers that hold the fewest. Two rules more keep the preferred leaders level as
well, for any sequence of topics with any replication. Brokers differ by at most one in replicas, so
some are *high* and some *low*; likewise in leaders. A topic with one replica can only be led by a
broker that is low in replicas, so that one must be low in leaders too. It is as long as the brokers
high in one respect are among those high in the other, or the other way round; and that stays so if

- the leader is low in leaders, and rather high in replicas; and
- among equals, the replicas that do not lead go to brokers high in leaders.

What is left open goes to brokers that share few partitions with those already chosen: then the work
of one that fails or leaves can be spread over all the others.

Where there are zones, or machines with several brokers, replicas are kept apart first, and these
rules choose among what is left; leaders may then differ by two. A zone whose brokers lack much
comes before one whose brokers lack little: one partition could not give all that it lacks to one
zone.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from quivermq.cluster.catalog_view import View
from quivermq.cluster.fault_domains import FaultDomains
from quivermq.cluster.records import SERVING, BrokerRecord, Placement, node_of
from quivermq.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """How many replicas each node holds, of how many it is the preferred leader, and how many
    partitions each two nodes share."""

    replicas: Counter[int] = field(default_factory=Counter)
    leaders: Counter[int] = field(default_factory=Counter)
    shared: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add(self, nodes: Sequence[int], partitions: int = 1) -> None:
        for node in nodes:
            self.replicas[node] += partitions
        self.leaders[nodes[0]] += partitions
        for pair in permutations(nodes, 2):
            self.shared[pair] += partitions


def load_of(view: View) -> BrokerLoad:
    """The load once everything that moves has arrived."""
    load = BrokerLoad()
    # Of thousands of partitions most are placed as many others are.
    homes = Counter(tuple(map(node_of, found.planned)) for _, _, found in view.partitions())
    for nodes, partitions in homes.items():
        load.add(nodes, partitions)
    return load


def place(
    brokers: Iterable[BrokerRecord],
    load: BrokerLoad,
    *,
    partitions: int,
    replication: int,
    dice: int = 0,
) -> list[Placement]:
    """Homes for so many partitions. `dice` decides among equals: another one for every topic."""
    serving = [broker for broker in brokers if broker.state == SERVING]
    members = {broker.id: broker.member for broker in serving}
    domains = FaultDomains(serving)
    nodes = sorted(members)
    check_replication(replication, len(nodes))
    load = BrokerLoad(
        _levelled(load.replicas, nodes, partitions * replication),
        _levelled(load.leaders, nodes, partitions),
        load.shared.copy(),
    )
    placements = []
    for number in range(partitions):
        turn = (dice + number) % len(nodes)
        order = nodes[turn:] + nodes[:turn]
        if domains.matter:
            chosen = _choose_apart(order, load, replication, domains)
        else:
            chosen = _choose(order, load, replication)
        chosen = _with_leader_first(chosen, load)
        load.add(chosen)
        group = tuple(members[node] for node in chosen)
        placements.append(Placement(replicas=group, founders=group))
    return placements


def check_replication(replication: int, serving: int) -> None:
    """Raise `InvalidRequest` unless so many brokers can hold so many replicas, one each."""
    if not 1 <= replication <= serving:
        raise InvalidRequest(
            f"replication is {replication}, and {serving} broker{'' if serving == 1 else 's'} can "
            "hold a replica: choose 1 up to that number, or add brokers"
        )


def _levelled(load: Counter[int], nodes: list[int], added: int) -> Counter[int]:
    """The load with what a broker lacks limited to its share of what is added: one that joined
    empty catches up over several topics, rather than leading all of the next one."""
    most = max(load[node] for node in nodes)
    share = -(-added // len(nodes))
    return Counter({node: max(load[node], most - share) for node in nodes})


def _choose(order: list[int], load: BrokerLoad, count: int) -> list[int]:
    """The nodes for one partition; the earlier in `order` among equals."""
    replicas, leaders, shared = load.replicas, load.leaders, load.shared
    limit = sorted(replicas[node] for node in order)[count - 1]
    chosen = [node for node in order if replicas[node] < limit]
    equals = [node for node in order if replicas[node] == limit]
    if not chosen:
        chosen = [min(equals, key=lambda node: leaders[node])]
        equals.remove(chosen[0])
    while len(chosen) < count:
        costs = [(-leaders[n], sum(shared[n, other] for other in chosen)) for n in equals]
        chosen.append(equals.pop(costs.index(min(costs))))
    return chosen


def _choose_apart(
    order: list[int], load: BrokerLoad, count: int, domains: FaultDomains
) -> list[int]:
    """The same, of brokers that are as far apart as they can be."""
    replicas, leaders, shared = load.replicas, load.leaders, load.shared
    lacks = domains.lacks(replicas, order)
    chosen: list[int] = []
    free = list(order)

    def cost(node: int) -> tuple[int, ...]:
        first = (*domains.crowding(chosen, node), replicas[node])
        lack = lacks[node]
        if not chosen:
            return (*first, leaders[node], -lack.zone, -lack.machine)
        common = sum(shared[node, other] for other in chosen)
        return (*first, -lack.zone, -lack.machine, -leaders[node], common)

    while len(chosen) < count:
        chosen.append(min(free, key=cost))
        free.remove(chosen[-1])
    return chosen


def _with_leader_first(nodes: list[int], load: BrokerLoad) -> list[int]:
    leader = min(nodes, key=lambda node: (load.leaders[node], -load.replicas[node]))
    return [leader, *(node for node in nodes if node != leader)]
