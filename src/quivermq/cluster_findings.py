"""Findings about a cluster's health, made of what the client tells: pure, for every tool.

`quiver doctor`, `quiver cluster status`, `quiver top` and the portal say the same of the same
cluster.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import quivermq
from quivermq.quantities import count, numbers

if TYPE_CHECKING:
    from quivermq.client import ClusterInfo, PartitionInfo, TopicInfo

Level = Literal["ok", "warn", "bad"]
LISTED_MAX: Final = 10
"""More partitions than this are counted, not named."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check, and what to do if it is not ok."""

    level: Level
    check: str
    text: str
    advice: str = ""


def check_brokers(cluster: "ClusterInfo") -> Iterator[CheckResult]:
    """Brokers that are down, refused or leaving, and their versions and feature levels."""
    for node in cluster.nodes:
        if node.state.startswith("refused"):
            yield CheckResult(
                "bad",
                "broker",
                f"broker {node.id} is {node.state}",
                f"give it its own data directory back, or: quiver cluster replace {node.id}",
            )
        elif not node.alive:
            yield CheckResult(
                "bad",
                "broker",
                f"broker {node.id} at {node.address} is down",
                f"start it again; quiver cluster replace {node.id} if its disk is lost, "
                f"quiver cluster remove {node.id} if the machine is",
            )
        elif node.state == "leaving":
            yield CheckResult("warn", "broker", f"broker {node.id} is leaving", "")
    versions = sorted({node.version for node in cluster.nodes if node.version})
    if len(versions) > 1:
        yield CheckResult(
            "warn",
            "version",
            f"the brokers run versions {', '.join(versions)}",
            "finish the upgrade: restart the older ones with the newer version",
        )
    elif versions and versions[0] != quivermq.__version__:
        yield CheckResult(
            "warn",
            "version",
            f"the brokers run version {versions[0]}, this command is {quivermq.__version__}",
            "use the same version where you can",
        )
    elif versions:
        yield CheckResult("ok", "version", f"all brokers run version {versions[0]}")
    if cluster.level_possible > cluster.level:
        yield CheckResult(
            "warn",
            "level",
            f"every broker knows feature level {cluster.level_possible}, and the cluster is at "
            f"{cluster.level}",
            "quiver cluster upgrade, when no earlier release is needed any more",
        )
    if len(cluster.nodes) == 2:
        yield CheckResult(
            "warn",
            "broker",
            "a cluster of 2 stops when either is down",
            "add a third broker: quiver cluster add HOST:PORT",
        )


def check_topics(
    topics: "Sequence[TopicInfo]", down: frozenset[int], damaged: Container[str] = ()
) -> Iterator[CheckResult]:
    """Partitions without a leader, and partitions that lack replicas."""
    total = sum(len(topic.partitions) for topic in topics)
    # A broker that runs and lost data is not helped by starting it.
    without_leader = _find_problems(topics, down, leaderless=True)
    leaderless = [place for place in without_leader if place not in damaged]
    late = _find_problems(topics, down, leaderless=False)
    if leaderless:
        yield CheckResult(
            "bad",
            "partitions",
            f"{count(len(leaderless), 'partition')} without a leader: {_list(leaderless)}",
            "start the brokers that hold them; quiver topic describe TOPIC lists these",
        )
    if late:
        yield CheckResult(
            "warn",
            "partitions",
            f"{count(len(late), 'partition')} not fully replicated: {_list(late)}",
            "they catch up once all their brokers run",
        )
    if not without_leader and not late:
        yield CheckResult(
            "ok",
            "partitions",
            f"{count(total, 'partition')} of {count(len(topics), 'topic')}: healthy",
        )


def settled(before: "Sequence[TopicInfo]", now: "Sequence[TopicInfo]") -> "list[TopicInfo]":
    """The topics as they are now, with the replicas in sync that were so at either time: one that
    is a moment behind while messages come in is no news."""
    known = {
        (topic.id, each.partition): each.in_sync for topic in before for each in topic.partitions
    }

    def calm(topic: "TopicInfo", each: "PartitionInfo") -> "PartitionInfo":
        earlier = known.get((topic.id, each.partition))
        if each.in_sync is None or earlier is None:
            return each
        return replace(each, in_sync=tuple(sorted({*each.in_sync, *earlier})))

    return [
        replace(topic, partitions=[calm(topic, each) for each in topic.partitions]) for topic in now
    ]


def check_spread(cluster: "ClusterInfo", topics: "Sequence[TopicInfo]") -> Iterator[CheckResult]:
    """Partitions whose replicas could be in more zones, or on more machines."""
    from quivermq.cluster import FaultDomains  # noqa: PLC0415 - commands start without it

    domains = FaultDomains(cluster.nodes)
    serving = [node.id for node in cluster.nodes if node.state == "serving"]
    crowded = [
        f"{topic.name}/{partition.partition}"
        for topic in topics
        for partition in topic.partitions
        if domains.partings(partition.target or partition.replicas, serving)
    ]
    if crowded:
        yield CheckResult(
            "warn",
            "zones",
            f"{count(len(crowded), 'partition')} with more replicas than need be in one zone, or "
            f"on one machine: {_list(crowded)}",
            "quiver cluster rebalance moves them apart",
        )


def _find_problems(
    topics: "Sequence[TopicInfo]", down: frozenset[int], *, leaderless: bool
) -> list[str]:
    return [
        f"{topic.name}/{partition.partition}"
        for topic in topics
        for partition in topic.partitions
        if partition_problems(partition, down) and (partition.leader == 0) == leaderless
    ]


def _list(partitions: list[str]) -> str:
    more = len(partitions) - LISTED_MAX
    return ", ".join(partitions[:LISTED_MAX]) + (f" and {more:,} more" if more > 0 else "")


def brokers_down(cluster: "ClusterInfo") -> frozenset[int]:
    """The brokers that the others do not hear."""
    return frozenset(node.id for node in cluster.nodes if not node.alive)


def is_outsider(cluster: "ClusterInfo") -> bool:
    """Whether the broker that answered is not a member: it was removed, or not admitted."""
    return not cluster.is_told_by_member


def partition_problems(partition: "PartitionInfo", down: frozenset[int]) -> list[str]:
    """The partition's problems, a sentence each. `down` are the brokers that do not run: a leader
    with nothing to send does not notice."""
    found = []
    in_sync = partition.replicas if partition.in_sync is None else partition.in_sync
    late = sorted(set(partition.replicas) - (set(in_sync) - down))
    if not partition.leader:
        until = "" if names_damage(partition.trouble) else " until most of its replicas are back"
        found.append(f"no leader: it takes no messages{until}")
    elif late:
        found.append(f"replicas behind or down: {numbers(late)}")
    if partition.trouble:
        found.append(partition.trouble)
    return found


def names_damage(trouble: str) -> bool:
    """Whether a broker said it of its own replica."""
    return "broker " in trouble
