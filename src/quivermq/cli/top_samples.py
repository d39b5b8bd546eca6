"""Takes the samples that `quiver top` shows: rows of topics, groups and brokers.

Rates come from brokers' metrics. Where none can be reached, as behind a gateway, the client alone
tells of topics and groups: their rates are then those of offsets.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from quivermq.cluster_findings import (
    CheckResult,
    brokers_down,
    check_brokers,
    check_topics,
    partition_problems,
    settled,
)
from quivermq.cluster_samples import (
    LEADER,
    TOPIC_RATES,
    GroupFigures,
    Scrape,
    TopicGroup,
    comparable,
    group_figures,
    quantile,
    scrape_brokers,
    topic_figures,
)
from quivermq.errors import QuiverError, TopicNotFound

if TYPE_CHECKING:
    from quivermq.client import AsyncClient, ClusterInfo, ConnectOptions, NodeInfo, TopicInfo

DESCRIBED_TOPICS: Final = 300
"""Of more topics, brokers are not asked for each partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic. None: not known. Rates are those since the sample before."""

    name: str
    partitions: int
    in_rate: float | None = None
    out_rate: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    messages: int | None = None
    size: int | None = None
    lag: int = 0
    """Of all groups together."""
    in_flight: int = 0
    leaders: tuple[int, ...] = ()
    health: str = ""
    """`ok`, or the worst problem in a few words; empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group of a topic."""

    name: str
    topic: str
    lag: int = 0
    """Not done: waiting, in flight or delayed."""
    change: float | None = None
    """Of the lag, a second."""
    acked_rate: float | None = None
    in_flight: int = 0
    dead: int = 0
    """Dead letters since brokers started."""
    state: str = ""
    """`working`, `done`, or `nobody works` if messages wait and none is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """A broker. What its metrics tell is None if they cannot be read."""

    id: int
    address: str
    state: str
    leads: int
    replicas: int
    version: str = ""
    in_rate: float | None = None
    out_rate: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    connections: int | None = None
    cpu: float | None = None
    """Of one processor: 1.0 is all of it."""
    memory: int | None = None
    disk_free: int | None = None
    fsync: float | None = None
    """Seconds within which 99 of 100 fsyncs were done since the sample before."""

    @property
    def name(self) -> str:
        return str(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSample:
    """One look at the cluster."""

    at: float
    cluster: "ClusterInfo"
    topics: Sequence[TopicRow] = ()
    groups: Sequence[GroupRow] = ()
    brokers: Sequence[BrokerRow] = ()
    findings: Sequence[CheckResult] = ()
    """Faults of the cluster, in words."""


@dataclass(slots=True)
class _Look:
    """One sample of the cluster; rates come from two of them."""

    at: float
    cluster: "ClusterInfo"
    names: list[str] = field(default_factory=list)
    """Of the topics that the user may see."""
    scrapes: dict[int, Scrape] = field(default_factory=dict)
    topics: "dict[str, TopicInfo]" = field(default_factory=dict)
    groups: dict[TopicGroup, GroupFigures] = field(default_factory=dict)

    def end_of(self, topic: str) -> int | None:
        info = self.topics.get(topic)
        return sum(each.end_offset or 0 for each in info.partitions) if info else None


class Sampler:
    """Takes one sample after another, of topics that the client's user may see."""

    def __init__(self, client: "AsyncClient", options: "ConnectOptions") -> None:
        self._client = client
        self._options = options
        self._last: _Look | None = None

    async def sample(self) -> TopSample:
        """Ask the brokers. Raises a `QuiverError` if none of them answers."""
        last, look = self._last, await self._look()
        down = brokers_down(look.cluster)
        calm = settled(list(last.topics.values()) if last else [], list(look.topics.values()))
        findings = [*check_brokers(look.cluster), *check_topics(calm, down)]
        sample = TopSample(
            at=look.at,
            cluster=look.cluster,
            topics=_topic_rows(look, last, {topic.name: topic for topic in calm}, down),
            groups=_group_rows(look, last),
            brokers=[_broker_row(node, look, last) for node in look.cluster.nodes],
            findings=[each for each in findings if each.level != "ok"],
        )
        self._last = look
        return sample

    async def _look(self) -> _Look:
        client, options, last = self._client, self._options, self._last
        cluster = await client.cluster()
        scrapes = await scrape_brokers(cluster, options.token or "", options.tls, options.timeout)
        names = await client.topic_names()
        look = _Look(time.time(), cluster, names, scrapes)
        if len(names) <= DESCRIBED_TOPICS:
            try:
                look.topics = {topic.name: topic for topic in await client.topics(names)}
            except TopicNotFound:  # one was deleted meanwhile
                look.topics = last.topics if last else {}
        if scrapes:
            found = group_figures(scrapes, last.scrapes if last else {})
            look.groups = {place: each for place, each in found.items() if place[0] in set(names)}
        else:
            look.groups = await self._ask_for_groups(look)
        return look

    async def _ask_for_groups(self, look: _Look) -> dict[TopicGroup, GroupFigures]:
        found, last = {}, self._last
        for topic in look.topics:
            try:
                groups = await self._client.groups(topic)
            except QuiverError:  # deleted meanwhile, or not for this user
                continue
            for group in groups:
                place = (topic, group.name)
                lag = group.lag + group.in_flight + group.delayed
                figures = GroupFigures(lag, group.in_flight, group.done, group.dead)
                before = last.groups.get(place) if last else None
                if last is not None and before is not None and look.at > last.at:
                    figures.acked_rate = (group.done - before.acked) / (look.at - last.at)
                found[place] = figures
        return found


def _topic_rows(
    look: _Look, last: _Look | None, calm: "Mapping[str, TopicInfo]", down: frozenset[int]
) -> list[TopicRow]:
    figures = topic_figures(look.scrapes, last.scrapes if last else {})
    led = _led(look.scrapes)
    totals: dict[str, GroupFigures] = {}
    for (topic, _), each in look.groups.items():
        total = totals.setdefault(topic, GroupFigures())
        total.lag += each.lag
        total.in_flight += each.in_flight
    rows = []
    for name in look.names:
        info, known, total = calm.get(name), figures.get(name), totals.get(name, GroupFigures())
        rates = known.rates if known else _offset_rates(name, look, last)
        leaders = led.get(name, {})
        if info is not None:
            leaders = {each.partition: each.leader for each in info.partitions}
        rows.append(
            TopicRow(
                name=name,
                partitions=len(leaders),
                in_rate=rates.get("in"),
                out_rate=rates.get("out"),
                bytes_in=rates.get("bytes_in"),
                bytes_out=rates.get("bytes_out"),
                messages=info.message_count if info else None,
                size=info.size_bytes if info else int(known.size) if known else None,
                lag=int(total.lag),
                in_flight=int(total.in_flight),
                leaders=tuple(sorted({each for each in leaders.values() if each})),
                health=_health(info, down) if info else "",
            )
        )
    return rows


def _offset_rates(topic: str, look: _Look, last: _Look | None) -> dict[str, float]:
    """Of a topic that no broker's metrics tell of."""
    end, before = look.end_of(topic), last.end_of(topic) if last else None
    if last is None or end is None or before is None or look.scrapes or look.at <= last.at:
        return {}
    return {"in": max(0, end - before) / (look.at - last.at)}


def _group_rows(look: _Look, last: _Look | None) -> list[GroupRow]:
    rows = []
    for (topic, name), figures in look.groups.items():
        before = last.groups.get((topic, name)) if last else None
        change = None
        if last is not None and before is not None and look.at > last.at:
            change = (figures.lag - before.lag) / (look.at - last.at)
        is_idle = figures.lag and not figures.in_flight and not figures.acked_rate
        rows.append(
            GroupRow(
                name=name,
                topic=topic,
                lag=int(figures.lag),
                change=change,
                acked_rate=None if before is None else figures.acked_rate,
                in_flight=int(figures.in_flight),
                dead=int(figures.dead),
                state="nobody works" if is_idle else "working" if figures.lag else "done",
            )
        )
    return rows


def _led(scrapes: Mapping[int, Scrape]) -> dict[str, dict[int, int]]:
    """The leaders by topic and partition, as the leaders themselves tell."""
    found: dict[str, dict[int, int]] = {}
    for node, scrape in scrapes.items():
        for (topic, partition), state in scrape.partitions.get("quiver_raft_state", {}).items():
            partitions = found.setdefault(topic, {})
            partitions.setdefault(partition, 0)
            if state == LEADER:
                partitions[partition] = node
    return found


def _health(topic: "TopicInfo", down: frozenset[int]) -> str:
    if any(not each.leader for each in topic.partitions):
        return "no leader"
    if any(partition_problems(each, down) for each in topic.partitions):
        return "replicas behind"
    return "ok"


def _broker_row(node: "NodeInfo", look: _Look, last: _Look | None) -> BrokerRow:
    state = node.state or "serving" if node.alive else "down"
    if node.alive and node.id == look.cluster.leader:
        state = "leader" if state == "serving" else f"{state}, leader"
    scrape = look.scrapes.get(node.id)
    before = last.scrapes.get(node.id) if last else None
    rates: dict[str, float] = {}
    if scrape is not None and (earlier := comparable(scrape, before)) is not None:
        rates = _broker_rates(scrape, earlier)
    return BrokerRow(
        id=node.id,
        address=node.address,
        state=state,
        leads=node.leaders,
        replicas=node.replicas,
        version=node.version,
        in_rate=rates.get("in"),
        out_rate=rates.get("out"),
        bytes_in=rates.get("bytes_in"),
        bytes_out=rates.get("bytes_out"),
        connections=_gauge(scrape, "quiver_connections"),
        cpu=rates.get("cpu"),
        memory=_gauge(scrape, "process_resident_memory_bytes"),
        disk_free=_gauge(scrape, "quiver_disk_free_bytes"),
        fsync=rates.get("fsync"),
    )


def _gauge(scrape: Scrape | None, name: str) -> int | None:
    value = scrape.plain.get(name, math.nan) if scrape else math.nan
    return int(value) if math.isfinite(value) else None


def _broker_rates(scrape: Scrape, last: Scrape) -> dict[str, float]:
    seconds = scrape.at - last.at
    rates = {}
    for name, metric in TOPIC_RATES.items():
        now, before = scrape.partitions.get(metric, {}), last.partitions.get(metric, {})
        grown = sum(max(0.0, each - before.get(place, 0.0)) for place, each in now.items())
        rates[name] = grown / seconds
    busy = [each.plain.get("process_cpu_seconds_total", 0.0) for each in (last, scrape)]
    rates["cpu"] = max(0.0, busy[1] - busy[0]) / seconds
    fsyncs = [each.buckets.get("quiver_fsync_seconds", {}) for each in (last, scrape)]
    rates["fsync"] = quantile(0.99, *fsyncs)
    return rates
