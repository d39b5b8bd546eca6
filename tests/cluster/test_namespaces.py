"""Brokers on hosts of their own: cuts that nobody is told of, while clients are at work."""

import socket
import time
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from random import Random

import pytest

from quivermq.testing import Cluster
from quivermq.testing.cluster import Namespaces, why_not
from quivermq.testing.trials import trial
from quivermq.testing.trials.client_trial import TOPIC

NODES = ("node-1", "node-2", "node-3")
FAST = {"tick_ms": 50}
CUT_S = 2.0  # four times the shortest election
REASON = why_not()

pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.fixture
def hosts() -> Iterator[Namespaces]:
    with Namespaces([*NODES, "clients"]) as hosts, hosts.entered("clients"):
        yield hosts


@pytest.fixture
def cluster(hosts: Namespaces) -> Iterator[Cluster]:
    with Cluster(settings=FAST, hosts=hosts) as cluster:
        yield cluster


def others_than(host: str) -> list[str]:
    return [other for other in NODES if other != host]


def test_brokers_are_on_their_hosts_and_later_ones_where_the_test_is(
    hosts: Namespaces, cluster: Cluster
) -> None:
    def network(process: int | str) -> Path:
        return Path(f"/proc/{process}/ns/net").readlink()

    seen = {network(node.pid) for node in cluster.nodes.values()}
    for node in NODES:
        with hosts.entered(node):
            seen.remove(network("thread-self"))
    assert not seen
    with Cluster(1) as other:
        assert network(other.nodes[1].pid) == network("thread-self")


def test_a_cut_is_silent_and_goes_one_way(hosts: Namespaces) -> None:
    with hosts.entered("node-1"):
        server = socket.create_server((hosts.address("node-1"), 9000))
    with server, hosts.entered("node-2"), socket.socket() as client:
        client.connect((hosts.address("node-1"), 9000))
        accepted, _ = server.accept()
        with accepted:
            hosts.cut("node-1", "node-2")
            client.sendall(b"there")
            accepted.settimeout(5.0)
            assert accepted.recv(10) == b"there"
            accepted.sendall(b"and back")
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(10)
            hosts.heal()
            client.settimeout(10.0)
            assert client.recv(10) == b"and back"


def test_a_leader_that_clients_reach_and_peers_do_not_loses_nothing(
    cluster: Cluster, hosts: Namespaces
) -> None:
    with trial(cluster, may_fail=True) as load:
        alone = f"node-{cluster.leader(TOPIC)}"
        hosts.separate([alone], others_than(alone))
        time.sleep(CUT_S)
        load.wait_progress()
        hosts.heal()
        load.wait_progress()


@pytest.mark.parametrize("direction", ["mute", "deaf"])
def test_a_leader_of_which_one_direction_is_lost_is_replaced(
    cluster: Cluster, hosts: Namespaces, direction: str
) -> None:
    with trial(cluster, may_fail=True) as load:
        leader = f"node-{cluster.leader(TOPIC)}"
        for other in others_than(leader):
            hosts.cut(*((leader, other) if direction == "mute" else (other, leader)))
        time.sleep(CUT_S)
        load.wait_progress()
        hosts.heal()
        load.wait_progress()


def test_links_that_blink_lose_nothing(cluster: Cluster, hosts: Namespaces) -> None:
    dice = Random(7)
    pairs = list(permutations(NODES, 2))
    with trial(cluster, may_fail=True) as load:
        end = time.monotonic() + 6.0
        while time.monotonic() < end:
            for pair in dice.sample(pairs, dice.randint(1, 3)):
                hosts.cut(*pair)
            time.sleep(dice.uniform(0.02, 0.6))
            hosts.heal()
            time.sleep(dice.uniform(0.02, 0.3))
        load.wait_progress()


def test_clients_that_do_not_reach_the_leader_are_served_through_others(
    cluster: Cluster, hosts: Namespaces
) -> None:
    with trial(cluster, may_fail=True) as load:
        leader = f"node-{cluster.leader(TOPIC)}"
        hosts.separate(["clients"], [leader])
        time.sleep(CUT_S)
        load.wait_progress(messages=5, timeout=60.0)
        hosts.heal()
        load.wait_progress()
