"""Brokers that are told their zones: where replicas go, and where they are read from."""

from collections.abc import Iterator

import pytest

import quivermq
from quivermq.testing import Cluster
from tests.cluster.conftest import FAST

ZONE_OF = {1: "north", 2: "north", 3: "south"}


@pytest.fixture(scope="module")
def zoned() -> Iterator[Cluster]:
    cluster = Cluster(settings=FAST)
    for node, zone in ZONE_OF.items():
        cluster.nodes[node].settings["zone"] = zone
    with cluster:
        yield cluster


def messages_out(cluster: Cluster) -> dict[int, float]:
    """How many messages each broker gave to readers."""
    found = {}
    for number, node in cluster.nodes.items():
        with quivermq.connect(node.address, tls=False, token="", zone="") as client:
            found[number] = client.stats()["messages_delivered_total"]
    return found


def test_replicas_are_in_both_zones_and_everyone_sees_where(zoned: Cluster) -> None:
    with zoned.connect() as client:
        found = client.cluster(latest=True)
        assert {node.id: node.zone for node in found.nodes} == ZONE_OF
        assert {node.machine for node in found.nodes} == {"127.0.0.1"}
        client.create_topic("pairs", partitions=6, replication=2)
        for partition in client.topic("pairs").partitions:
            assert 3 in partition.replicas, "the only broker of its zone"


@pytest.mark.parametrize("zone", ["north", "south"])
def test_a_client_reads_in_its_zone_all_that_was_acknowledged(zone: str, zoned: Cluster) -> None:
    topic = f"read-{zone}"
    with zoned.connect(zone=zone) as client:
        client.create_topic(topic, replication=2)
        elsewhere = next(
            node for node in client.topic(topic).partitions[0].replicas if ZONE_OF[node] != zone
        )
        client.transfer(topic, 0, to=elsewhere)
        before = messages_out(zoned)
        for count in range(1, 11):
            client.produce(topic, b"%d" % count)
            assert len(list(client.read(topic))) == count, "an acknowledged message is missing"
        after = messages_out(zoned)
    given = {node: after[node] - before[node] for node in after}
    near = sum(count for node, count in given.items() if ZONE_OF[node] == zone)
    # A follower that is late is left for the leader; most are not.
    assert near > given[elsewhere]


def test_a_broker_that_is_given_another_zone_is_known_by_it(zoned: Cluster) -> None:
    zoned.nodes[2].stop()
    zoned.nodes[2].settings["zone"] = "west"
    zoned.nodes[2].start()
    zoned.wait_ready()
    with zoned.connect() as client:
        zones = {node.id: node.zone for node in client.cluster(latest=True).nodes}
    assert zones == ZONE_OF | {2: "west"}
