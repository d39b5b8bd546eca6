"""The last sample of a cluster, with what pages look up in it.

Many viewers ask for the same sample: what needs a look at all partitions or all topics is made once
a sample, when it is first asked for.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from quivermq.client import ClusterInfo
from quivermq.cluster_samples import (
    STATES,
    GroupFigures,
    Scrape,
    TopicFigures,
    TopicGroup,
    TopicPartition,
)
from quivermq.portal.attention import Notice

METADATA: Final = "_quiver"
_LEADER: Final = STATES[4]


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A partition, with its replica on each broker."""

    topic: str
    partition: int
    term: int
    states: dict[int, str]
    lags: dict[int, float]

    @property
    def is_calm(self) -> bool:
        """One leads, the others follow and lack nothing."""
        states = sorted(self.states.values())
        return states.count(_LEADER) == 1 and not any(self.lags.values())


@dataclass
class ClusterSample:
    """Figures of one moment."""

    at: float = 0.0
    cluster: ClusterInfo | None = None
    scrapes: dict[int, Scrape] = field(default_factory=dict)
    topics: dict[str, TopicFigures] = field(default_factory=dict)
    groups: dict[TopicGroup, GroupFigures] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    """Of the whole cluster, by the name of the series."""
    notices: list[Notice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ranked: dict[str, list[str]] = {}

    def ranked(self, by: str) -> list[str]:
        """The topics, those with the most first: by "size", or by the name of a rate."""
        if by not in self._ranked:
            topics = self.topics

            def rank(name: str) -> tuple[float, str]:
                found = topics[name]
                return (-(found.size if by == "size" else found.rates.get(by, 0.0)), name)

            self._ranked[by] = sorted(topics, key=rank)
        return self._ranked[by]

    @cached_property
    def busiest_groups(self) -> list[tuple[TopicGroup, GroupFigures]]:
        """The groups of users, those with the most to do first."""
        found = [each for each in self.groups.items() if not each[0][1].startswith("_")]
        return sorted(found, key=lambda each: (-each[1].lag, each[0]))

    @cached_property
    def lags(self) -> dict[TopicPartition, dict[int, float]]:
        """By partition and broker: entries that a replica lacks, as its leader told."""
        found: dict[TopicPartition, dict[int, float]] = {}
        for scrape in self.scrapes.values():
            for (topic, partition, member), lag in scrape.followers.items():
                found.setdefault((topic, partition), {})[member] = lag
        return found

    def behind(self, place: TopicPartition) -> float | None:
        """Entries that the replica furthest behind lacks; None: its leader does not tell."""
        return max(self.lags.get(place, {}).values(), default=None)

    @cached_property
    def replicas(self) -> list[ReplicaRow]:
        """Every partition, in order; first that of the metadata."""
        places: dict[TopicPartition, dict[int, Scrape]] = {}
        for node, scrape in self.scrapes.items():
            for place in scrape.partitions.get("quiver_raft_state", {}):
                places.setdefault(place, {})[node] = scrape
        return [
            ReplicaRow(
                *place,
                int(max(each.partitions["quiver_raft_term"].get(place, 0) for each in at.values())),
                {node: scrape.state_of(place) for node, scrape in at.items()},
                self.lags.get(place, {}),
            )
            for place, at in sorted(
                places.items(), key=lambda each: (each[0][0] != METADATA, each[0])
            )
        ]
