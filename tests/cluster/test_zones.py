"""Replicas are kept apart: in different zones, and on different machines."""

import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations

import pytest

from quivermq.cluster import (
    BrokerRecord,
    FaultDomains,
    Placement,
    Topic,
    View,
    alter_topic,
    drain,
    metadata_voters,
    node_of,
    rebalance,
    rebalance_leaders,
    register_broker,
)
from quivermq.cluster.fault_domains import NO_CHANGE
from quivermq.cluster.records import partition_id
from tests.cluster.catalogs import (
    broker,
    check_sound,
    edited,
    leaders_by_node,
    moved,
    replicas_by_node,
    unevenness,
    view_of,
    with_topic,
)

SEEDS = range(40)
ZONES = ("a", "b", "c", "d")


def random_brokers(chance: random.Random, *, level: bool = False) -> list[BrokerRecord]:
    """Up to 12 brokers in up to 4 zones, some of them on machines with others; `level`: as many in
    each zone, on machines of their own."""
    zones = ZONES[: chance.randint(1, 4)]
    if level:
        each = chance.randint(1, 3)
        return [broker(n + 1, zone=zones[n % len(zones)]) for n in range(each * len(zones))]
    found = []
    for node in range(1, chance.randint(1, 12) + 1):
        zone = chance.choice(zones)
        machine = f"{zone}{chance.randint(1, 3)}" if chance.random() < 0.7 else ""
        found.append(broker(node, zone=zone, machine=machine))
    return found


def squares(counts: Counter[object]) -> int:
    return sum(count * count for count in counts.values())


def spread_of(brokers: dict[int, BrokerRecord], nodes: Iterable[int]) -> tuple[int, int]:
    """How crowded zones and machines are, as plainly as it can be said."""
    nodes = list(nodes)
    zones = Counter[object](brokers[node].zone for node in nodes)
    machines = Counter[object]((brokers[node].zone, brokers[node].machine) for node in nodes)
    return squares(zones), squares(machines)


@lru_cache(maxsize=100)
def _best_spread(brokers: tuple[BrokerRecord, ...], count: int) -> tuple[int, int]:
    by_id = {one.id: one for one in brokers}
    return min(spread_of(by_id, nodes) for nodes in combinations(by_id, count))


def best_spread(brokers: dict[int, BrokerRecord], count: int) -> tuple[int, int]:
    """By trying everything."""
    return _best_spread(tuple(brokers.values()), count)


def held_by(placement: Placement) -> list[int]:
    return [node_of(member) for member in placement.planned]


def check_apart(view: View) -> None:
    """Never two replicas in one zone while another one has room, nor on one machine of a zone."""
    brokers = {one.id: one for one in view.serving}
    for _, _, placement in view.partitions():
        check_sound(placement)
        nodes = held_by(placement)
        assert spread_of(brokers, nodes) == best_spread(brokers, len(nodes)), nodes
        in_zones = Counter(brokers[node].zone for node in nodes)
        for zone, count in in_zones.items():
            for one in brokers.values():
                if one.zone != zone and one.id not in nodes:
                    assert count <= in_zones[one.zone] + 1


def even_as_can_be(view: View) -> None:
    """No single move that keeps replicas apart makes loads more even."""
    loads = replicas_by_node(view, [one.id for one in view.serving])
    domains = FaultDomains(view.serving)
    for _, _, placement in view.partitions():
        nodes = held_by(placement)
        for source in nodes:
            for to in loads:
                if to not in nodes and loads[source] - loads[to] > 1:
                    assert domains.change(nodes, source, to) > NO_CHANGE


@pytest.mark.parametrize("seed", SEEDS)
def test_new_topics_and_added_partitions_are_apart_and_even(seed: int) -> None:
    chance = random.Random(seed)
    brokers = random_brokers(chance, level=seed % 2 == 0)
    view = view_of(brokers)
    nodes = list(view.brokers)
    for number in range(chance.randint(1, 4)):
        replication = chance.randint(1, min(5, len(nodes)))
        view = with_topic(view, f"t{number}", chance.randint(1, 9), replication)
        check_apart(view)
    name = chance.choice(list(view.topics))
    count = len(view.topic(name).partitions) + chance.randint(1, 5)
    view = edited(view, alter_topic(view, name, partitions=count))
    check_apart(view)
    if seed % 2 == 0:
        assert unevenness(replicas_by_node(view, nodes)) <= 1
        assert unevenness(leaders_by_node(view, nodes)) <= 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rebalance_brings_replicas_apart_evens_them_and_is_then_done(seed: int) -> None:
    chance = random.Random(seed)
    brokers = random_brokers(chance, level=seed % 2 == 0)
    nodes = [one.id for one in brokers]
    replication = chance.randint(1, min(4, len(nodes)))
    groups = [tuple(chance.sample(nodes, replication)) for _ in range(chance.randint(1, 30))]
    topic = Topic("t", "0a" * 12, replication, {}, tuple(map(Placement, groups)))
    view = view_of(brokers)
    view = view.updated(2, view.values | {topic.key: topic.to_json()})
    moves = rebalance(view)
    assert moves == rebalance(View(view.version, view.values)), "another answer"
    after = moved(view, moves)
    check_apart(after)
    even_as_can_be(after)
    assert rebalance(after) == [], "a second rebalance found something to do"
    if seed % 2 == 0:
        assert unevenness(replicas_by_node(after, nodes)) <= 1
    leaders = {
        partition_id(topic.id, number): node_of(placement.replicas[-1])
        for _, number, placement in after.partitions()
    }
    assert all(move.to in nodes for move in rebalance_leaders(after, leaders))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_that_leaves_hands_its_replicas_to_where_they_are_apart(seed: int) -> None:
    chance = random.Random(seed)
    brokers = random_brokers(chance)
    if len(brokers) < 2:
        brokers.append(broker(13, zone="b"))
    view = view_of(brokers)
    replication = chance.randint(1, min(4, len(brokers) - 1))
    view = with_topic(view, "t", chance.randint(1, 20), replication)
    node = chance.choice(list(view.brokers))
    others = {one.id: one for one in brokers if one.id != node}
    for move in drain(view, node):
        stay = [node_of(member) for member in move.old if node_of(member) != node]
        best = min(spread_of(others, [*stay, to]) for to in others if to not in stay)
        assert spread_of(others, map(node_of, move.replicas)) == best


