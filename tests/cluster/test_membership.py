"""Brokers that come, go and are replaced while others die; and those that must not be let in."""

import shutil

import pytest

from quivermq.errors import NotEnoughReplicas
from quivermq.testing import Cluster, ClusterError
from quivermq.testing.trials import ClientLoad, trial
from quivermq.testing.trials.client_trial import TOPIC
from quivermq.wire import proto

FAST = {"tick_ms": 50}


def wait_moved(cluster: Cluster) -> None:
    with cluster.connect() as client:
        cluster.wait_until(
            lambda: client.rebalance_status().moves_left == 0, "partitions are still moving", 60
        )


def bounce_leader(cluster: Cluster, load: ClientLoad) -> None:
    leader = cluster.nodes[cluster.leader(TOPIC)]
    leader.kill()
    load.wait_progress()
    leader.start()


def refuses_for_lack_of_replicas(cluster: Cluster, node: int) -> bool:
    find = proto.Request(find_offset=proto.FindOffset(topic=TOPIC, latest=True), direct=True)
    try:
        with cluster.direct(node) as broker:
            broker.ask(find)
    except NotEnoughReplicas:
        return True
    raise AssertionError("a broker without a majority knows the end of the log")


def test_brokers_are_added_and_removed_while_leaders_die() -> None:  # F21
    with Cluster(settings=FAST) as cluster, trial(cluster) as load:
        with cluster.connect() as client:
            added = cluster.add_node()
            cluster.wait_ready()
            client.rebalance()
            bounce_leader(cluster, load)
            wait_moved(cluster)
            cluster.wait_ready()
            assert any(added.id in p.replicas for p in client.topic(TOPIC).partitions)
            client.remove_broker(1)
            if cluster.leader(TOPIC) != 1:
                bounce_leader(cluster, load)
            cluster.wait_until(
                lambda: 1 not in {node.id for node in client.cluster().nodes}, "node 1 stays", 60
            )
        cluster.drop_node(1)
        load.wait_progress()
        with cluster.connect() as client:
            assert all(1 not in p.replicas for p in client.topic(TOPIC).partitions)


def test_a_broker_with_an_emptied_disk_counts_for_nothing_until_it_is_replaced() -> None:
    # F21, F22
    with (
        Cluster(settings=FAST) as cluster,
        trial(cluster, loses_disk={3}) as load,
        cluster.connect() as client,
    ):
        lost = cluster.nodes[3]
        lost.kill()
        shutil.rmtree(lost.data_dir)
        lost.start()
        cluster.wait_until(lambda: "is not let in" in lost.log_text(), "it is let in")
        assert cluster.describe(3, TOPIC) is None
        load.wait_progress()
        # Two have everything, and it has nothing: without one of the two there is no majority,
        # however much it would like to vote.
        with cluster.paused(1):
            cluster.wait_until(lambda: refuses_for_lack_of_replicas(cluster, 2), "somebody leads")
        cluster.wait_until(lambda: client.replace_broker(3) is None, "it is not replaced")
        cluster.wait_ready()
        wait_moved(cluster)
        load.wait_progress()
        bounce_leader(cluster, load)
        cluster.wait_ready()


def test_a_broker_that_was_down_follows_a_leader_whose_directory_it_does_not_know() -> None:
    with Cluster(5, settings=FAST) as cluster, cluster.connect() as client:
        down, replaced = cluster.nodes[3], cluster.nodes[1]
        down.stop()
        replaced.kill()
        shutil.rmtree(replaced.data_dir)
        replaced.start()
        cluster.wait_until(lambda: "is not let in" in replaced.log_text(), "it is let in")
        cluster.wait_until(lambda: client.replace_broker(1) is None, "it is not replaced")
        cluster.wait_ready()
        wait_moved(cluster)
        client.transfer(None, to=1)
        cluster.wait_until(lambda: client.cluster().leader == 1, "it does not lead")
        down.start()
        cluster.wait_ready()


def test_the_directory_of_another_broker_is_refused() -> None:  # F23
    with Cluster(settings=FAST) as cluster, trial(cluster):
        mine, other = cluster.nodes[3], cluster.nodes[2]
        mine.stop()
        aside = mine.data_dir.with_name("aside")
        mine.data_dir.rename(aside)
        shutil.copytree(other.data_dir, mine.data_dir, ignore=lambda *_: ["lock"])
        with pytest.raises(ClusterError, match="belongs to node 2"):
            mine.start()
        shutil.rmtree(mine.data_dir)
        aside.rename(mine.data_dir)
        mine.start()
        cluster.wait_ready()


def test_an_old_copy_of_the_directory_is_refused() -> None:  # F23
    with Cluster(settings=FAST) as cluster, trial(cluster) as load:
        node = cluster.nodes[3]
        old, current = node.data_dir.with_name("old"), node.data_dir.with_name("current")
        node.stop()
        shutil.copytree(node.data_dir, old)
        node.start()
        cluster.wait_ready()
        load.wait_progress()
        node.stop()
        node.data_dir.rename(current)
        old.rename(node.data_dir)
        node.start()
        cluster.wait_until(lambda: "is an old copy" in node.log_text(), "it is let in")
        node.kill()
        shutil.rmtree(node.data_dir)
        current.rename(node.data_dir)
        node.start()
        cluster.wait_ready()
