"""With and without a majority: what is refused, what is never shown, and who sleeps."""

import time

import pytest

import quivermq
from quivermq.batches import Origin, encode_batch
from quivermq.errors import NotEnoughReplicas, QuiverError
from quivermq.testing import Cluster
from quivermq.testing.trials import TopicPartition, fetch_copy, trial
from quivermq.testing.trials.client_trial import TOPIC
from quivermq.wire import proto

FAST = {"tick_ms": 50}
ELECTION_S = 1.0  # the longest: twice ten ticks


def test_without_a_majority_writes_and_reads_are_refused_within_two_elections() -> None:
    with Cluster(settings=FAST) as cluster, cluster.connect() as client:
        client.create_topic("orders")
        client.produce("orders", b"stored")
        leader = cluster.leader("orders")
        for node in cluster.nodes.values():
            if node.id != leader:
                node.kill()
        began = time.monotonic()
        cluster.wait_until(lambda: lacks_replicas(cluster, leader), "it does not say so")
        assert time.monotonic() - began < 2 * ELECTION_S + 8
        with cluster.connect(timeout=2.0) as impatient:
            with pytest.raises(NotEnoughReplicas):
                impatient.produce("orders", b"refused")
            with pytest.raises(NotEnoughReplicas):
                list(impatient.read("orders"))
            assert [m.value for m in impatient.read("orders", follower_ok=True)] == [b"stored"]
        cluster.start()
        client.produce("orders", b"again")
        assert [m.value for m in client.read("orders")] == [b"stored", b"again"]


def lacks_replicas(cluster: Cluster, node: int) -> bool:
    find = proto.Request(find_offset=proto.FindOffset(topic="orders", latest=True), direct=True)
    try:
        with cluster.direct(node, timeout=0.2) as broker:
            broker.ask(find)
    except NotEnoughReplicas:
        return True
    return False


def test_no_replica_shows_what_is_not_committed() -> None:
    with Cluster(nodes=5, settings=FAST, proxied=True) as cluster, cluster.connect() as client:
        client.create_topic("orders", replication=5)
        client.produce("orders", b"committed")
        place = TopicPartition("orders", 0)
        leader = cluster.leader(*place)
        follower = leader % 5 + 1
        few = [leader, follower]
        sizes = {node: size(cluster, node, place) for node in few}
        cluster.wiring.partition(few, [node for node in cluster.nodes if node not in few])
        with cluster.direct(leader, timeout=10.0) as broker:
            request = proto.Request(produce=proto.Produce(topic="orders"), direct=True)
            broker.send(request, [encode_batch([b"not committed"], origin=Origin(9, 0))])
            cluster.wait_until(
                lambda: all(size(cluster, node, place) > sizes[node] for node in few),
                "the entry is not on the follower's disk",
            )
            for node in few:
                assert fetch_copy(cluster, node, place).messages() == {0: b"committed"}
            # Those that never had it decide: it was never stored.
            assert client.produce("orders", b"instead").offset == 1
            for node in few:
                assert fetch_copy(cluster, node, place).messages() == {0: b"committed"}
            cluster.wiring.heal()
            with pytest.raises(QuiverError):
                broker.take(request.id)
        for node in cluster.nodes:
            cluster.wait_until(
                lambda node=node: (
                    fetch_copy(cluster, node, place).messages()  # type: ignore[misc]
                    == {0: b"committed", 1: b"instead"}
                ),
                f"node {node} shows something else",
            )


def size(cluster: Cluster, node: int, place: TopicPartition) -> int:
    seen = cluster.describe(node, *place)
    return seen.size_bytes if seen else 0


def awake(cluster: Cluster, client: quivermq.Client) -> float:
    return sum(client.stats(node.address)["partitions_awake"] for node in cluster.running)


def test_an_idle_cluster_sleeps_and_wakes_when_a_sleeping_leader_is_gone() -> None:
    with Cluster(settings=FAST) as cluster, cluster.connect() as client:
        client.create_topic("orders", partitions=8)
        for partition in range(8):
            client.produce("orders", b"before", partition=partition)
        cluster.wait_until(lambda: awake(cluster, client) == 0, "somebody stays awake")
        leader = cluster.nodes[cluster.leader("orders")]
        leader.kill()
        began = time.monotonic()
        for partition in range(8):
            client.produce("orders", b"after", partition=partition)
        assert time.monotonic() - began < 5.0
        leader.start()
        cluster.wait_ready()
        values = [[m.value for m in client.read("orders", partition=p)] for p in range(8)]
        assert values == [[b"before", b"after"]] * 8


def test_a_cluster_that_slept_serves_at_once_and_keeps_every_promise() -> None:
    with Cluster(settings=FAST) as cluster, cluster.connect() as client:
        client.create_topic(TOPIC, partitions=2)
        cluster.wait_until(lambda: awake(cluster, client) == 0, "somebody stays awake")
        with trial(cluster) as load:
            load.wait_progress()
