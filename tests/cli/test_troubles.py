"""Problems of partitions and brokers, as commands list them."""

from typing import Any

from quivermq.client import ClusterInfo, NodeInfo, PartitionInfo, TopicInfo
from quivermq.cluster_findings import (
    brokers_down,
    check_spread,
    is_outsider,
    partition_problems,
)

NONE_DOWN: frozenset[int] = frozenset()


def partition(leader: int = 1, in_sync: tuple[int, ...] = (1, 2, 3), **more: str) -> PartitionInfo:
    return PartitionInfo(partition=0, leader=leader, replicas=(1, 2, 3), in_sync=in_sync, **more)


def cluster(node: int) -> ClusterInfo:
    nodes = [
        NodeInfo(id=1, address="a:1", alive=True, leaders=1),
        NodeInfo(id=2, address="b:1", alive=False, leaders=0),
    ]
    return ClusterInfo(cluster_id="c", leader=1, nodes=nodes, node=node)


def test_a_healthy_partition_has_no_problems() -> None:
    assert partition_problems(partition(), NONE_DOWN) == []


def test_replicas_that_lag_or_are_down_are_named() -> None:
    assert partition_problems(partition(in_sync=(1, 3)), NONE_DOWN) == [
        "replicas behind or down: 2"
    ]
    assert partition_problems(partition(), frozenset({3})) == ["replicas behind or down: 3"]


def test_without_a_leader_no_other_problem_is_reported() -> None:
    (trouble,) = partition_problems(partition(leader=0, in_sync=()), NONE_DOWN)
    assert trouble.startswith("no leader")


def test_an_unknown_in_sync_set_is_not_a_problem() -> None:
    silent = PartitionInfo(partition=0, leader=1, replicas=(1, 2), trouble="no answer")
    assert partition_problems(silent, NONE_DOWN) == ["no answer"]
    assert partition_problems(silent, frozenset({2})) == ["replicas behind or down: 2", "no answer"]


def test_the_brokers_own_report_is_included() -> None:
    assert partition_problems(partition(trouble="its disk is full"), NONE_DOWN) == [
        "its disk is full"
    ]


def test_brokers_down_and_outsiders() -> None:
    assert brokers_down(cluster(node=1)) == {2}
    assert not is_outsider(cluster(node=1))
    assert is_outsider(cluster(node=7))


def test_replicas_that_could_be_further_apart_are_named() -> None:
    zones = {1: "a", 2: "a", 3: "b"}
    nodes = [
        NodeInfo(
            id=n, address="", alive=True, leaders=0, state="serving", zone=zone, machine=f"m{n}"
        )
        for n, zone in zones.items()
    ]
    cluster = ClusterInfo(cluster_id="c", leader=1, nodes=nodes)
    partitions = [
        PartitionInfo(partition=number, leader=1, replicas=replicas, target=target)
        for number, (replicas, target) in enumerate(
            [((1, 2), ()), ((1, 3), ()), ((1, 2, 3), ()), ((1, 2), (1, 3)), ((2,), ())]
        )
    ]
    settings: dict[str, Any] = {"retention": None, "rate_limit": None, "max_deliveries": 5}
    topic = TopicInfo(
        name="orders", id="1", partitions=partitions, replication=2, dead_letter="", **settings
    )
    (found,) = check_spread(cluster, [topic])
    assert found.level == "warn"
    assert found.text.endswith("orders/0")
    assert "1 partition with" in found.text
    alone = ClusterInfo(cluster_id="c", leader=1, nodes=nodes[:2])
    assert list(check_spread(alone, [topic])) == []
