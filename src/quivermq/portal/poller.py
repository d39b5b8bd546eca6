"""Takes samples of a cluster for all pages together: one poller a portal, not one a page."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from quivermq.aio import AsyncClient
from quivermq.client import TopicInfo
from quivermq.cluster_findings import settled
from quivermq.cluster_samples import (
    GroupFigures,
    Scrape,
    TopicFigures,
    TopicGroup,
    cluster_values,
    group_figures,
    scrape_brokers,
    topic_figures,
)
from quivermq.errors import QuiverError, TopicNotFound
from quivermq.portal.access import Access
from quivermq.portal.attention import GroupProgress, notices
from quivermq.portal.cluster_sample import ClusterSample
from quivermq.portal.history import History
from quivermq.portal.server import PortalSettings
from quivermq.portal.truth import Boots, TruthMeter
from quivermq.tls import client_context

logger = logging.getLogger("quivermq.portal")

_SHARE: Final = 5
"""A round that takes long is followed by a pause of so many times its length."""
_TRUTH_TOPICS: Final = 8
_DESCRIBED_TOPICS: Final = 300
"""Of more topics, not each partition is looked at: brokers' own figures tell of trouble."""
_DESCRIBE_ROUNDS: Final = 5
_GROUPS_SECONDS: Final = 300.0
_GROUP_SAMPLES_SECONDS: Final = 20.0


