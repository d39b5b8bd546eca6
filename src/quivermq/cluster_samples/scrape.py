"""Reads the metrics of brokers over HTTP, and keeps the figures that people are shown."""

import asyncio
import http.client
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from quivermq.addresses import split_address
from quivermq.client import ClusterInfo

_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_BODY_BYTES_MAX: Final = 256 << 20
_PLACES_MAX: Final = 200_000
LEADER: Final = 4
STATES: Final = {0: "stopped", 1: "learner", 2: "follower", 3: "candidate", LEADER: "leader"}

TopicPartition = tuple[str, int]
TopicGroup = tuple[str, str]


@dataclass(slots=True)
class Scrape:
    """The figures of one broker at one time."""

    node: int
    at: float = 0.0
    plain: dict[str, float] = field(default_factory=dict)
    """Metrics of the whole broker, by name; of several series the sum."""
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    """Histograms by name: how many took at most so many seconds."""
    partitions: dict[str, dict[TopicPartition, float]] = field(default_factory=dict)
    groups: dict[str, dict[TopicGroup, float]] = field(default_factory=dict)
    """By name, summed over the partitions that this broker leads."""
    followers: dict[tuple[str, int, int], float] = field(default_factory=dict)
    """Entries that the replica on a node lacks, as this leader knows."""

    @property
    def started(self) -> float:
        """When the process started: with another one, counters begin at 0."""
        return self.plain.get("process_start_time_seconds", 0.0)

    def state_of(self, place: TopicPartition) -> str:
        """The Raft state of a replica; empty: it is not here."""
        state = self.partitions.get("quiver_raft_state", {}).get(place)
        return "" if state is None else STATES.get(int(state), "?")


async def scrape_brokers(
    cluster: ClusterInfo, token: str, tls: ssl.SSLContext | None, seconds: float
) -> dict[int, Scrape]:
    """Ask all brokers that run, at the same time, for so long; those that do not answer are not in
    the result."""
    asked = [node for node in cluster.nodes if node.alive and node.http_address]
    answers = await asyncio.gather(
        *(
            asyncio.to_thread(fetch, node.http_address, node.id, token, tls, seconds)
            for node in asked
        ),
        return_exceptions=True,
    )
    found = {}
    for node, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Scrape):
            found[node.id] = answer
        elif not isinstance(answer, OSError | http.client.HTTPException):
            raise answer
    return found


def fetch(
    address: str, node: int, token: str, tls: ssl.SSLContext | None, timeout: float
) -> Scrape:
    """Ask the broker at this HTTP address. Raises `OSError` or `HTTPException`."""
    host, port = split_address(address)
    connection: http.client.HTTPConnection
    if tls is None:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=tls)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        text = answer.read(_BODY_BYTES_MAX).decode("utf-8", "replace")
        if answer.status != 200:
            raise http.client.HTTPException(f"{address} answers {answer.status}")
    finally:
        connection.close()
    return parse(text, node)


def parse(text: str, node: int) -> Scrape:
    """The figures in an answer of `/metrics`."""
    found = Scrape(node, time.time())
    for line in text.splitlines():
        if not line.startswith(("quiver_", "process_")):
            continue
        head, _, value = line.rpartition(" ")
        name, _, labels = head.partition("{")
        try:
            # Nearly all lines are of partitions, which have the same labels every time.
            where, key = _place_of(labels)
            if where == "partitions":
                found.partitions.setdefault(name, {})[key] = float(value)
            else:
                _take(found, where, name, key, float(value))
        except ValueError:
            continue
    return found


@lru_cache(maxsize=_PLACES_MAX)
def _place_of(text: str) -> tuple[str, Any]:
    """The field of a `Scrape` in which a value with these labels belongs, and its key there."""
    labels = dict(_LABEL.findall(text))
    if "le" in labels:
        return "buckets", float(labels["le"])
    if "group" in labels:
        return "groups", (labels["topic"], labels["group"])
    if "member" in labels:
        return "followers", (labels["topic"], int(labels["partition"]), int(labels["member"]))
    if "partition" in labels:
        return "partitions", (labels["topic"], int(labels["partition"]))
    return "plain", None


def _take(found: Scrape, where: str, name: str, key: Any, value: float) -> None:
    match where:
        case "followers":
            found.followers[key] = value
        case "buckets":
            buckets = found.buckets.setdefault(name.removesuffix("_bucket"), {})
            buckets[key] = buckets.get(key, 0.0) + value
        case "groups":
            groups = found.groups.setdefault(name, {})
            groups[key] = groups.get(key, 0.0) + value
        case _:
            found.plain[name] = found.plain.get(name, 0.0) + value


def quantile(share: float, before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """The seconds within which this share of what happened between two scrapes was done; 0 if
    nothing happened."""
    counts = {limit: count - before.get(limit, 0.0) for limit, count in sorted(after.items())}
    total = max(counts.values(), default=0.0)
    if total <= 0:
        return 0.0
    wanted, low, below = share * total, 0.0, 0.0
    for limit, count in counts.items():
        if count >= wanted:
            if limit == float("inf"):
                return low
            within = (wanted - below) / (count - below) if count > below else 1.0
            return low + (limit - low) * within
        low, below = limit, count
    return low
