"""Where the partitions of topics go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.cluster import BrokerLoad, load_of, node_of, place
from quivermq.errors import InvalidRequest
from tests.cluster.catalogs import (
    broker,
    check_sound,
    leaders_by_node,
    replicas_by_node,
    unevenness,
    view_of,
    with_topic,
)

TOPICS = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9)), max_size=12)


@given(st.integers(1, 9), TOPICS)
def test_replicas_and_leaders_are_level_after_every_topic(
    count: int, topics: list[tuple[int, int]]
) -> None:
    nodes = range(1, count + 1)
    view = view_of(broker(node) for node in nodes)
    for number, (partitions, replication) in enumerate(topics):
        view = with_topic(view, f"t{number}", partitions, min(replication, count))
        assert unevenness(replicas_by_node(view, nodes)) <= 1
        assert unevenness(leaders_by_node(view, nodes)) <= 1
    for topic, _, placement in view.partitions():
        check_sound(placement)
        assert len(placement.replicas) == topic.replication
        assert placement.founders == placement.replicas


def test_single_partitions_do_not_all_start_at_the_first_broker() -> None:
    brokers = [broker(node) for node in (1, 2, 3)]
    firsts = {
        place(brokers, BrokerLoad(), partitions=1, replication=1, dice=dice)[0].replicas[0]
        for dice in range(3)
    }
    assert firsts == {1, 2, 3}


def test_the_same_question_has_the_same_answer() -> None:
    brokers = [broker(node) for node in (3, 1, 2, 7)]
    answers = {
        tuple(place(order, BrokerLoad(), partitions=9, replication=2, dice=5))
        for order in (brokers, brokers[::-1])
    }
    assert len(answers) == 1


def test_members_are_those_of_the_brokers_and_a_leaving_broker_gets_nothing() -> None:
    brokers = [broker(1, epoch=4), broker(2, state="leaving"), broker(3)]
    found = place(brokers, BrokerLoad(), partitions=4, replication=2)
    assert {member for one in found for member in one.replicas} == {4 << 16 | 1, 3}
    with pytest.raises(InvalidRequest, match="2 brokers can"):
        place(brokers, BrokerLoad(), partitions=1, replication=3)
    with pytest.raises(InvalidRequest, match="0 brokers can"):
        place(brokers[1:2], BrokerLoad(), partitions=1, replication=1)
    with pytest.raises(InvalidRequest, match="replication is 0"):
        place(brokers, BrokerLoad(), partitions=1, replication=0)


def test_an_empty_broker_is_used_at_once_and_does_not_lead_everything() -> None:
    view = with_topic(view_of(broker(node) for node in (1, 2, 3)), "old", 90, 2)
    brokers = [*view.brokers.values(), broker(4)]
    single = place(brokers, load_of(view), partitions=1, replication=1)
    assert single[0].replicas == (4,)
    found = place(brokers, load_of(view), partitions=12, replication=2)
    leads = [node_of(one.replicas[0]) for one in found]
    assert 12 / 4 < leads.count(4) <= 2 * 12 / 4
    assert len(set(leads)) == 4
