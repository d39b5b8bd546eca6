"""Exports a broker's counters to Prometheus. The names are listed in `docs/metrics.md`.

The broker counts in plain numbers; they become metrics only at a scrape. That is done in
small parts, with a breath between, so that no tick of a broker with thousands of partitions waits.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

import quivermq
from quivermq.cluster import node_of
from quivermq.node import Broker, Gateway, Histogram, Host, HostedReplica
from quivermq.raft import Role

logger = logging.getLogger("quivermq.metrics")

STOPPED: Final = 0
LEARNER: Final = 1
FOLLOWER: Final = 2
CANDIDATE: Final = 3
LEADER: Final = 4

_ROLES: Final = {
    None: STOPPED,
    Role.FOLLOWER: FOLLOWER,
    Role.PRE_CANDIDATE: CANDIDATE,
    Role.CANDIDATE: CANDIDATE,
    Role.LEADER: LEADER,
}

_SAMPLES_AT_ONCE: Final = 250
_BEHIND: Final = 1_000
"""A replica that lacks more entries than this is no copy to rely on."""
_DISK_S: Final = 0.2
"""A disk that does not tell its space by then is slow; the rest is told without it."""

Labels = dict[str, str]
Value = tuple[Labels, float]


class _HostCollector(Collector):
    """The metrics that a broker and a gateway have."""

    def __init__(self, host: Host, http_connections: Callable[[], int]) -> None:
        self._host = host
        self._http_connections = http_connections
        self._node = {"node": str(host.node_id)}

    def collect(self) -> Iterator[Metric]:
        yield from self._doors()
        yield from self._whole_host()

    def _doors(self) -> Iterator[Metric]:
        counters = self._host.counters
        connections = {
            "tcp": counters.connections,
            "http": self._http_connections(),
            "grpc": len(counters.doors["grpc"].peers),
        }
        yield _gauge(
            "quiver_connections",
            "Clients that are connected; by gRPC, those with an open call.",
            [({**self._node, "transport": door}, n) for door, n in connections.items()],
        )
        yield _counter(
            "quiver_requests",
            "Requests of clients, and of brokers in their place.",
            [
                ({**self._node, "transport": door}, passed.requests)
                for door, passed in counters.doors.items()
            ],
        )
        yield _counter(
            "quiver_refused",
            "Requests and connections that were answered with an error.",
            [
                ({**self._node, "code": code, "transport": door}, count)
                for door, passed in counters.doors.items()
                for code, count in passed.refused.items()
            ],
        )

    def _whole_host(self) -> Iterator[Metric]:
        counters = self._host.counters
        for name, text, count in (
            (
                "quiver_forwarded",
                "Requests passed on to the broker that leads.",
                counters.forwarded,
            ),
            (
                "quiver_overloaded",
                "Requests refused because a limit was reached.",
                counters.overloaded,
            ),
        ):
            yield _counter(name, text, [(self._node, count)])
        yield _counter(
            "quiver_loop_stalls",
            "Times that the event loop was held for longer than `stall_budget_ms`.",
            [(self._node, counters.stalls.count)],
        )
        yield self._plain_gauge(
            "quiver_loop_stall_seconds_max",
            "The longest of those.",
            counters.stalls.seconds_max,
        )
        yield self._plain_gauge(
            "quiver_ready", "1 if this process can be sent work.", self._host.is_ready
        )
        build = InfoMetricFamily("quiver_build", "The release that runs.", labels=list(self._node))
        build.add_metric(list(self._node.values()), {"version": quivermq.__version__})
        yield build

    def _plain_gauge(self, name: str, text: str, value: float) -> Metric:
        return _gauge(name, text, [(self._node, value)])


class GatewayCollector(_HostCollector):
    """All metrics of one gateway."""

    def __init__(self, gateway: Gateway, http_connections: Callable[[], int]) -> None:
        super().__init__(gateway, http_connections)
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        yield from self._doors()
        yield from self._whole_host()
        yield self._plain_gauge(
            "quiver_gateway_open_requests",
            "Requests of this gateway that brokers have not answered.",
            self._gateway.open_requests,
        )


class BrokerCollector(_HostCollector):
    """All metrics of one broker; its families are made one by one, as they are asked for."""

    def __init__(
        self, broker: Broker, http_connections: Callable[[], int], space: "DiskSpace"
    ) -> None:
        super().__init__(broker, http_connections)
        self._broker = broker
        self._space = space

    def collect(self) -> Iterator[Metric]:
        yield from self._traffic()
        yield from self._groups_of_consumers()
        yield from self._durations()
        yield from self._consensus()
        yield from self._partitions()
        yield from self._peers()
        yield from self._doors()
        yield from self._whole_host()
        yield from self._machine()

    def _traffic(self) -> Iterator[Metric]:
        for name, text, attribute in (
            ("quiver_messages_produced", "Messages stored here as leader.", "messages_in"),
            ("quiver_messages_delivered", "Messages given to readers.", "messages_out"),
            ("quiver_bytes_in", "Bytes of the batches stored here as leader.", "bytes_in"),
            ("quiver_bytes_out", "Bytes of the batches given to readers.", "bytes_out"),
        ):
            traffic = self._broker.counters.traffic
            values = [
                (self._partition(topic, partition), getattr(passed, attribute))
                for (topic, partition), passed in traffic.items()
            ]
            yield _counter(name, text, values)

    def _groups_of_consumers(self) -> Iterator[Metric]:
        for name, text, attribute in (
            ("quiver_messages_acked", "Messages that a group is done with.", "acked"),
            (
                "quiver_messages_redelivered",
                "Messages given to consumers after a failure.",
                "redelivered",
            ),
            (
                "quiver_messages_dead_lettered",
                "Messages moved to the dead-letter topic.",
                "dead_lettered",
            ),
        ):
            shares = self._broker.counters.shares
            yield _counter(
                name,
                text,
                [
                    ({**self._partition(topic, partition), "group": group}, getattr(n, attribute))
                    for (topic, partition, group), n in shares.items()
                ],
            )
        standings = [
            ({**self._labels(dispatcher.hosted), "group": standing.group}, standing)
            for dispatcher in self._broker.consumers.dispatchers
            for standing in dispatcher.group_progress()
        ]
        yield _gauge(
            "quiver_group_lag",
            "Messages that a group is not done with.",
            [(labels, standing.lag) for labels, standing in standings],
        )
        yield _gauge(
            "quiver_group_in_flight",
            "Messages that are leased to consumers of a group.",
            [(labels, standing.in_flight) for labels, standing in standings],
        )

    def _durations(self) -> Iterator[Metric]:
        counters = self._broker.counters
        for name, text, durations in (
            (
                "quiver_produce_seconds",
                "From a produce request that came in to its answer.",
                counters.produce_seconds,
            ),
            ("quiver_fsync_seconds", "One fsync of a file of the log.", counters.fsync_seconds),
            (
                "quiver_event_loop_lag_seconds",
                "How late the broker's ticks come.",
                self._broker.scheduler.lateness,
            ),
        ):
            yield self._histogram(name, text, durations)

    def _histogram(self, name: str, text: str, durations: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=list(self._node))
        family.add_metric(
            list(self._node.values()), buckets=durations.cumulative(), sum_value=durations.total
        )
        return family

    def _consensus(self) -> Iterator[Metric]:
        yield _gauge(
            "quiver_raft_state",
            "0 stopped or mending its log, 1 learner, 2 follower, 3 candidate, 4 leader.",
            self._of_replicas(_state),
        )
        yield _gauge(
            "quiver_raft_term",
            "The term of the group, as this replica knows it.",
            self._of_replicas(lambda hosted: hosted.replica.term),
        )
        yield _gauge(
            "quiver_raft_commit_index",
            "The last entry that this replica knows to be committed.",
            self._of_replicas(lambda hosted: hosted.replica.commit_index),
        )
        yield _gauge(
            "quiver_raft_replication_lag",
            "Entries that a member lacks, as its leader knows.",
            [
                ({**self._labels(hosted), "member": str(node_of(member))}, _lag(hosted, member))
                for hosted in self._replicas()
                if hosted.replica.is_leader
                for member in hosted.replica.configuration.members
                if member != hosted.member
            ],
        )

    def _partitions(self) -> Iterator[Metric]:
        yield _gauge(
            "quiver_log_size_bytes",
            "What the entries of a log take on disk.",
            self._of_replicas(lambda hosted: hosted.log.size_bytes),
        )
        replicas = self._replicas()
        for name, text, count in (
            ("quiver_partitions", "Replicas on this broker.", len(replicas)),
            (
                "quiver_partitions_led",
                "Replicas that lead.",
                sum(hosted.was_serving for hosted in replicas),
            ),
            (
                "quiver_partitions_under_replicated",
                "Partitions led here of which a replica is out of reach, or far behind.",
                sum(self._is_under_replicated(hosted) for hosted in replicas),
            ),
            (
                "quiver_partitions_asleep",
                "Replicas whose groups are idle and cost nothing.",
                sum(hosted.replica.is_asleep for hosted in replicas),
            ),
            (
                "quiver_partitions_in_trouble",
                "Replicas that do not run, or mend their log.",
                sum(bool(hosted.trouble) or hosted.replica.is_repairing for hosted in replicas)
                + len(self._broker.hosting.lost),
            ),
        ):
            yield self._plain_gauge(name, text, count)

    def _peers(self) -> Iterator[Metric]:
        broker = self._broker
        peers = [
            ({**self._node, "peer": str(node)}, peer) for node, peer in broker.links.peers.items()
        ]
        yield _gauge(
            "quiver_peer_alive",
            "1 if the other broker was heard lately and neither refuses the other.",
            [(labels, broker.is_alive(peer.node)) for labels, peer in peers],
        )
        yield _counter(
            "quiver_peer_letters_dropped",
            "Letters to the other broker that found no link, or no room in it; all are sent again.",
            [(labels, sum(link.dropped for link in peer.lanes.values())) for labels, peer in peers],
        )
        yield self._plain_gauge(
            "quiver_clock_difference_seconds",
            "How far this machine's clock is ahead of the one that most brokers agree on.",
            broker.scheduler.clock.difference_ms / 1000,
        )

    def _is_under_replicated(self, hosted: HostedReplica) -> bool:
        return hosted.replica.is_leader and any(
            not self._broker.is_alive(node_of(member)) or _lag(hosted, member) > _BEHIND
            for member in hosted.replica.configuration.members
            if member != hosted.member
        )

    def _machine(self) -> Iterator[Metric]:
        counters, space, tls = self._broker.counters, self._space.last, self._broker.tls
        for name, text, value in (
            ("quiver_disk_size_bytes", "The size of the data directory's disk.", space[0]),
            ("quiver_disk_free_bytes", "What is free there.", space[1]),
        ):
            yield _gauge(name, text, [(self._node, value)] if space[0] else [])
        yield _counter(
            "quiver_polls_throttled",
            "Polls that got nothing because of the topic's rate limit.",
            [
                ({**self._node, "topic": topic}, count)
                for topic, count in counters.throttled.items()
            ],
        )
        yield _gauge(
            "quiver_certificate_expiry_timestamp_seconds",
            "When the broker's certificate expires, in seconds since 1970.",
            [(self._node, tls.expires_s)] if tls is not None else [],
        )

    def _replicas(self) -> list[HostedReplica]:
        return list(self._broker.scheduler.replicas.values())

    def _labels(self, hosted: HostedReplica) -> Labels:
        return self._partition(hosted.name.topic, hosted.name.partition)

    def _partition(self, topic: str, partition: int) -> Labels:
        return {**self._node, "partition": str(partition), "topic": topic}

    def _of_replicas(self, value: Callable[[HostedReplica], float]) -> list[Value]:
        return [(self._labels(hosted), value(hosted)) for hosted in self._replicas()]


def _gauge(name: str, text: str, values: Iterable[Value]) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.samples = [Sample(name, labels, value) for labels, value in values]
    return family


def _counter(name: str, text: str, values: Iterable[Value]) -> Metric:
    family = CounterMetricFamily(name, text)
    family.samples = [Sample(f"{name}_total", labels, value) for labels, value in values]
    return family


def _state(hosted: HostedReplica) -> int:
    if hosted.trouble:
        return STOPPED
    state = _ROLES[hosted.replica.role]
    if state == FOLLOWER and hosted.member in hosted.replica.configuration.learners:
        return LEARNER
    return state


def _lag(hosted: HostedReplica, member: int) -> int:
    """A member that was never heard of may lack everything."""
    lag = hosted.replica.lag_of(member)
    return hosted.log.edge.next_index - 1 if lag is None else lag


class _One:
    """A registry of one family, for `generate_latest`."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]


