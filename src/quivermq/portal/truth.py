"""The truth meter: whether what a topic acknowledged is what it stored, and where that is.

Pure. Brokers are asked one after the other while messages come and go, so the order of questions
matters: counters of acknowledged messages are read before the ends of partitions. Whatever was
counted was stored before, so that the ends are never below the count, however much comes in
between. A topic is wrong when it does not add up twice in a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from quivermq.client import GroupInfo, TopicInfo

TOPICS_MAX: Final = 200
_PATIENCE: Final = 2

Boots = frozenset[tuple[int, float]]
"""The brokers whose counters were read, each with the start of its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTally:
    """The messages of a topic by what became of them for one group."""

    name: str
    mode: str
    total: int
    """From where the group began to the end."""
    done: int
    waiting: int
    in_flight: int
    delayed: int
    dead: int
    lost: int

    @classmethod
    def of(cls, group: GroupInfo) -> "GroupTally":
        total = sum(max(0, each.end_offset - each.start_offset) for each in group.partitions)
        is_shared = group.mode == "shared"
        return cls(
            name=group.name,
            mode=group.mode,
            total=total,
            # Groups that only commit offsets: what is not behind the offset was done.
            done=group.done if is_shared else max(0, total - group.lag),
            waiting=group.lag,
            in_flight=group.in_flight,
            delayed=group.delayed,
            dead=group.dead,
            lost=group.lost,
        )

    @property
    def counted(self) -> int:
        return self.done + self.waiting + self.in_flight + self.delayed + self.dead + self.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """One topic, counted."""

    topic: str
    acknowledged: int
    """At least so many, and exactly so many where `is_exact`."""
    stored: int
    is_exact: bool
    groups: tuple[GroupTally, ...]
    faults: tuple[str, ...] = ()
    is_wrong: bool = False
    """It did not add up twice in a row."""

    @property
    def state(self) -> str:
        if not self.faults:
            return "ok"
        return "wrong" if self.is_wrong else "checking"


@dataclass(slots=True)
class _Watched:
    topic_id: str
    ends: dict[int, int]
    boots: Boots = frozenset()
    base: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By partition: its end and its counter at one moment."""
    exact: set[int] = field(default_factory=set)
    """Partitions that were quiet at that moment; others may have acknowledged more."""
    misses: int = 0


class TruthMeter:
    """Remembers what the brokers said of each topic, and compares."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self.tallies: dict[str, Tally] = {}

    def observe(
        self,
        topic: TopicInfo,
        groups: Sequence[GroupInfo],
        counters: Mapping[int, float],
        boots: Boots,
    ) -> Tally:
        """Compare: the counters were read before the topic was, and that before the groups."""
        ends = {
            each.partition: each.end_offset
            for each in topic.partitions
            if each.end_offset is not None
        }
        watched = self._watched.get(topic.name)
        if watched is None or watched.topic_id != topic.id:
            watched = self._watched[topic.name] = _Watched(topic.id, dict(ends))
            acknowledged = ends
        else:
            acknowledged = _acknowledged(watched, ends, counters, boots)
        # The topics that are looked at most rarely come first, and go first.
        self._watched[topic.name] = self._watched.pop(topic.name)
        faults = _shrunk(watched.ends, ends)
        stored = sum(ends.values())
        faults += [
            f"partition {number}: {count:,} messages were acknowledged, {ends[number]:,} are stored"
            for number, count in acknowledged.items()
            if count > ends[number]
        ]
        tallies = tuple(map(GroupTally.of, groups))
        faults += [
            f"group {each.name}: {each.counted:,} messages are accounted for, of {each.total:,}"
            for each in tallies
            if each.counted != each.total
        ]
        watched.misses = watched.misses + 1 if faults else 0
        if not faults:
            watched.ends = dict(ends)
        tally = Tally(
            topic=topic.name,
            acknowledged=sum(acknowledged.values()),
            stored=stored,
            is_exact=watched.exact >= set(ends),
            groups=tallies,
            faults=tuple(faults),
            is_wrong=watched.misses >= _PATIENCE,
        )
        self.tallies[topic.name] = tally
        return tally

    def forget(self, names: set[str]) -> None:
        """Drop topics that are gone, and the oldest of too many."""
        for name in [name for name in self._watched if name not in names]:
            del self._watched[name], self.tallies[name]
        while len(self._watched) > TOPICS_MAX:
            name = next(iter(self._watched))
            del self._watched[name], self.tallies[name]


def _acknowledged(
    watched: _Watched, ends: Mapping[int, int], counters: Mapping[int, float], boots: Boots
) -> dict[int, int]:
    """By partition, at least so many messages were acknowledged, from the first one on.

    A counter begins at 0 with its process: it counts from a moment at which the end was known.
    That end was read before the counter, so that no message is counted twice.
    """
    if boots != watched.boots:
        watched.boots, watched.base = boots, {}
        watched.exact.clear()
    found = {}
    for partition, end in ends.items():
        counter = counters.get(partition, 0.0)
        before = watched.ends.get(partition, 0)
        if partition not in watched.exact and before <= end:
            # Nothing was stored between the last look and this one: so nothing was counted.
            if before == end:
                watched.exact.add(partition)
            base = watched.base.get(partition)
            # The nearest that is known: fewer came in between than the other times.
            if base is None or before - counter > base[0] - base[1]:
                watched.base[partition] = (before, counter)
        base_end, base_counter = watched.base.get(partition, (end, counter))
        found[partition] = base_end + max(0, round(counter - base_counter))
    return found


def _shrunk(before: Mapping[int, int], after: Mapping[int, int]) -> list[str]:
    return [
        f"partition {number}: {before[number]:,} messages were stored, and now {end:,} are"
        for number, end in after.items()
        if end < before.get(number, 0)
    ]
