"""Plans and edits: who gets what, and what the catalog becomes."""

import time
from collections import Counter
from collections.abc import Iterable
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quivermq.cluster import (
    BrokerRecord,
    Move,
    Placement,
    Topic,
    View,
    drain,
    grow,
    member_of,
    metadata_voters,
    node_of,
    rebalance,
    rebalance_leaders,
    replace,
    set_targets,
)
from quivermq.errors import InvalidRequest
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


def catalog(
    brokers: Iterable[BrokerRecord], groups: list[tuple[int, ...]], replication: int
) -> View:
    """One topic, whose partitions have these members."""
    topic = Topic("t", "0a" * 12, replication, {}, tuple(map(Placement, groups)))
    view = view_of(brokers)
    return view.updated(2, view.values | {topic.key: topic.to_json()})


@st.composite
def catalogs(
    draw: st.DrawFn, nodes_max: int = 6, partitions_max: int = 12, replication_max: int = 4
) -> View:
    """Brokers, some leaving, some with another number than their replicas, and any placement."""
    count = draw(st.integers(2, nodes_max))
    nodes = list(range(1, count + 1))
    states = draw(st.lists(st.sampled_from(["serving"] * 4 + ["leaving"]), min_size=count))
    brokers = [
        broker(node, draw(st.sampled_from([0, 0, 0, 1])), "serving" if node == 1 else state)
        for node, state in zip(nodes, states, strict=False)
    ]
    replication = draw(st.integers(1, min(replication_max, count)))
    most = min(replication + 1, count)
    group = st.lists(st.sampled_from(nodes), min_size=1, max_size=most, unique=True)
    groups = draw(st.lists(group.map(tuple), min_size=1, max_size=partitions_max))
    return catalog(brokers, groups, replication)


def copies(move: Move) -> int:
    """How many members have to be brought up to date."""
    return len(set(move.replicas) - set(move.old))


def fewest_copies(view: View) -> int:
    """By trying everything: what it takes to level the replicas."""
    nodes = [one.id for one in view.serving]
    members = {one.id: one.member for one in view.serving}
    best = 10**9
    choices = []
    for topic, _, placement in view.partitions():
        known = set(placement.replicas)
        size = min(topic.replication, len(nodes))
        choices.append(
            [
                (group, sum(members[n] not in known for n in group))
                for group in combinations(nodes, size)
            ]
        )
    for chosen in product(*choices):
        counts = Counter(node for group, _ in chosen for node in group)
        if max(counts[n] for n in nodes) - min(counts[n] for n in nodes) <= 1:
            best = min(best, sum(copies for _, copies in chosen))
    return best


@given(catalogs())
def test_a_rebalance_levels_replicas_and_leaders_and_is_then_done(view: View) -> None:
    moves = rebalance(view)
    assert moves == rebalance(View(view.version, view.values)), "another answer"
    after = moved(view, moves)
    nodes = [one.id for one in view.serving]
    members = {one.member for one in view.serving}
    for topic, _, placement in after.partitions():
        check_sound(placement)
        assert len(placement.replicas) == min(topic.replication, len(nodes))
        assert set(placement.replicas) <= members
    assert unevenness(replicas_by_node(after, nodes)) <= 1
    leaders = leaders_by_node(after, nodes)
    assert sum(leaders.values()) == len(after.topics["t"].partitions)
    assert rebalance(after) == [], "a second rebalance found something to do"


@given(st.integers(2, 6), st.integers(1, 20), st.integers(1, 3), st.integers(1, 4))
def test_after_brokers_join_leaders_are_level_too(
    count: int, partitions: int, replication: int, joining: int
) -> None:
    view = with_topic(
        view_of(broker(n) for n in range(1, count + 1)), "a", partitions, min(replication, count)
    )
    nodes = range(1, count + joining + 1)
    view = view.updated(9, view.values | {one.key: one.to_json() for one in map(broker, nodes)})
    after = moved(view, rebalance(view))
    assert unevenness(replicas_by_node(after, nodes)) <= 1
    assert unevenness(leaders_by_node(after, nodes)) <= 1


@settings(max_examples=200)
@given(catalogs(nodes_max=4, partitions_max=4, replication_max=3))
def test_a_rebalance_copies_no_more_than_it_must(view: View) -> None:
    assert sum(copies(move) for move in rebalance(view)) == fewest_copies(view)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40), st.integers(0, 5))
def test_only_the_surplus_is_moved(homes: list[int], joining: int) -> None:
    nodes = range(1, 6 + joining)
    view = catalog(map(broker, nodes), [(home,) for home in homes], 1)
    counts = replicas_by_node(view, nodes)
    least, more = divmod(len(homes), len(nodes))
    surplus = sum(max(0, n - least - (more > 0)) for n in counts.values())
    lack = sum(max(0, least - n) for n in counts.values())
    assert len([move for move in rebalance(view) if copies(move)]) == max(surplus, lack)