def test_zones_that_are_told_later_count_with_the_next_rebalance() -> None:
    view = with_topic(view_of(map(broker, range(1, 7))), "orders", 12, 3)
    zoned = {
        one.key: one.to_json()
        for one in (broker(node, zone="abc"[(node - 1) // 2]) for node in range(1, 7))
    }
    view = view.updated(9, view.values | zoned)
    after = moved(view, rebalance(view))
    check_apart(after)
    for _, _, placement in after.partitions():
        assert len({after.brokers[node].zone for node in held_by(placement)}) == 3
    assert unevenness(replicas_by_node(after, range(1, 7))) == 0
    assert unevenness(leaders_by_node(after, range(1, 7))) == 0


def test_a_zone_with_few_brokers_holds_as_much_as_it_must() -> None:
    brokers = [broker(1, zone="a"), *(broker(node, zone="b") for node in (2, 3, 4, 5))]
    view = with_topic(view_of(brokers), "orders", 40, 2)
    assert replicas_by_node(view, range(1, 6)) == {1: 40, 2: 10, 3: 10, 4: 10, 5: 10}
    assert leaders_by_node(view, range(1, 6)) == dict.fromkeys(range(1, 6), 8)
    assert rebalance(view) == []


def test_workers_of_one_machine_are_never_the_only_replicas_while_there_are_others() -> None:
    brokers = [broker(node, machine=f"m{(node + 1) // 2}") for node in range(1, 7)]
    view = with_topic(view_of(brokers), "orders", 30, 2)
    for _, _, placement in view.partitions():
        assert len({view.brokers[node].machine for node in held_by(placement)}) == 2
    assert unevenness(replicas_by_node(view, range(1, 7))) == 0
    alone = with_topic(view_of(brokers[:2]), "orders", 3, 2)
    assert {frozenset(held_by(one)) for _, _, one in alone.partitions()} == {frozenset({1, 2})}


def test_of_replicas_that_are_too_many_those_go_that_share_a_zone() -> None:
    brokers = [broker(1, zone="a"), broker(2, zone="b"), broker(3, zone="a"), broker(4, zone="c")]
    topic = Topic("t", "0a" * 12, 3, {}, (Placement((1, 2, 3, 4)),))
    view = view_of(brokers)
    view = view.updated(2, view.values | {topic.key: topic.to_json()})
    (move,) = rebalance(view)
    assert set(move.replicas) in ({1, 2, 4}, {3, 2, 4})


def voters_of(brokers: Sequence[BrokerRecord], current: Iterable[int] = ()) -> set[int]:
    return {node_of(member) for member in metadata_voters(view_of(brokers), set(current))[0]}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_voters_of_the_metadata_are_apart_and_then_stay(seed: int) -> None:
    chance = random.Random(seed)
    brokers = random_brokers(chance)
    by_id = {one.id: one for one in brokers}
    current = chance.sample(list(by_id), min(3, len(brokers)))
    voters = voters_of(brokers, current)
    assert spread_of(by_id, voters) == best_spread(by_id, len(voters))
    assert voters_of(brokers, voters) == voters


def test_a_broker_registers_with_its_zone_and_an_earlier_one_without() -> None:
    view = view_of([broker(1)])
    known = view.broker(1)
    told = {
        "id": 1,
        "directory_id": known.directory_id,
        "boot": 2,
        "lives": ("01", "02"),
        "address": known.address,
        "peer_address": known.peer_address,
        "version": "1",
    }
    after = edited(view, register_broker(view, **told, zone="eu-1a"))
    assert (after.broker(1).zone, after.broker(1).machine) == ("eu-1a", "host1")
    earlier = edited(after, register_broker(after, **told))
    assert "zone" not in earlier.broker(1).to_json(), "as earlier releases write it"


def test_plans_for_fifty_brokers_in_three_zones_are_made_in_seconds() -> None:
    view = view_of(broker(node, zone="abc"[node % 3]) for node in range(1, 26))
    for number in range(20):
        view = with_topic(view, f"t{number}", 100, 3)
    more = [broker(node, zone="abc"[node % 3]) for node in range(1, 51)]
    view = view.updated(99, view.values | {one.key: one.to_json() for one in more})
    began = time.process_time()
    moves = rebalance(view)
    drain(view, 25)
    assert time.process_time() - began < 10
    after = moved(view, moves)
    for zone in "abc":
        nodes = [one.id for one in more if one.zone == zone]
        assert unevenness(replicas_by_node(after, nodes)) <= 1
