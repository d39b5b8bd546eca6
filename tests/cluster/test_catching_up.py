"""Brokers that were away and come back: what they missed reaches them without hurry."""

import time

import quivermq
from quivermq.testing import Cluster

MIB = 1 << 20
SETTINGS = {"tick_ms": 50, "rebalance_bytes_per_second": MIB, "grpc": ""}
PATIENCE_S = 60.0


def has_caught_up(client: quivermq.Client, topic: str) -> bool:
    (partition,) = client.topic(topic).partitions
    return len(partition.in_sync or ()) == 3


def fill(cluster: Cluster, client: quivermq.Client, topic: str, mebibytes: int) -> list[int]:
    """Without one broker; it and the other follower."""
    client.create_topic(topic, partitions=1, replication=3)
    client.produce(topic, b"first")
    leader = client.topic(topic).partitions[0].leader
    away, other = [number for number in cluster.nodes if number != leader]
    cluster.nodes[away].kill()
    for _ in range(mebibytes):
        client.produce_many(topic, [b"x" * 1024] * 1000)
    # Copies may always take twice the rate of what is new: that of the filling is soon forgotten.
    time.sleep(2.0)
    return [away, other]


def test_what_a_broker_missed_comes_at_the_rate_of_copies_and_others_go_on(topic: str) -> None:
    with Cluster(nodes=3, settings=SETTINGS) as cluster, cluster.connect() as client:
        away, _ = fill(cluster, client, topic, 5)
        began = time.monotonic()
        cluster.nodes[away].start()
        produced = 0
        while not has_caught_up(client, topic):
            assert time.monotonic() - began < PATIENCE_S
            client.produce(topic, b"meanwhile")
            produced += 1
        # 5 MB at 1 MiB a second, but for the burst and for what the last packet is too large.
        assert time.monotonic() - began > 2.0
        assert produced > 10
        assert client.topic(topic).message_count == 5_001 + produced


def test_a_broker_that_is_needed_again_gets_what_it_missed_at_once(topic: str) -> None:
    """At the rate of copies it would take longer than anybody waits here."""
    with Cluster(nodes=3, settings=SETTINGS) as cluster, cluster.connect(timeout=40.0) as client:
        away, other = fill(cluster, client, topic, 60)
        cluster.nodes[away].start()
        cluster.nodes[other].kill()
        client.produce(topic, b"needs the one that was away")
        assert client.topic(topic).message_count == 60_002
