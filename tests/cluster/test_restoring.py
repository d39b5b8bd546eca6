"""Restores in the catalog: which topics, under which ids, and which producer ids are left alone."""

from typing import Any

import pytest

from quivermq.cluster import (
    ClusterRecord,
    View,
    delete_topic,
    export_catalog,
    finish_restore,
    grant_producers,
    restore_producers,
    restore_topic,
    restore_users,
)
from quivermq.cluster.restoring import PRODUCER_MARGIN
from quivermq.errors import InvalidRequest, TopicExists, TopicNotFound
from tests.cluster.catalogs import broker, edited, view_of, with_topic

OLD, FRESH = "0a" * 12, "0b" * 12
RECORD = {
    "id": OLD,
    "partitions": 2,
    "replication": 3,
    "settings": {"max_deliveries": 9, "of_another_build": 1},
    "starts": [0, 700],
}


def cluster(level: int = 2) -> View:
    view = view_of([broker(1), broker(2)])
    record = ClusterRecord("c1", 1, level, "0.3.0").to_json()
    return view.updated(2, {**view.values, "cluster": record})


def restored(view: View, record: dict[str, Any] | None = None, **changes: Any) -> View:
    given = {"backup": "b.1", "cluster_id": "c0", "fresh_id": FRESH, "partitions_max": 100}
    return edited(view, restore_topic(view, "orders", record or RECORD, **(given | changes)))


def test_a_topic_is_created_with_its_id_its_settings_and_the_starts_of_its_partitions() -> None:
    view = restored(cluster())
    topic = view.topics["orders"]
    assert (topic.id, topic.restoring, topic.replication) == (OLD, "b.1", 2)
    assert [placement.start for placement in topic.partitions] == [0, 700]
    assert topic.topic_settings.max_deliveries == 9
    assert topic.settings["of_another_build"] == 1
    # Once more: nothing to do, and from another backup it is refused.
    assert restored(view) is view
    with pytest.raises(TopicExists):
        restored(view, backup="b.2")


def test_a_restored_topic_is_opened_once_and_remembered() -> None:
    view = restored(cluster())
    view = edited(view, finish_restore(view, "orders"))
    assert not view.topics["orders"].restoring
    assert [placement.start for placement in view.topics["orders"].partitions] == [0, 700]
    assert finish_restore(view, "orders") is None
    assert restored(view) is view
    assert export_catalog(view)["restored"] == {"orders": "b.1"}
    with pytest.raises(TopicNotFound):
        finish_restore(view, "others")


def test_an_id_is_used_only_where_no_broker_can_have_a_log_of_it() -> None:
    assert restored(cluster(), cluster_id="c1").topics["orders"].id == FRESH
    assert restored(cluster(), cluster_id="").topics["orders"].id == FRESH
    view = restored(cluster())
    gone = edited(view, delete_topic(view, "orders"))
    assert restored(gone).topics["orders"].id == FRESH


def test_what_is_exported_can_be_restored() -> None:
    view = with_topic(cluster(), "orders", partitions=2, replication=2)
    exported = export_catalog(view)
    record = {**exported["topics"]["orders"], "starts": [5, 6]}
    topic = restored(cluster(), record).topics["orders"]
    assert topic.settings == view.topics["orders"].settings
    assert topic.group_idle_ms == view.topics["orders"].group_idle_ms
    # A topic that is being restored is no part of a backup.
    assert export_catalog(restored(cluster()))["topics"] == {}


@pytest.mark.parametrize(
    "change",
    [
        {"starts": None},
        {"starts": []},
        {"starts": [0] * 101},
        {"starts": [0, -1]},
        {"starts": [0, "x"]},
        {"settings": None},
        {"id": 7},
        {"id": "xyz"},
    ],
)
def test_a_record_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        restored(cluster(), RECORD | change)


def test_below_its_level_nothing_is_restored() -> None:
    for restore in (
        restored,
        lambda view: restore_producers(view, 5),
        lambda view: restore_users(view, {}),
    ):
        with pytest.raises(InvalidRequest, match="quiver cluster upgrade"):
            restore(cluster(level=1))


def test_ids_of_producers_are_granted_far_above_those_of_the_backup_from_then_on() -> None:
    view = cluster()
    edit, first = grant_producers(view, 1000)
    view = edited(view, edit)
    view = edited(view, restore_producers(view, 5_001))
    assert restore_producers(view, 5_001) is None
    edit, second = grant_producers(view, 1000)
    view = edited(view, edit)
    assert (first, second) == (1, 5_001 + PRODUCER_MARGIN)
    assert view.producer_floor == second
    for wrong in (None, 0, -1, True, "5", 1 << 63):
        with pytest.raises(InvalidRequest):
            restore_producers(view, wrong)


def test_users_that_cannot_be_are_refused() -> None:
    for users in (None, [], {"ann": None}, {"ann": {"name": "ann", "digest": "short"}}):
        with pytest.raises(InvalidRequest):
            restore_users(cluster(), users)
