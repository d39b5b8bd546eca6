"""Balances replicas and leaders over nodes until no node has two more than another.

An item may lie on some nodes and not on others, so the way from a heavy node to a light one may
lead over nodes in between: each passes one item on. A shortest such way is looked for, and as long
as there is one, loads can be made more even; when there is none, they cannot.

`ReplicaBalance` levels the replicas of partitions, `LeaderBalance` which of its replicas leads
each. Replicas stay as far apart as they are (`fault_domains`), however uneven that leaves the
loads: so a node with too much may have no way to pass anything on, and then it never gets one.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from quivermq.cluster.fault_domains import NO_CHANGE, Crowding, FaultDomains


class _Step(NamedTuple):
    item: int
    source: int
    to: int


class _Leveller:
    """The common part: loads, and which items may be moved from which node."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self.load = dict.fromkeys(nodes, 0)
        self.loose: dict[int, dict[int, None]] = {node: {} for node in self.load}
        """The items that may be moved, by node."""
        self._stuck: set[int] = set()
        """The nodes from which no way leads to one with two less."""

    def level(self) -> None:
        """Move the fewest items that make the loads as even as they can be."""
        self._stuck.clear()
        while steps := self._next():
            # Backwards, so that no node holds more in between than before.
            for step in reversed(steps):
                self.move(*step)

    def move(self, item: int, source: int, to: int) -> None:
        self.load[source] -= 1
        self.load[to] += 1
        del self.loose[source][item]
        self.loose[to][item] = None

    def best(self, source: int, to: int) -> int | None:
        """The best item to move from one node to another; None if none may be."""
        raise NotImplementedError

    def exits(self, source: int) -> Iterator[tuple[int, int]]:
        """The nodes that an item of a node may go to, each with such an item."""
        raise NotImplementedError

    def _next(self) -> list[_Step]:
        by_load = sorted(self.load, key=lambda node: self.load[node])
        for heavy in reversed(by_load):
            if self.load[heavy] - self.load[by_load[0]] < 2:
                break
            if heavy in self._stuck:
                continue
            steps = self._direct(heavy, by_load) or self._detour(heavy)
            if steps:
                return steps
        return []

    def _direct(self, heavy: int, by_load: list[int]) -> list[_Step]:
        for light in by_load:
            if self.load[heavy] - self.load[light] < 2:
                break
            item = self.best(heavy, light)
            if item is not None:
                return [_Step(item, heavy, light)]
        return []

    def _detour(self, heavy: int) -> list[_Step]:
        came: dict[int, _Step | None] = {heavy: None}
        waiting = deque([heavy])
        while waiting:
            source = waiting.popleft()
            for to, item in self.exits(source):
                if to in came:
                    continue
                came[to] = _Step(item, source, to)
                waiting.append(to)
                if self.load[heavy] - self.load[to] >= 2:
                    return _way(came, to)
        # Nor from those that it reaches: they have no more than it has.
        self._stuck.update(came)
        return []


def _way(came: dict[int, _Step | None], end: int) -> list[_Step]:
    steps: list[_Step] = []
    step = came[end]
    while step is not None:
        steps.append(step)
        step = came[step.source]
    return steps[::-1]


