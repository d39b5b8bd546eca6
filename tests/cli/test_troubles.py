"""Problems of partitions and brokers, as commands list them."""

from quivermq.client import ClusterInfo, NodeInfo, PartitionInfo
from quivermq.cluster_findings import brokers_down, is_outsider, partition_problems

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
