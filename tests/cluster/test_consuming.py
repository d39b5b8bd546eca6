"""Consumers of shared groups while brokers die, stand still and come back."""

from quivermq.testing import Cluster
from quivermq.testing.group_trial import TOPIC, group_trial

FAST = {"tick_ms": 50}


def test_a_leader_killed_between_lease_and_ack_loses_and_repeats_nothing() -> None:  # F1
    with Cluster(settings=FAST) as cluster, group_trial(cluster) as consumers:
        for _ in range(3):
            leader = cluster.nodes[cluster.leader(TOPIC)]
            leader.kill()
            consumers.wait_progress(100)
            leader.start()
            consumers.wait_progress()


def test_a_cluster_killed_as_a_whole_keeps_what_was_acknowledged() -> None:  # F2
    with Cluster(settings=FAST) as cluster, group_trial(cluster) as consumers:
        for _ in range(2):
            for node in cluster.nodes.values():
                node.kill()
            cluster.start()
            consumers.wait_progress(100)
