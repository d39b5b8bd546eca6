"""Figures of topics, of groups and of the whole cluster, made of two scrapes of each broker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quivermq.cluster_samples.scrape import LEADER, Scrape, TopicGroup, quantile

TOPIC_RATES: Final = {
    "in": "quiver_messages_produced_total",
    "out": "quiver_messages_delivered_total",
    "bytes_in": "quiver_bytes_in_total",
    "bytes_out": "quiver_bytes_out_total",
}
"""The metrics of partitions whose rates are told, by the names of the rates."""


@dataclass(slots=True)
class TopicFigures:
    """A topic over all brokers."""

    rates: dict[str, float] = field(default_factory=dict)
    """A second, since the sample before: in, out, bytes_in, bytes_out."""
    produced: dict[int, float] = field(default_factory=dict)
    """By partition, as brokers count since their start."""
    size: float = 0.0


@dataclass(slots=True)
class GroupFigures:
    """A group over all partitions."""

    lag: float = 0.0
    in_flight: float = 0.0
    acked: float = 0.0
    dead: float = 0.0
    acked_rate: float = 0.0


def topic_figures(
    scrapes: Mapping[int, Scrape], before: Mapping[int, Scrape]
) -> dict[str, TopicFigures]:
    found: dict[str, TopicFigures] = {}
    for node, scrape in scrapes.items():
        last = comparable(scrape, before.get(node))
        states = scrape.partitions.get("quiver_raft_state", {})
        for name, metric in TOPIC_RATES.items():
            earlier = last.partitions.get(metric, {}) if last else {}
            for place, value in scrape.partitions.get(metric, {}).items():
                figures = found.setdefault(place[0], TopicFigures())
                if name == "in":
                    figures.produced[place[1]] = figures.produced.get(place[1], 0.0) + value
                if last:
                    rate = max(0.0, value - earlier.get(place, 0.0)) / (scrape.at - last.at)
                    figures.rates[name] = figures.rates.get(name, 0.0) + rate
        for place, value in scrape.partitions.get("quiver_log_size_bytes", {}).items():
            if states.get(place) == LEADER:
                found.setdefault(place[0], TopicFigures()).size += value
    return found


def group_figures(
    scrapes: Mapping[int, Scrape], before: Mapping[int, Scrape]
) -> dict[TopicGroup, GroupFigures]:
    found: dict[TopicGroup, GroupFigures] = {}
    for node, scrape in scrapes.items():
        last = comparable(scrape, before.get(node))
        for name, metric in (
            ("lag", "quiver_group_lag"),
            ("in_flight", "quiver_group_in_flight"),
            ("acked", "quiver_messages_acked_total"),
            ("dead", "quiver_messages_dead_lettered_total"),
        ):
            for key, value in scrape.groups.get(metric, {}).items():
                figures = found.setdefault(key, GroupFigures())
                setattr(figures, name, getattr(figures, name) + value)
                if name == "acked" and last:
                    earlier = last.groups.get(metric, {}).get(key, 0.0)
                    figures.acked_rate += max(0.0, value - earlier) / (scrape.at - last.at)
    return found


def comparable(scrape: Scrape, before: Scrape | None) -> Scrape | None:
    """The scrape before, unless the broker was started again since."""
    if before is None or before.started != scrape.started or scrape.at <= before.at:
        return None
    return before


def cluster_values(
    scrapes: Mapping[int, Scrape],
    before: Mapping[int, Scrape],
    topics: Mapping[str, TopicFigures],
    groups: Mapping[TopicGroup, GroupFigures],
) -> dict[str, float]:
    values = {
        name: sum(figures.rates.get(name, 0.0) for figures in topics.values())
        for name in TOPIC_RATES
    }
    values["acked"] = sum(figures.acked_rate for figures in groups.values())
    values["lag"] = sum(figures.lag for figures in groups.values())
    values["in_flight"] = sum(figures.in_flight for figures in groups.values())
    values["connections"] = sum(
        scrape.plain.get("quiver_connections", 0.0) for scrape in scrapes.values()
    )
    for name, metric in (("fsync", "quiver_fsync_seconds"), ("produce", "quiver_produce_seconds")):
        found = [0.0]
        for node, scrape in scrapes.items():
            last = comparable(scrape, before.get(node))
            if last is not None:
                earlier = last.buckets.get(metric, {})
                found.append(quantile(0.99, earlier, scrape.buckets.get(metric, {})))
        # The slowest broker: a majority waits for it or for its like.
        values[name] = max(found)
    return values
