"""Notices of troubles, in words, each with a link to the page that shows the trouble."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from quivermq.client import ClusterInfo, TopicInfo
from quivermq.cluster_findings import (
    CheckResult,
    Level,
    brokers_down,
    check_brokers,
    check_spread,
    check_topics,
)
from quivermq.cluster_samples import Scrape
from quivermq.portal.truth import Tally
from quivermq.quantities import count, format_size

_FREE_SHARE: Final = 0.1
_EXPIRY_SECONDS: Final = 14 * 86_400
_LISTED: Final = 5
_ORDER: Final[Mapping[Level, int]] = {"bad": 0, "warn": 1, "ok": 2}


@dataclass(frozen=True, slots=True)
class Notice:
    """One finding."""

    level: Level
    text: str
    advice: str = ""
    link: str = ""
    topics: frozenset[str] = frozenset()
    """Of which it tells: for those who may see all of them."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group over the last minutes."""

    topic: str
    group: str
    lag: float
    in_flight: float
    acked: float
    """Since the first of these samples."""
    dead: float
    grown: float
    waiting: float | None = None
    """To be delivered now, if that was counted."""

    @property
    def is_idle(self) -> bool:
        """Messages wait, and nobody takes them."""
        waits = self.lag if self.waiting is None else self.waiting
        return bool(waits) and not self.in_flight and not self.acked


def notices(
    cluster: ClusterInfo,
    topics: Sequence[TopicInfo] | None,
    scrapes: Mapping[int, Scrape],
    tallies: Iterable[Tally],
    groups: Iterable[GroupProgress],
    now: float,
) -> list[Notice]:
    """Everything that is not as it should be, the worst first."""
    found = [
        *_cluster(cluster, topics),
        *_machines(scrapes, now),
        *_truth(tallies),
        *_groups(list(groups)),
    ]
    return sorted(found, key=lambda each: _ORDER[each.level])


def _cluster(cluster: ClusterInfo, topics: Sequence[TopicInfo] | None) -> Iterator[Notice]:
    if not cluster.leader:
        yield Notice(
            "bad",
            "The cluster has no leader: topics cannot be changed.",
            "Most brokers must run, and reach each other.",
            "/cluster",
        )
    for check in check_brokers(cluster):
        yield from _notice(check)
    every = frozenset(topic.name for topic in topics or ())
    for check in check_topics(topics or (), brokers_down(cluster)):
        yield from _notice(check, every)
    for check in check_spread(cluster, topics or ()):
        yield from _notice(check, every)


def _notice(check: CheckResult, topics: frozenset[str] = frozenset()) -> Iterator[Notice]:
    if check.level != "ok":
        text, advice = _sentence(check.text), _sentence(check.advice)
        yield Notice(check.level, text, advice, "/cluster", topics)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _machines(scrapes: Mapping[int, Scrape], now: float) -> Iterator[Notice]:
    for node, scrape in sorted(scrapes.items()):
        size = scrape.plain.get("quiver_disk_size_bytes", 0.0)
        free = scrape.plain.get("quiver_disk_free_bytes", 0.0)
        if size and free < _FREE_SHARE * size:
            yield Notice(
                "warn",
                f"The disk of broker {node} has {format_size(int(free))} of "
                f"{format_size(int(size))} left.",
                "Keep less by retention, or give it more space.",
                "/cluster",
            )
        if scrape.plain.get("quiver_partitions_in_trouble"):
            yield Notice(
                "bad",
                f"Broker {node} has replicas that do not run or repair their log.",
                "Its log says why; quiver verify lists damage.",
                "/cluster",
            )
        expiry = scrape.plain.get("quiver_certificate_expiry_timestamp_seconds", 0.0)
        if expiry and expiry - now < _EXPIRY_SECONDS:
            days = max(0, int((expiry - now) / 86_400))
            yield Notice(
                "warn",
                f"The certificate of broker {node} expires in {count(days, 'day')}.",
                "Replace its files; brokers load them while they run.",
                "/cluster",
            )


def _truth(tallies: Iterable[Tally]) -> Iterator[Notice]:
    for tally in tallies:
        if tally.state == "wrong":
            yield Notice(
                "bad",
                f"{tally.topic} does not add up: {'; '.join(tally.faults)}.",
                "Keep the brokers' logs and data, and look at quiver doctor.",
                f"/topics/{quote(tally.topic, safe='')}",
                frozenset({tally.topic}),
            )


def _groups(groups: list[GroupProgress]) -> Iterator[Notice]:
    idle = [each for each in groups if each.is_idle]
    for each in sorted(idle, key=lambda one: -one.lag)[:_LISTED]:
        yield Notice(
            "warn",
            f"Nobody works for group {each.group} of {each.topic}: "
            f"{count(int(each.lag), 'message')} {'waits' if each.lag == 1 else 'wait'}.",
            "Start its consumers, or delete the group if it is not needed.",
            _group_link(each),
            frozenset({each.topic}),
        )
    late = [each for each in groups if each.grown > 0 and each.acked and each.lag > each.acked]
    for each in sorted(late, key=lambda one: -one.grown)[:_LISTED]:
        yield Notice(
            "warn",
            f"Group {each.group} of {each.topic} falls behind: {int(each.lag):,} messages left, "
            f"{int(each.grown):,} more than five minutes ago.",
            "More consumers share the work of a shared group.",
            _group_link(each),
            frozenset({each.topic}),
        )
    for each in [each for each in groups if each.dead][:_LISTED]:
        yield Notice(
            "warn",
            f"{count(int(each.dead), 'message')} of {each.topic} became dead letters of group "
            f"{each.group} within five minutes.",
            "Look at the reasons, then redrive or purge them.",
            f"/topics/{quote(each.topic, safe='')}/dead-letters",
            frozenset({each.topic}),
        )


def _group_link(each: GroupProgress) -> str:
    return f"/topics/{quote(each.topic, safe='')}/groups/{quote(each.group, safe='')}"