def test_partitions_on_their_way_are_counted_where_they_go_and_left_alone() -> None:
    view = catalog(map(broker, (1, 2)), [(1,), (1,), (1,), (1,)], 1)
    aimed = edited(view, set_targets(view, [Move("t", 0, (2,)), Move("t", 1, (2,))]))
    assert rebalance(aimed) == []
    assert rebalance(edited(view, set_targets(view, [Move("t", 0, (2,))])))[0].partition != 0


def test_replicas_on_brokers_that_are_gone_are_made_elsewhere() -> None:
    view = catalog(map(broker, (1, 2, 4)), [(1, 2, 3)], 3)
    assert rebalance(view) == [Move("t", 0, (1, 2, 4), (1, 2, 3))]
    short = catalog(map(broker, (1, 2, 4)), [(2,)], 3)
    assert rebalance(short) == [Move("t", 0, (2, 1, 4), (2,))]
    surplus = catalog(map(broker, (1, 2, 3)), [(1, 2, 3)], 2)
    assert [(len(m.replicas), copies(m)) for m in rebalance(surplus)] == [(2, 0)]


def test_of_too_many_replicas_those_go_that_need_no_copying() -> None:
    view = catalog(map(broker, (1, 2, 3)), [(3,), (3, 1), (1, 2)], 1)
    moves = rebalance(view)
    assert [(move.partition, move.replicas) for move in moves] == [(1, (1,)), (2, (2,))]


def test_a_leader_is_moved_only_if_no_follower_can_be() -> None:
    view = catalog(map(broker, (1, 2, 3)), [(2, 1), (1, 2)], 2)
    assert rebalance(view) == [Move("t", 1, (1, 3), (1, 2))]


def test_topics_are_spread_over_the_brokers_that_join() -> None:
    view = view_of(map(broker, (1, 2)))
    for name in "abcd":
        view = with_topic(view, name, 8, 1)
    view = view.updated(9, view.values | {broker(n).key: broker(n).to_json() for n in (3, 4)})
    moves = rebalance(view)
    assert len(moves) == 16
    assert Counter(move.topic for move in moves) == dict.fromkeys("abcd", 4)


@given(catalogs(), st.data())
def test_a_drain_empties_one_broker_and_touches_nothing_else(
    view: View, data: st.DataObject
) -> None:
    node = data.draw(st.sampled_from(sorted(view.brokers)))
    others = [one.id for one in view.serving if one.id != node]
    if not others:
        with pytest.raises(InvalidRequest, match="last one"):
            drain(view, node)
        return
    moves = drain(view, node)
    held = {hosted.partition for hosted in view.hosted(node)}
    assert {move.partition for move in moves} == held
    for move in moves:
        stay = {node_of(member) for member in move.old} - {node}
        nodes = {node_of(member) for member in move.replicas}
        assert stay <= nodes, "another replica was moved"
        assert len(nodes) == min(len(move.old), len(stay | set(others)))
    after = moved(view, moves)
    for _, _, placement in after.partitions():
        check_sound(placement)
    assert not list(after.hosted(node))


@given(st.integers(2, 7), st.integers(1, 30), st.integers(1, 4), st.integers(1, 7))
def test_after_a_drain_the_others_are_level(
    count: int, partitions: int, replication: int, node: int
) -> None:
    replication, node = min(replication, count), min(node, count)
    view = with_topic(view_of(broker(n) for n in range(1, count + 1)), "a", partitions, replication)
    before = {p: placement for _, p, placement in view.partitions()}
    moves = drain(view, node)
    after = moved(view, moves)
    others = [n for n in range(1, count + 1) if n != node]
    assert unevenness(replicas_by_node(after, others)) <= best_drain(view, node, others)
    for _, partition, placement in after.partitions():
        if node_of(before[partition].replicas[0]) != node:
            assert placement.replicas[0] == before[partition].replicas[0], "a leader moved"


def best_drain(view: View, node: int, others: list[int]) -> int:
    """How even a drain can be: exactly, where it is cheap to know."""
    held = [h.placement.replicas for h in view.hosted(node)]
    options = [[n for n in others if n not in replicas] or [0] for replicas in held]
    kept = replicas_by_node(view, others)
    if len(others) ** len(held) > 3_000:
        return 2
    return min(
        unevenness({n: kept[n] + Counter(chosen)[n] for n in others})
        for chosen in product(*options)
    )


def test_a_drain_shrinks_groups_where_brokers_are_too_few() -> None:
    view = catalog(map(broker, (1, 2, 3)), [(1, 2, 3), (2, 3, 1)], 3)
    found = [move.replicas for move in drain(view, 2)]
    assert found == [(1, 3), (3, 1)]
    with pytest.raises(InvalidRequest, match="no broker 9"):
        drain(view, 9)


def test_a_drain_also_redirects_what_was_on_its_way_to_the_broker() -> None:
    view = catalog(map(broker, (1, 2, 3)), [(1,)], 1)
    view = edited(view, set_targets(view, [Move("t", 0, (2,))]))
    assert drain(view, 2)[0].replicas in {(1,), (3,)}


