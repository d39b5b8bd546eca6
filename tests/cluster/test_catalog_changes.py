"""The differences of two catalogs as events: each thing that happened once, and nothing else."""

from dataclasses import replace
from typing import Any

from quivermq.cluster import (
    LEAVING,
    Enrolled,
    Move,
    StickyChanges,
    View,
    alter_topic,
    changes_between,
    delete_topic,
    set_broker_state,
    set_targets,
)
from quivermq.cluster.edits import finish_moves
from quivermq.cluster.records import ClusterRecord
from quivermq.cluster.sticky_edits import StickyName, regroup
from quivermq.events import KINDS
from quivermq.queue import TopicSettings
from tests.cluster.catalogs import broker, edited, view_of, with_topic


def told(before: View, after: View) -> list[tuple[Any, ...]]:
    """Kind, broker, topic, partition and group of each change."""
    found = list(changes_between(before, after))
    assert {change.kind for change in found} <= KINDS.keys()
    assert all(change.detail for change in found)
    return [(each.kind, each.broker, each.topic, each.partition, each.group) for each in found]


def put(view: View, record: Any) -> View:
    return view.updated(view.version + 1, {**view.values, record.key: record.to_json()})


def test_a_catalog_that_is_seen_for_the_first_time_tells_nothing() -> None:
    assert told(View(), with_topic(view_of([broker(1)]), "orders")) == []
    view = with_topic(view_of([broker(1)]), "orders")
    assert told(view, view.updated(view.version + 1, view.values)) == []


def test_brokers_join_start_leave_and_are_replaced() -> None:
    one = view_of([broker(1)])
    two = put(one, broker(2))
    assert told(one, two) == [("broker_joined", 2, None, None, None)]
    again = put(two, replace(broker(2), boot=2, life="02"))
    assert told(two, again) == [("broker_started", 2, None, None, None)]
    moved = put(again, replace(again.brokers[2], address="other:1"))
    assert told(again, moved) == []
    leaving = edited(again, set_broker_state(again, 2, LEAVING))
    assert told(again, leaving) == [("broker_leaving", 2, None, None, None)]
    assert told(two, put(two, broker(2, epoch=1))) == [("broker_replaced", 2, None, None, None)]
    gone = {key: value for key, value in leaving.values.items() if key != broker(2).key}
    assert told(leaving, leaving.updated(9, gone)) == [("broker_left", 2, None, None, None)]


def test_topics_are_created_altered_deleted_and_made_anew() -> None:
    empty = view_of([broker(1), broker(2)])
    made = with_topic(empty, "orders", partitions=2)
    assert told(empty, made) == [("topic_created", None, "orders", None, None)]
    settings = TopicSettings(max_deliveries=7)
    altered = edited(made, alter_topic(made, "orders", settings=settings))
    (change,) = changes_between(made, altered)
    assert change.kind == "topic_altered"
    assert "max_deliveries is 7" in change.detail
    larger = edited(altered, alter_topic(altered, "orders", partitions=5))
    (change,) = changes_between(altered, larger)
    assert "5 partitions" in change.detail
    gone = edited(larger, delete_topic(larger, "orders"))
    assert told(larger, gone) == [("topic_deleted", None, "orders", None, None)]
    other = with_topic(with_topic(gone, "first"), "orders")
    assert ("topic_deleted", None, "orders", None, None) in told(larger, other)
    assert ("topic_created", None, "orders", None, None) in told(larger, other)


def test_a_partition_moves_and_has_moved() -> None:
    view = with_topic(view_of([broker(1), broker(2)]), "orders", partitions=2)
    (held,) = view.topics["orders"].partitions[1].replicas
    other = 3 - held
    moving = edited(view, set_targets(view, [Move("orders", 1, (other,))]))
    assert told(view, moving) == [("partition_moving", None, "orders", 1, None)]
    moved = edited(moving, finish_moves(moving, [Move("orders", 1, (other,))]))
    (change,) = changes_between(moving, moved)
    assert change.kind == "partition_moved"
    assert change.detail == f"orders/1 is on brokers {other}"


def test_a_sticky_group_tells_who_came_and_went() -> None:
    view = with_topic(view_of([broker(1)]), "orders", partitions=2)

    def changed(view: View, **changes: Any) -> View:
        name = StickyName("orders", "g")
        return edited(view, regroup(view, {name: StickyChanges(**changes)}).edit)

    joined = changed(view, joins={7: Enrolled("worker-7", 10_000)})
    (change,) = changes_between(view, joined)
    assert (change.kind, change.topic, change.group) == ("group_rebalanced", "orders", "g")
    assert "1 member, worker-7 joined" in change.detail
    two = changed(joined, joins={8: Enrolled("worker-8", 10_000)})
    (change,) = changes_between(joined, two)
    assert "2 members, worker-8 joined, 1 partition to be handed over" in change.detail
    left = changed(two, leaves={7})
    (change,) = changes_between(two, left)
    assert "worker-7 left" in change.detail
    none = changed(left, leaves={8})
    (change,) = changes_between(left, none)
    assert change.detail == "the group has no members any more"


def test_a_raised_feature_level_is_told() -> None:
    low = View(1, {"cluster": ClusterRecord("ab", 1, level=1).to_json()})
    high = low.updated(2, {"cluster": ClusterRecord("ab", 1, level=2).to_json()})
    assert told(low, high) == [("level_raised", None, None, None, None)]
    assert told(high, high.updated(3, high.values)) == []
