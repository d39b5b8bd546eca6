"""The history of samples, and what needs attention."""

from dataclasses import replace
from typing import Any

from quivermq.client import ClusterInfo, NodeInfo, PartitionInfo, TopicInfo
from quivermq.cluster_findings import settled
from quivermq.cluster_samples import Scrape
from quivermq.portal.attention import GroupProgress, notices
from quivermq.portal.history import POINTS_MAX, RINGS_MAX, History


def test_history_keeps_an_hour_and_gives_a_chart_no_more_than_it_can_draw() -> None:
    history = History(2.0)
    for second in range(0, 8_000, 2):
        history.add(float(second), {"in": 1.0 + second})
    points = history.points("in", 8_000.0, 3_600.0)
    assert len(points) <= POINTS_MAX + 1
    assert points[0][0] >= 4_400
    assert points[-1][0] == 7_998
    assert [value for _, value in history.points("in", 8_000.0, 60.0)][-1] == 7_999
    assert history.points("nothing", 8_000.0, 60.0) == []


def test_idle_series_cost_nothing_and_busy_ones_are_bounded() -> None:
    history = History(2.0)
    history.add(1.0, {f"idle-{n}": 0.0 for n in range(10_000)})
    assert history.points("idle-1", 1.0, 60.0) == []
    history.add(1.0, {f"busy-{n}": 1.0 for n in range(RINGS_MAX + 10)})
    assert history.points("busy-0", 1.0, 60.0) == []
    assert history.points(f"busy-{RINGS_MAX}", 1.0, 60.0)


def cluster(*alive: bool, leader: int = 1) -> ClusterInfo:
    nodes = [
        NodeInfo(id=n, address=f"host-{n}:7600", alive=is_alive, leaders=0, level_max=1)
        for n, is_alive in enumerate(alive, 1)
    ]
    return ClusterInfo(cluster_id="c", leader=leader, nodes=nodes, node=1, level=1)


def progress(**fields: float) -> GroupProgress:
    given = {"lag": 0.0, "in_flight": 0.0, "acked": 0.0, "dead": 0.0, "grown": 0.0, **fields}
    return GroupProgress("orders", "billing", **given)


def test_a_healthy_cluster_needs_no_attention() -> None:
    busy = progress(lag=5, in_flight=5, acked=1000)
    assert notices(cluster(True, True, True), [], {1: Scrape(1)}, [], [busy], 0.0) == []


def described(*in_sync: int) -> TopicInfo:
    partition = PartitionInfo(partition=0, leader=1, replicas=(1, 2, 3), in_sync=in_sync)
    settings: dict[str, Any] = {"retention": None, "rate_limit": None, "max_deliveries": 5}
    return TopicInfo(
        name="orders", id="1", partitions=[partition], replication=3, dead_letter="", **settings
    )


def test_a_replica_that_is_behind_for_a_moment_is_no_news() -> None:
    def told(before: TopicInfo, now: TopicInfo) -> list[str]:
        topics = settled([before], [now])
        return [each.text for each in notices(cluster(True, True, True), topics, {}, [], [], 0.0)]

    assert told(described(1, 2, 3), described(1, 2)) == []
    assert told(described(1, 3), described(1, 2)) == []
    late = ["1 partition not fully replicated: orders/0."]
    assert told(described(1, 2), described(1, 2)) == late


def test_the_worst_comes_first_in_words_with_a_link() -> None:
    full = Scrape(1, plain={"quiver_disk_size_bytes": 100e9, "quiver_disk_free_bytes": 1e9})
    found = notices(
        cluster(True, False, True, leader=0),
        None,
        {1: full},
        [],
        [progress(lag=7), progress(lag=1, waiting=0), progress(dead=3, acked=1)],
        0.0,
    )
    assert [each.level for each in found] == ["bad", "bad", "warn", "warn", "warn"]
    assert [each.text for each in found] == [
        "The cluster has no leader: topics cannot be changed.",
        "Broker 2 at host-2:7600 is down.",
        "The disk of broker 1 has 1 GB of 100 GB left.",
        "Nobody works for group billing of orders: 7 messages wait.",
        "3 messages of orders became dead letters of group billing within five minutes.",
    ]
    assert found[3].link == "/topics/orders/groups/billing"
    assert found[4].link == "/topics/orders/dead-letters"


def test_a_notice_says_of_which_topics_it_tells() -> None:
    healthy = described(1, 2, 3)
    other = replace(described(1, 2), name="payments", id="2")
    found = notices(
        cluster(True, True, True, leader=0), [healthy, other], {}, [], [progress(lag=7)], 0.0
    )
    assert [each.topics for each in found] == [
        frozenset(),
        frozenset({"orders", "payments"}),
        frozenset({"orders"}),
    ]
