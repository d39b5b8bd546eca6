"""Who is served, and how fast: shares of priorities, rate limits of a cluster. See `consuming`."""

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

import quivermq
from benchmarks.quiver import Brokers
from quivermq.testing import Cluster

LEVELS = 8
POLL_SIZES = (1, 10, 100)
POLLED_MESSAGES = 2_000
TOP_SHARE, LEAST_SHARE = 0.60, 0.02

NODES = 3
TOLERANCE = 0.05


@dataclass(slots=True)
class Shares:
    """By poll size: of each level, the lowest first."""

    by_size: dict[int, list[float]] = field(default_factory=dict)

    def table(self) -> Table:
        table = Table(title="shares of the 8 levels, all of them waiting", title_justify="left")
        table.add_column("poll size", justify="right")
        for level in range(LEVELS):
            table.add_column(str(level), justify="right")
        table.add_column(f"top ≥ {TOP_SHARE:.0%}, others ≥ {LEAST_SHARE:.0%}")
        for size, shares in self.by_size.items():
            is_met = shares[-1] >= TOP_SHARE and min(shares) >= LEAST_SHARE
            cells = [f"{share:.1%}" for share in shares]
            table.add_row(str(size), *cells, "met" if is_met else "MISSED")
        return table


def measure_priorities() -> Shares:
    with (
        tempfile.TemporaryDirectory(prefix="bench-priorities-") as folder,
        Brokers(Path(folder), 1, "--fsync", "interval") as brokers,
        quivermq.connect(brokers.servers, timeout=30.0) as client,
    ):
        client.create_topic("levels")
        for level in range(LEVELS):
            for _ in range(POLLED_MESSAGES // 1_000):
                client.produce_many("levels", [b"value"] * 1_000, priority=level)
        found = Shares()
        for size in POLL_SIZES:
            served: Counter[int] = Counter()
            while served.total() < POLLED_MESSAGES:
                messages = client.poll("levels", f"by-{size}", size)
                served.update(message.priority for message in messages)
                client.ack(messages)
            total = served.total()
            found.by_size[size] = [served[level] / total for level in range(LEVELS)]
        return found


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate, and for how long it is watched."""

    per_second: float
    burst: int
    seconds: float
    poll_size: int

    @property
    def topic(self) -> str:
        return f"limit-{self.per_second:g}".replace(".", "-")


LIMITS = (
    Limit(0.5, 1, 24.0, 1),
    Limit(10, 1, 10.0, 5),
    Limit(10_000, 100, 6.0, 5_000),
)


@dataclass(frozen=True, slots=True)
class Held:
    """What was delivered in a stretch of time."""

    what: str
    per_second: float
    delivered: int
    seconds: float
    allowed: float
    """At most so many, with a twentieth to spare: the rate and its bursts."""

    @property
    def rate(self) -> float:
        return self.delivered / self.seconds

    @property
    def off(self) -> float:
        return self.rate / self.per_second - 1


@dataclass(slots=True)
class Limits:
    found: list[Held] = field(default_factory=list)
    """Must be neither faster nor slower."""
    failovers: list[Held] = field(default_factory=list)
    """Must not be faster."""

    def table(self) -> Table:
        title = f"rate limits: 3 partitions on {NODES} nodes; within {TOLERANCE:.0%}"
        table = Table(title=title, title_justify="left")
        for name in ("what", "limit", "delivered", "in", "rate", "off", ""):
            table.add_column(name, justify="left" if name == "what" else "right")
        for held in self.found:
            settlement = "met" if abs(held.off) <= TOLERANCE else "MISSED"
            table.add_row(*_cells(held), f"{held.off:+.1%}", settlement)
        for held in self.failovers:
            # Nobody is served while there is no leader: only too many would be wrong.
            settlement = "met" if held.delivered <= held.allowed * (1 + TOLERANCE) else "MISSED"
            table.add_row(*_cells(held), f"≤ {held.allowed:,.0f}", settlement)
        return table


def _cells(held: Held) -> list[str]:
    return [
        held.what,
        f"{held.per_second:g}/s",
        f"{held.delivered:,}",
        f"{held.seconds:.1f} s",
        f"{held.rate:,.3g}/s" if held.rate < 100 else f"{held.rate:,.0f}/s",
    ]


class _Consumers:
    """Two of them, each with a client of its own, taking what they get."""

    def __init__(self, cluster: Cluster, limit: Limit) -> None:
        self._limit = limit
        self._cluster = cluster
        self._stop = threading.Event()
        self.arrivals: list[tuple[float, int]] = []
        self._threads = [threading.Thread(target=self._consume) for _ in range(2)]

    def __enter__(self) -> "_Consumers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _consume(self) -> None:
        with self._cluster.connect(timeout=30.0) as client:
            while not self._stop.is_set():
                messages = client.poll(
                    self._limit.topic, "workers", self._limit.poll_size, wait=2.5
                )
                self.arrivals.append((time.monotonic(), len(messages)))
                client.ack(messages)

    def delivered(self, began: float, ended: float) -> int:
        return sum(count for at, count in self.arrivals if began <= at < ended)

    def held(self, what: str, began: float, ended: float) -> Held:
        """From the first arrival on to the last: both ends are deliveries."""
        inside = sorted((at, count) for at, count in self.arrivals if began <= at < ended and count)
        if len(inside) < 2:
            return Held(what, self._limit.per_second, 0, ended - began, 0)
        # Whatever came with the first was earned before.
        delivered = sum(count for _, count in inside[1:])
        seconds = inside[-1][0] - inside[0][0]
        allowed = seconds * self._limit.per_second + self._limit.burst
        return Held(what, self._limit.per_second, delivered, seconds, allowed)


def measure_limits() -> Limits:
    found = Limits()
    with Cluster(nodes=NODES, settings={"fsync": "interval"}) as cluster:
        with cluster.connect(timeout=30.0) as client:
            for limit in LIMITS:
                _prepare(client, limit)
        slow, fast = LIMITS[:-1], LIMITS[-1]
        found.found += _watch(cluster, slow)
        found.found += _watch(cluster, [fast])
        for limit in LIMITS:
            over, after = _watch_failover(cluster, limit)
            found.failovers.append(over)
            found.found.append(after)
    return found


def _prepare(client: Any, limit: Limit) -> None:
    rate = quivermq.RateLimit(per_second=limit.per_second, burst=limit.burst)
    client.create_topic(limit.topic, partitions=3, replication=NODES, rate_limit=rate)
    count = int(limit.per_second * 60) + 100
    for partition in range(3):
        for _ in range(0, count, 10_000):
            values = [b"value"] * min(count, 10_000)
            client.produce_many(limit.topic, values, partition=partition)


def _watch(cluster: Cluster, limits: Sequence[Limit]) -> list[Held]:
    """All of them at the same time, each for as long as it needs."""
    watched = [_Consumers(cluster, limit) for limit in limits]
    began = time.monotonic() + 1.0
    for each in watched:
        each.__enter__()
    time.sleep(1.0 + max(limit.seconds for limit in limits))
    for each in watched:
        each.__exit__()
    return [
        each.held("steady", began, began + limit.seconds)
        for each, limit in zip(watched, limits, strict=True)
    ]


def _watch_failover(cluster: Cluster, limit: Limit) -> tuple[Held, Held]:
    """The leader of partition 0, which keeps the bucket, is killed in the middle."""
    half = max(limit.seconds / 2, 6.0)
    with _Consumers(cluster, limit) as consumers:
        time.sleep(1.0)
        began = time.monotonic()
        time.sleep(half)
        node = cluster.nodes[cluster.leader(limit.topic, 0)]
        node.kill()
        killed = time.monotonic()
        time.sleep(half)
        ended = time.monotonic()
        cluster.leader(limit.topic, 0)
    node.start()
    cluster.wait_ready()
    seconds = ended - began
    # A burst at the beginning of the time that is watched, and one more after a failover.
    allowed = seconds * limit.per_second + 2 * limit.burst
    whole = Held(
        "over a failover", limit.per_second, consumers.delivered(began, ended), seconds, allowed
    )
    after = consumers.held("after a failover", killed + 3.0, ended)
    return whole, after
