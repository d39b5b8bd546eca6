"""Brokers that are slow: their disks, their event loops."""

from quivermq.testing import Cluster
from quivermq.testing.trials import trial
from quivermq.testing.trials.client_trial import TOPIC

# Elections after 0.8 to 1.6 s: short, and yet longer than a busy machine keeps a process waiting.
FAST = {"tick_ms": 80}
LONGER_MS = 1_700


def term(cluster: Cluster) -> int:
    seen = cluster.describe(cluster.leader(TOPIC), TOPIC)
    assert seen is not None
    return seen.term


def test_a_leader_with_a_slow_disk_stays_the_leader() -> None:  # F19
    with Cluster(settings=FAST) as cluster, trial(cluster) as load:
        leader, before = cluster.leader(TOPIC), term(cluster)
        cluster.nodes[leader].slow_disk(LONGER_MS)
        load.wait_progress(10)
        assert (cluster.leader(TOPIC), term(cluster)) == (leader, before)
        cluster.nodes[leader].slow_disk(0)


def test_a_follower_with_a_slow_disk_delays_no_write() -> None:  # F19
    with Cluster(settings=FAST) as cluster, trial(cluster, partitions=1) as load:
        leader, before = cluster.leader(TOPIC), term(cluster)
        slow = cluster.nodes[leader % 3 + 1]
        slow.slow_disk(LONGER_MS)
        load.slowest_s = 0.0
        load.wait_progress(500)
        assert (cluster.leader(TOPIC), term(cluster)) == (leader, before)
        assert load.slowest_s < LONGER_MS / 1000
        slow.slow_disk(0)


def test_a_leader_whose_loop_stalls_is_replaced_and_comes_back_quietly() -> None:  # F42
    with Cluster(settings=FAST) as cluster, trial(cluster) as load:
        leader = cluster.leader(TOPIC)
        cluster.nodes[leader].stall(4.0)
        load.wait_progress()
        assert cluster.leader(TOPIC) != leader
        cluster.wait_ready()
        after = term(cluster)
        load.wait_progress(200)
        assert term(cluster) == after


def test_a_follower_whose_loop_stalls_starts_no_election() -> None:  # F42
    with Cluster(settings=FAST) as cluster, trial(cluster, partitions=1) as load:
        leader, before = cluster.leader(TOPIC), term(cluster)
        cluster.nodes[leader % 3 + 1].stall(3.0)
        load.wait_progress(200)
        cluster.wait_ready()
        assert (cluster.leader(TOPIC), term(cluster)) == (leader, before)