class ReplicaBalance(_Leveller):
    """Replicas of partitions, at most one of a partition on a node."""

    def __init__(self, nodes: Iterable[int], domains: FaultDomains) -> None:
        super().__init__(nodes)
        self._domains = domains
        self.held: list[list[int]] = []
        """The nodes of each partition, by its number here."""
        self.may_copy = False
        """Whether a replica may be moved to where it has to be copied, if it did not have to be."""
        self._original: list[frozenset[int]] = []
        self._in_zone: list[Counter[str | None]] = []
        """Replicas of each partition by zone."""
        self._ways: dict[tuple[int, str | None], bool] = {}
        """Whether anything of a node may go to a zone, as far as that is known since the last
        move: few pairs of zones exchange anything, and to find that out takes time."""
        self._topic: list[str] = []
        self._of_topic: dict[int, Counter[str]] = {node: Counter() for node in self.load}

    def add(self, topic: str, held: Sequence[int]) -> None:
        """Take in a partition that lies on `held`, and stays there unless it is made loose."""
        self.held.append(list(held))
        self._original.append(frozenset(held))
        self._in_zone.append(Counter())
        self._topic.append(topic)
        for node in held:
            self._count(node, len(self.held) - 1)

    def spread(self, item: int) -> bool:
        """One replica more, loose, apart from the others, where the fewest are; False if every
        node has one."""
        held = self.held[item]
        free = [node for node in self.load if node not in held]
        if not free:
            return False
        # Counting on from another node for each partition spreads what is equal.
        turn = item % len(free)
        crowding = self._domains.crowding
        node = min(
            free[turn:] + free[:turn], key=lambda node: (crowding(held, node), self.load[node])
        )
        held.append(node)
        self._count(node, item)
        self.loose[node][item] = None
        return True

    def drop(self, item: int) -> None:
        """One replica less, where they are crowded. Those that stay are loose: levelling decides
        which it should be."""
        held = self.held[item]
        node = max(reversed(held), key=lambda node: self._domains.crowding(held, node))
        held.remove(node)
        self._count(node, item, -1)
        self.loose[node].pop(item, None)
        self.loosen(item)

    def loosen(self, item: int) -> None:
        """Let every replica of a partition be moved."""
        self._ways.clear()
        for node in self.held[item]:
            if node in self.loose:
                self.loose[node][item] = None

    def part(self, item: int) -> None:
        """Bring the replicas of a partition, which are loose, as far apart as they can be."""
        held, original, load = self.held[item], self._original[item], self.load

        def cost(move: tuple[Crowding, int, int]) -> tuple[Crowding, int, int, bool]:
            change, source, to = move
            copies = (to not in original) - (source not in original)
            return change, copies, load[to] - load[source], held[0] == source

        while moves := self._domains.partings(held, load):
            _, source, to = min(moves, key=cost)
            self.move(item, source, to)

    def move(self, item: int, source: int, to: int) -> None:
        super().move(item, source, to)
        self.held[item][self.held[item].index(source)] = to
        topic = self._topic[item]
        self._of_topic[source][topic] -= 1
        self._of_topic[to][topic] += 1
        self._in_zone[item][self._domains.zone(source)] -= 1
        self._in_zone[item][self._domains.zone(to)] += 1
        self._ways.clear()

    def best(self, source: int, to: int) -> int | None:
        """First what costs no copy, then of a topic that is crowded at `source`, then no leader."""
        if not self._has_way(source, to):
            return None
        here, there = self._of_topic[source], self._of_topic[to]
        best, best_cost = None, (9, 0, False)
        for item in self.loose[source]:
            copies = self._copies(item, source, to)
            if copies is not None:
                topic = self._topic[item]
                cost = (copies, there[topic] - here[topic], self.held[item][0] == source)
                if cost < best_cost:
                    best, best_cost = item, cost
        return best

    def exits(self, source: int) -> Iterator[tuple[int, int]]:
        for to in self.load:
            for item in self.loose[source] if self._has_way(source, to) else ():
                if self._copies(item, source, to) is not None:
                    yield to, item
                    break

    def _copies(self, item: int, source: int, to: int) -> int | None:
        """How many copies more the move takes; None if it may not be."""
        held = self.held[item]
        if to in held:
            return None
        if self._domains.matter and not self._stays_apart(item, source, to):
            return None
        original = self._original[item]
        copies = (to not in original) - (source not in original)
        return copies if copies <= 0 or self.may_copy else None

    def _has_way(self, source: int, to: int) -> bool:
        """Whether anything of `source` may go to the zone of `to`."""
        here, there = self._domains.zone(source), self._domains.zone(to)
        if here == there:
            return True
        if (source, there) not in self._ways:
            counts = (self._in_zone[item] for item in self.loose[source])
            self._ways[source, there] = any(count[there] < count[here] for count in counts)
        return self._ways[source, there]

    def _stays_apart(self, item: int, source: int, to: int) -> bool:
        if self._domains.machines_matter:
            return self._domains.change(self.held[item], source, to) <= NO_CHANGE
        here, there = self._domains.zone(source), self._domains.zone(to)
        counts = self._in_zone[item]
        return here == there or counts[there] < counts[here]

    def _count(self, node: int, item: int, change: int = 1) -> None:
        self._in_zone[item][self._domains.zone(node)] += change
        self._ways.clear()
        if node in self.load:
            self.load[node] += change
            self._of_topic[node][self._topic[item]] += change


class LeaderBalance(_Leveller):
    """Which of the nodes that hold a partition leads it."""

    def __init__(self, nodes: Iterable[int]) -> None:
        super().__init__(nodes)
        self.leader: list[int] = []
        self._choices: list[Sequence[int]] = []

    def add(self, leader: int, choices: Sequence[int]) -> None:
        """Take in a partition led by `leader` (0: by the one with the least to do), which may be
        led by any of `choices`; with none it stays as it is."""
        choices = [node for node in choices if node in self.load]
        if choices and leader not in choices:
            leader = min(choices, key=lambda node: self.load[node])
        self.leader.append(leader)
        self._choices.append(choices)
        if leader in self.load:
            self.load[leader] += 1
        if choices:
            self.loose[leader][len(self.leader) - 1] = None

    def move(self, item: int, source: int, to: int) -> None:
        super().move(item, source, to)
        self.leader[item] = to

    def best(self, source: int, to: int) -> int | None:
        return next((item for item in self.loose[source] if to in self._choices[item]), None)

    def exits(self, source: int) -> Iterator[tuple[int, int]]:
        for item in self.loose[source]:
            for to in self._choices[item]:
                yield to, item
