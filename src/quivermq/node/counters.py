"""Counts what a broker does, by batch and never by message, for metrics and `stats`."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from quivermq.node.loop_watch import Stalls

SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
DOORS: Final = ("tcp", "http", "grpc")


class Histogram:
    """Durations by bucket."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """Bucket bounds and counts as Prometheus has them."""
        found, so_far = [], 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found


@dataclass(slots=True)
class Traffic:
    """The traffic of one partition on this broker."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0

    def add(self, other: "Traffic") -> None:
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.messages_out += other.messages_out
        self.bytes_out += other.bytes_out


@dataclass(slots=True)
class Shares:
    """Settlements of one group in one partition, while it was led here."""

    acked: int = 0
    redelivered: int = 0
    dead_lettered: int = 0


@dataclass(slots=True)
class DoorTraffic:
    """Requests that came through one transport."""

    requests: int = 0
    refused: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By the code of the error, of which there are a few dozen."""
    peers: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Open calls by connection, where a library has the connections and tells nothing of them."""

    def enter(self, peer: str) -> None:
        """A call begins."""
        self.requests += 1
        self.peers[peer] += 1

    def leave(self, peer: str) -> None:
        """It is over."""
        self.peers[peer] -= 1
        if not self.peers[peer]:
            del self.peers[peer]


@dataclass(slots=True)
class Counters:
    """All counters of a broker since it started."""

    traffic: defaultdict[tuple[str, int], Traffic] = field(
        default_factory=lambda: defaultdict(Traffic)
    )
    """By topic and partition, of those that exist."""
    gone: Traffic = field(default_factory=Traffic)
    """Of the others, so that no total ever shrinks."""
    shares: defaultdict[tuple[str, int, str], Shares] = field(
        default_factory=lambda: defaultdict(Shares)
    )
    """By topic, partition and group, of partitions that exist."""
    produce_seconds: Histogram = field(default_factory=Histogram)
    fsync_seconds: Histogram = field(default_factory=Histogram)
    throttled: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Polls that got nothing because of the topic's rate limit, by topic."""
    doors: dict[str, DoorTraffic] = field(
        default_factory=lambda: {door: DoorTraffic() for door in DOORS}
    )
    overloaded: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    """Requests that were refused for lack of a token, a grant or room, by code."""
    connections: int = 0
    requests: int = 0
    """Of all doors to the service; one request of HTTP or gRPC may become several."""
    forwarded: int = 0
    stalls: Stalls = field(default_factory=Stalls)

    def keep_only(self, partitions: Collection[tuple[str, int]]) -> None:
        """Topics come and go: what was counted of those that went must not pile up."""
        for name in [name for name in self.traffic if name not in partitions]:
            self.gone.add(self.traffic.pop(name))
        for place in [place for place in self.shares if place[:2] not in partitions]:
            del self.shares[place]
        topics = {topic for topic, _ in partitions}
        for topic in [topic for topic in self.throttled if topic not in topics]:
            del self.throttled[topic]

    def total_traffic(self) -> Traffic:
        """Of all partitions that there ever were."""
        total = Traffic()
        for part in (self.gone, *self.traffic.values()):
            total.add(part)
        return total
