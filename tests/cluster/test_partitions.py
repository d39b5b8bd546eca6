"""Networks that fail: partitions, also one-way and partial, and links that clog."""

from random import Random

from quivermq.testing import Cluster
from quivermq.testing.trials import trial
from quivermq.testing.trials.client_trial import TOPIC

FAST = {"tick_ms": 50}


def test_a_leader_in_the_minority_gives_way_and_nothing_is_lost() -> None:  # F6
    with Cluster(settings=FAST, proxied=True) as cluster, trial(cluster) as load:
        for _ in range(2):
            leader = cluster.leader(TOPIC)
            cluster.wiring.isolate(leader)
            cluster.wait_until(
                lambda leader=leader: cluster.leader(TOPIC) != leader, "it does not give way"
            )
            load.wait_progress()
            cluster.wiring.heal()
            cluster.wait_ready()
            load.wait_progress()


def test_a_bridge_keeps_the_cluster_serving() -> None:  # F6
    with Cluster(settings=FAST, proxied=True) as cluster, trial(cluster) as load:
        for bridge in cluster.nodes:
            one, other = (node for node in cluster.nodes if node != bridge)
            cluster.wiring.partition({one, bridge}, {bridge, other})
            load.wait_progress()
        cluster.wiring.heal()
        cluster.wait_ready()


def test_a_ring_keeps_the_cluster_serving() -> None:  # F6
    with Cluster(nodes=5, settings=FAST, proxied=True) as cluster, trial(cluster) as load:
        cluster.wiring.partition(*({node, node % 5 + 1} for node in cluster.nodes))
        load.wait_progress()
        cluster.wiring.heal()
        cluster.wait_ready()


def test_a_leader_that_no_member_hears_is_replaced() -> None:  # F7
    with Cluster(settings=FAST, proxied=True) as cluster, trial(cluster) as load:
        mute = cluster.leader(TOPIC)
        for (sender, _), link in cluster.wiring.links.items():
            if sender == mute:
                link.cut()
        load.wait_progress()
        cluster.wiring.heal()
        cluster.wait_ready()


def test_a_leader_that_hears_no_other_member_steps_down() -> None:  # F7
    with Cluster(settings=FAST, proxied=True) as cluster, trial(cluster) as load:
        deaf = cluster.leader(TOPIC)
        for (_, receiver), link in cluster.wiring.links.items():
            if receiver == deaf:
                link.cut()
        load.wait_progress()
        cluster.wiring.heal()
        cluster.wait_ready()


def test_links_that_clog_one_by_one_and_clear_in_any_order_lose_nothing() -> None:  # F8
    with Cluster(settings=FAST, proxied=True) as cluster, trial(cluster) as load:
        links = list(cluster.wiring.links.values())
        for seed in (1, 2):
            Random(seed).shuffle(links)
            for link in links:
                link.clog()
            Random(seed + 10).shuffle(links)
            for link in links:
                link.heal()
            load.wait_progress()