class ClusterPoller:
    """Asks the brokers again and again; pages read `snapshot`, `history` and `truth`."""

    def __init__(self, access: Access, settings: PortalSettings) -> None:
        self._access = access
        self._settings = settings
        self._tls = client_context(settings.tls)
        self.snapshot = ClusterSample()
        self.history = History(settings.interval)
        self.truth = TruthMeter()
        self.trouble = ""
        """Why there is no newer sample; empty: there is."""
        self._rounds = 0
        self._took = 0.0
        self._described: list[TopicInfo] | None = None
        """As they were described last; None: there are too many."""
        self._settled: list[TopicInfo] | None = None
        self._due: deque[str] = deque()
        self._counted: dict[str, float] = {}
        self._group_samples: deque[tuple[float, dict[TopicGroup, GroupFigures]]] = deque()

    def settled(self, topic: TopicInfo) -> TopicInfo:
        """The topic, with the replicas in sync that were so now or a few seconds ago."""
        return settled([each for each in self._described or [] if each.id == topic.id], [topic])[0]

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            began, pause = time.monotonic(), self._settings.interval
            try:
                await self.sample()
                self.trouble = ""
                took = time.monotonic() - began
                # One that waited for brokers to come back says nothing of the next.
                pause = max(self._settings.interval - took, _SHARE * min(took, self._took))
                self._took = took
            except QuiverError as error:
                self.trouble = str(error) or error.code
            except Exception:
                # A figure of another release must not end the portal.
                logger.exception("a sample failed")
                self.trouble = "the portal could not read the brokers' figures; its log says why"
            await asyncio.sleep(pause)

    async def sample(self) -> None:
        """Take one sample."""
        client, cluster = await self._access.sampler()
        scrapes = await scrape_brokers(
            cluster, self._access.sampling_token, self._tls, self._settings.timeout
        )
        before, now = self.snapshot, time.time()
        # Aside: with ten thousand topics it takes a while, and pages are not to wait for it.
        topics, groups, values = await asyncio.to_thread(_figures, scrapes, before.scrapes)
        # At once: what is stored is compared with what was counted.
        await self._observe(client, topics, scrapes)
        if self._rounds % _DESCRIBE_ROUNDS == 0:
            described = await self._describe(client)
            self._settled = described and settled(self._described or [], described)
            self._described = described
        self._rounds += 1
        if before.at:
            self.history.add(now, {**values, **_series(topics, groups, self.history.names)})
        self._keep_groups(now, groups)
        found = notices(
            cluster,
            self._settled,
            scrapes,
            self.truth.tallies.values(),
            self._progress(groups),
            now,
        )
        self.snapshot = ClusterSample(now, cluster, scrapes, topics, groups, values, found)

    async def _describe(self, client: AsyncClient) -> list[TopicInfo] | None:
        names = await client.topic_names()
        self.truth.forget(set(names))
        if len(names) > _DESCRIBED_TOPICS:
            return None
        try:
            return await client.topics(names)
        except TopicNotFound:  # deleted meanwhile
            return self._described

    async def _observe(
        self, client: AsyncClient, topics: Mapping[str, TopicFigures], scrapes: Mapping[int, Scrape]
    ) -> None:
        """Count a few topics: those that were in use since the last time, in turn."""
        boots: Boots = frozenset((node, scrape.started) for node, scrape in scrapes.items())
        self._queue(topics)
        names = [self._due.popleft() for _ in range(min(_TRUTH_TOPICS, len(self._due)))]

        async def observe(name: str) -> None:
            try:
                topic = await client.topic(name)
                groups = await client.groups(name)
            except QuiverError:
                self._counted.pop(name, None)
                return
            if all(each.end_offset is not None for each in topic.partitions):
                figures = topics.get(name)
                counters = figures.produced if figures else {}
                if self.truth.observe(topic, groups, counters, boots).faults:
                    self._due.appendleft(name)

        await asyncio.gather(*map(observe, names))

    def _queue(self, topics: Mapping[str, TopicFigures]) -> None:
        waiting = set(self._due)
        for name, figures in topics.items():
            counted = sum(figures.produced.values()) + figures.rates.get("out", 0.0)
            is_new = name not in self.truth.tallies
            if name.startswith("_") or name in waiting:
                continue
            if is_new or counted != self._counted.get(name):
                self._counted[name] = counted
                self._due.append(name)
        # Quiet topics have their turn too: what they hold must not change by itself.
        if not self._due and self.truth.tallies:
            known = sorted(self.truth.tallies)
            self._due.append(known[self._rounds % len(known)])
        while len(self._due) > _DESCRIBED_TOPICS:
            self._due.pop()

    def _keep_groups(self, now: float, groups: dict[TopicGroup, GroupFigures]) -> None:
        kept = self._group_samples
        if not kept or now - kept[-1][0] >= _GROUP_SAMPLES_SECONDS:
            kept.append((now, groups))
        while kept and now - kept[0][0] > _GROUPS_SECONDS:
            kept.popleft()

    def _progress(self, groups: Mapping[TopicGroup, GroupFigures]) -> Iterable[GroupProgress]:
        first = self._group_samples[0][1] if self._group_samples else {}
        for (topic, group), figures in groups.items():
            before = first.get((topic, group))
            if before is None or group.startswith("_"):
                continue
            tally = self.truth.tallies.get(topic)
            counted = [each.waiting for each in tally.groups if each.name == group] if tally else []
            yield GroupProgress(
                topic,
                group,
                figures.lag,
                figures.in_flight,
                max(0.0, figures.acked - before.acked),
                max(0.0, figures.dead - before.dead),
                figures.lag - before.lag,
                counted[0] if counted else None,
            )


def _figures(
    scrapes: Mapping[int, Scrape], before: Mapping[int, Scrape]
) -> tuple[dict[str, TopicFigures], dict[TopicGroup, GroupFigures], dict[str, float]]:
    topics, groups = topic_figures(scrapes, before), group_figures(scrapes, before)
    return topics, groups, cluster_values(scrapes, before, topics, groups)


def _series(
    topics: Mapping[str, TopicFigures],
    groups: Mapping[TopicGroup, GroupFigures],
    kept: Iterable[str],
) -> dict[str, float]:
    """The values of groups, and of topics that are not idle, or were not a while ago."""
    found: dict[str, float] = {}
    were_busy = {name.split("@")[1] for name in kept if "@" in name}
    for topic, figures in topics.items():
        if topic in were_busy or any(figures.rates.values()):
            for name, rate in figures.rates.items():
                found[f"{name}@{topic}"] = rate
    for (topic, group), counted in groups.items():
        found[f"lag@{topic}@{group}"] = counted.lag
        found[f"acked@{topic}@{group}"] = counted.acked_rate
    return found
