"""What is not as it should be with a partition, for people."""

from typing import TYPE_CHECKING

from quivermq.cli.output import numbers

if TYPE_CHECKING:
    from quivermq.client import ClusterInfo, PartitionInfo


def brokers_down(cluster: "ClusterInfo") -> frozenset[int]:
    """The brokers that nobody hears."""
    return frozenset(node.id for node in cluster.nodes if not node.alive)


def is_outsider(cluster: "ClusterInfo") -> bool:
    """Whether the broker that told this is not in it: it was removed, or is not let in."""
    return not cluster.is_told_by_member


def partition_troubles(partition: "PartitionInfo", down: frozenset[int]) -> list[str]:
    """Each as a sentence; none if all is well. `down` are brokers that are not running: a leader
    that has nothing to send does not notice."""
    found = []
    in_sync = partition.replicas if partition.in_sync is None else partition.in_sync
    late = sorted(set(partition.replicas) - (set(in_sync) - down))
    if not partition.leader:
        found.append("nobody leads it: it takes no messages until most of its replicas are back")
    elif late:
        found.append(f"replicas behind or down: {numbers(late)}")
    if partition.trouble:
        found.append(partition.trouble)
    return found
