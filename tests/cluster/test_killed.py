"""Brokers that die: killed one by one, all at once, and paused."""

from quivermq.testing import Cluster
from quivermq.testing.trial import TOPIC, trial

FAST = {"tick_ms": 50}


def test_a_leader_killed_again_and_again_loses_nothing() -> None:  # F1
    with Cluster(settings=FAST) as cluster, trial(cluster) as load:
        for _ in range(4):
            leader = cluster.nodes[cluster.leader(TOPIC)]
            leader.kill()
            load.wait_progress()
            leader.start()
            load.wait_progress()


def test_a_cluster_killed_as_a_whole_loses_nothing() -> None:  # F2
    with Cluster(settings=FAST) as cluster, trial(cluster) as load:
        for _ in range(2):
            for node in cluster.nodes.values():
                node.kill()
            cluster.start()
            load.wait_progress()