def _texts(family: Metric) -> Iterator[bytes]:
    """A family as text, in parts that take a few milliseconds each."""
    samples = family.samples
    family.samples = samples[:_SAMPLES_AT_ONCE]
    yield generate_latest(_One(family))
    for start in range(_SAMPLES_AT_ONCE, len(samples), _SAMPLES_AT_ONCE):
        family.samples = samples[start : start + _SAMPLES_AT_ONCE]
        # Help and type are said once.
        yield generate_latest(_One(family)).split(b"\n", 2)[2]


class DiskSpace:
    """Size and free space of a folder's disk, asked for in a thread: a disk may not answer."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._asking: asyncio.Task[None] | None = None
        self.last = (0, 0)
        """As it was told last; 0 is unknown."""

    async def look(self) -> None:
        """Ask again, unless the last question is still open; wait a moment for the answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        await asyncio.wait([self._asking], timeout=_DISK_S)

    async def _ask(self) -> None:
        try:
            found = await asyncio.to_thread(shutil.disk_usage, self._folder)
            self.last = (found.total, found.free)
        except OSError as error:
            self.last = (0, 0)
            logger.debug("the space on disk is not known: %s", error)


def _collector_of(host: Host, http_connections: Callable[[], int], space: DiskSpace) -> Collector:
    if isinstance(host, Broker):
        return BrokerCollector(host, http_connections, space)
    if isinstance(host, Gateway):
        return GatewayCollector(host, http_connections)
    return _HostCollector(host, http_connections)


class Metrics:
    """A registry of its own for one broker: nothing global, so that many may share a process."""

    def __init__(self, host: Host, http_connections: Callable[[], int]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._space = DiskSpace(host.settings.data_dir)
        self.registry.register(_collector_of(host, http_connections, self._space))
        ProcessCollector(registry=self.registry)
        self._scraping = asyncio.Lock()

    async def text(self) -> bytes:
        """All metrics in the text format of Prometheus; other work on the loop goes on."""
        parts = []
        # One at a time: many scrapes at once must not follow each other without a breath.
        async with self._scraping:
            await self._space.look()
            for family in self.registry.collect():
                for text in _texts(family):
                    parts.append(text)
                    await asyncio.sleep(0)
        return b"".join(parts)