def test_a_replaced_broker_takes_the_places_of_its_former_self() -> None:
    fresh = 1 << 16 | 2
    view = catalog([broker(1), broker(2, epoch=1), broker(3)], [(2, 1), (1, 3), (3, 2), (2,)], 2)
    moves = replace(view, 2, fresh)
    assert moves == [
        Move("t", 0, (fresh, 1), (2, 1)),
        Move("t", 2, (3, fresh), (3, 2)),
        Move("t", 3, (fresh,), (2,)),
    ]
    assert [move.keeps_majority for move in moves] == [False] * 3
    assert Move("t", 0, (fresh, 1, 3), (2, 1, 3)).keeps_majority
    assert replace(moved(view, moves), 2, fresh) == []


def test_a_replica_that_came_back_stays_where_it_is() -> None:
    back = {node: member_of(node, 0, stay=node) for node in (1, 2, 3, 4)}
    homes = [(4, 3), (3, 4), (2, 1), (1, 2)]
    view = catalog(map(broker, back), [(back[a], back[b]) for a, b in homes], 2)
    assert rebalance(view) == []


def test_a_topic_grows_where_there_is_room() -> None:
    view = catalog(map(broker, (1, 2, 3)), [(1,), (2,)], 1)
    assert [p.replicas for p in grow(view, view.topic("t"), 3)] == [(3,)]
    # A topic that lost replicas for lack of brokers can still grow.
    alone = catalog([broker(1)], [(1,)], 3)
    assert [p.replicas for p in grow(alone, alone.topic("t"), 2)] == [(1,)]


@given(catalogs(), st.data())
def test_leaders_are_levelled_by_transfers_to_replicas(view: View, data: st.DataObject) -> None:
    serving = [one.id for one in view.serving]
    leaders, led = {}, Counter()
    for topic, partition, placement in view.partitions():
        leader = data.draw(st.sampled_from([0, *map(node_of, placement.replicas)]))
        leaders[bytes.fromhex(topic.id) + partition.to_bytes(4, "big")] = leader
        if leader:
            led[partition] = leader
    moves = rebalance_leaders(view, leaders)
    for move in moves:
        placement = view.placement(move.topic, move.partition)
        assert move.to in map(node_of, placement.replicas)
        assert move.to in serving
        assert move.to != led[move.partition]
        led[move.partition] = move.to
    options = {
        partition: [
            n for n in map(node_of, view.placement("t", partition).replicas) if n in serving
        ]
        for partition in led
    }
    counts = {n: sum(1 for leader in led.values() if leader == n) for n in serving}
    for partition, choices in options.items():
        for other in choices:
            assert (
                counts.get(led[partition], 0) - counts[other] < 2 or led[partition] not in serving
            )
        if choices:
            assert led[partition] in choices


def test_leaders_go_only_to_brokers_that_are_alive() -> None:
    view = catalog(map(broker, (1, 2, 3)), [(1, 2, 3)] * 4, 3)
    leaders = {bytes.fromhex("0a" * 12) + n.to_bytes(4, "big"): 1 for n in range(4)}
    assert Counter(move.to for move in rebalance_leaders(view, leaders)) == {2: 1, 3: 1}
    alive = rebalance_leaders(view, leaders, alive={1, 3})
    assert Counter(move.to for move in alive) == {3: 2}


def test_the_voters_of_the_metadata_group_stay() -> None:
    view = view_of(map(broker, range(1, 8)))
    assert metadata_voters(view) == ((1, 2, 3, 4, 5), (6, 7))
    assert metadata_voters(view, {3, 4, 5, 6, 7}) == ((3, 4, 5, 6, 7), (1, 2))
    assert metadata_voters(view, {7, 6}) == ((1, 2, 3, 6, 7), (4, 5))
    leaving = view_of([broker(1, state="leaving"), broker(2, epoch=1), broker(3)])
    assert metadata_voters(leaving, {1, 2, 3}) == ((1 << 16 | 2, 3), (1,))


def test_plans_for_fifty_brokers_and_two_thousand_partitions_are_made_in_seconds() -> None:
    view = view_of(broker(node) for node in range(1, 26))
    for number in range(20):
        view = with_topic(view, f"t{number}", 100, 3)
    nodes = range(1, 51)
    view = view.updated(99, view.values | {one.key: one.to_json() for one in map(broker, nodes)})
    start = time.process_time()
    moves = rebalance(view)
    took = time.process_time() - start
    assert sum(copies(move) for move in moves) == 3_000
    after = moved(view, moves)
    assert unevenness(replicas_by_node(after, nodes)) <= 1
    assert unevenness(leaders_by_node(after, nodes)) <= 1
    start = time.process_time()
    drain(after, 50)
    leaders = {
        bytes.fromhex(topic.id) + partition.to_bytes(4, "big"): node_of(max(placement.replicas))
        for topic, partition, placement in after.partitions()
    }
    rebalance_leaders(after, leaders)
    assert took + time.process_time() - start < 2
