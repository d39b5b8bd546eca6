"""The map of the cluster: what is kept, and what failures change."""

import pytest

from quivermq.client.cluster_map import AVOID_SECONDS, ClusterMap
from quivermq.errors import InvalidRequest
from quivermq.wire import proto


def heard(known: ClusterMap, *, leader: int = 1, topics: tuple[str, ...] = ("t",)) -> None:
    found = proto.ClusterMap()
    found.brokers.add(id=1, address="a:1")
    found.brokers.add(id=2, address="b:2")
    for name in topics:
        topic = found.topics.add(name=name, id=b"x")
        # As a broker may send them: in any order.
        topic.partitions.add(partition=1, leader=2, replicas=[1, 2])
        topic.partitions.add(partition=0, leader=leader, replicas=[1, 2])
    known.update(found, ["t"], 0.0)


def test_bootstrap_servers_are_shuffled() -> None:
    servers = [f"s{number}:1" for number in range(20)]
    orders = {tuple(ClusterMap(servers).servers(0.0)) for _ in range(5)}
    assert len(orders) > 1
    assert all(sorted(order) == sorted(servers) for order in orders)


def test_brokers_of_the_map_can_be_asked_too() -> None:
    known = ClusterMap(["seed:1"])
    heard(known)
    assert known.servers(0.0) == ["seed:1", "a:1", "b:2"]


def test_an_avoided_broker_comes_last_for_a_while() -> None:
    known = ClusterMap(["seed:1"])
    heard(known)
    known.avoid("seed:1", 0.0)
    assert known.servers(1.0) == ["a:1", "b:2", "seed:1"]
    assert known.is_avoided("seed:1", 1.0)
    assert not known.is_avoided("seed:1", AVOID_SECONDS + 1.0)
    known.stop_avoiding("seed:1")
    assert not known.is_avoided("seed:1", 1.0)


def test_partitions_are_in_order_and_hints_correct_them() -> None:
    known = ClusterMap(["seed:1"])
    heard(known)
    route = known.route("t")
    assert route is not None
    assert route.leaders == [1, 2]
    known.set_leader("t", 0, 3, "c:3")
    assert route.leaders == [3, 2]
    assert known.address(3) == "c:3"
    known.set_leader("t", 9, 3, "c:3")


def test_behind_gateways_the_one_in_use_stands_for_every_leader() -> None:
    known = ClusterMap(["g:1", "g:2"])
    heard(known)
    found = proto.ClusterMap()
    found.brokers.add(id=1, hidden_address="a:1")
    known.update(found, [], 0.0)
    first, second = known.servers(0.0)
    assert {first, second} == {"g:1", "g:2"}
    assert known.address(1) == known.address(2) == first
    assert known.address(0) == ""
    known.avoid(first, 0.0)
    assert known.address(1) == second
    heard(known)
    assert known.address(1) == "a:1"


def test_only_so_many_topics_are_kept() -> None:
    known = ClusterMap(["seed:1"])
    heard(known, topics=("t", "u", "v"))
    known.forget_beyond(2)
    assert known.route("t") is None
    assert known.route("u") is not None
    assert known.route("v") is not None


def test_a_topic_that_is_gone_is_forgotten() -> None:
    known = ClusterMap(["seed:1"])
    heard(known)
    heard(known, topics=())
    assert known.route("t") is None


def test_a_partition_that_does_not_exist_is_refused_with_those_that_do() -> None:
    known = ClusterMap(["seed:1"])
    heard(known)
    route = known.route("t")
    assert route is not None
    assert route.check(1) == 1
    for wrong in (2, -1, True, "0"):
        with pytest.raises(InvalidRequest, match="0 to 1"):
            route.check(wrong)  # type: ignore[arg-type]
