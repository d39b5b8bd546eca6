"""Which feature level a cluster may be raised to, and what the catalog says of it."""

import json
from dataclasses import replace

import pytest

from quivermq.cluster import (
    FEATURE_LEVEL_MAX,
    OWN_LEVELS,
    Edit,
    Levels,
    View,
    alter_topic,
    found_cluster,
    plan_upgrade,
    raise_level,
    register_broker,
    why_unfit,
)
from quivermq.cluster.edits import finish_moves, set_broker_state, set_targets
from quivermq.cluster.plan import Move
from quivermq.cluster.records import CLUSTER_KEY
from quivermq.errors import InvalidRequest, UnsupportedFormat
from quivermq.queue import TopicSettings
from tests.cluster.catalogs import broker, edited, with_topic

LATER = Levels(1, OWN_LEVELS.high + 1)


@pytest.fixture
def view() -> View:
    return edited(View(), found_cluster("c1", 7, map(broker, (1, 2, 3))))


def with_levels(view: View, node: int, levels: Levels, version: str) -> View:
    """The broker was started with another release."""
    found = replace(view.broker(node), level_min=levels.low, level_max=levels.high, version=version)
    return edited(view, Edit({found.key: found.to_json()}))


def at_level(view: View, level: int, release: str = "9.9") -> View:
    raised = {**view.values[CLUSTER_KEY], "level": level, "release": release}
    return edited(view, Edit({CLUSTER_KEY: raised}))


def register(view: View, levels: Levels, version: str = "0.2.0") -> Edit | None:
    known = view.broker(2)
    return register_broker(
        view,
        id=2,
        directory_id=known.directory_id,
        boot=2,
        lives=["01", "02"],
        address=known.address,
        peer_address=known.peer_address,
        version=version,
        cluster_id="c1",
        levels=levels,
    )


def test_a_new_cluster_has_the_highest_level_of_the_release_that_founds_it(view: View) -> None:
    assert view.cluster is not None
    assert view.cluster.level == FEATURE_LEVEL_MAX
    assert view.cluster.release == FEATURE_LEVEL_MAX.release


def test_a_broker_that_starts_says_which_levels_its_release_knows(view: View) -> None:
    after = edited(view, register(view, LATER, "0.9"))
    assert after.broker(2).levels == LATER
    assert after.broker(2).version == "0.9"
    back = edited(after, register(after, OWN_LEVELS))
    assert back.broker(2).levels == OWN_LEVELS


def test_a_release_that_lacks_the_level_is_refused_with_the_one_that_is_needed(view: View) -> None:
    view = at_level(view, 4, "0.7.0")
    for levels in (Levels(1, 3), Levels(0, 0)):
        with pytest.raises(UnsupportedFormat, match=r"level 4.*0\.2\.0.*0\.7\.0 or later"):
            register(view, levels)
    with pytest.raises(UnsupportedFormat, match=r"needs at least 5.*quiver cluster upgrade"):
        register(view, Levels(5, 6))
    assert register(view, Levels(4, 4)) is not None
    assert register(view, Levels(1, 9)) is not None


def test_a_level_that_one_broker_lacks_is_refused_and_says_which(view: View) -> None:
    assert raise_level(view) is None
    for node in (1, 3):
        view = with_levels(view, node, LATER, "0.9.1")
    for to in (0, LATER.high):
        with pytest.raises(InvalidRequest, match=r"0\.9\.1 or later.*broker 2 runs 1,") as caught:
            plan_upgrade(view, to)
        assert "broker 1" not in str(caught.value)
    with pytest.raises(InvalidRequest, match="broker 1 runs"):
        plan_upgrade(view, LATER.high + 1)
    for node, levels in ((1, Levels(1, 9)), (2, LATER), (3, Levels(1, 9))):
        view = with_levels(view, node, levels, "0.9.1")
    with pytest.raises(InvalidRequest, match=f"--to {LATER.high} raises"):
        plan_upgrade(view)


def test_a_level_is_raised_by_one_edit_once_every_broker_knows_it(view: View) -> None:
    view = at_level(view, 1, "0.2.0")
    assert plan_upgrade(view) == plan_upgrade(view, 2) == (1, 2)
    assert [level.release for level in plan_upgrade(view).levels] == ["0.3.0"]
    raised = edited(view, raise_level(view))
    assert raised.cluster is not None
    assert (raised.cluster.level, raised.cluster.release) == (2, "0.3.0")
    assert raised.cluster.id == "c1"
    assert raise_level(raised) is None
    # Whoever comes back with the release before it is too late.
    with pytest.raises(UnsupportedFormat, match=r"0\.3\.0 or later"):
        register(raised, Levels(1, 1))
    assert edited(view, register(view, Levels(1, 1))).broker(2).levels == Levels(1, 1)


@pytest.mark.parametrize("idle_ms", [1, 999, 10**15, 2**64 - 1])
def test_a_time_that_no_group_can_be_idle_for_is_refused(view: View, idle_ms: int) -> None:
    view = with_topic(view, "orders")
    with pytest.raises(InvalidRequest, match="or 0 for no limit"):
        alter_topic(view, "orders", leader_settings={"group_idle_ms": idle_ms})
    assert edited(view, alter_topic(view, "orders", leader_settings={"group_idle_ms": 0})).topic(
        "orders"
    ) != view.topic("orders")


def test_what_belongs_to_a_level_is_not_written_below_it(view: View) -> None:
    view = with_topic(at_level(view, 1), "orders")
    with pytest.raises(InvalidRequest, match="quiver cluster upgrade"):
        alter_topic(view, "orders", leader_settings={"group_idle_ms": 5_000})
    assert "group_idle_ms" not in view.values["topic/orders"]


def test_a_level_is_never_lowered(view: View) -> None:
    view = at_level(view, OWN_LEVELS.high + 1)
    with pytest.raises(InvalidRequest, match="never lowered"):
        plan_upgrade(view, OWN_LEVELS.high)


def test_what_only_later_releases_know_survives_every_edit_of_an_earlier_one(view: View) -> None:
    view = with_topic(view, "orders", partitions=2, replication=2)
    later = json.loads(json.dumps(view.values))
    for key in ("topic/orders", CLUSTER_KEY, "broker/3"):
        later[key]["later"] = {"a": 1}
    later["topic/orders"]["settings"]["later"] = 5
    later["topic/orders"]["partitions"][1]["later"] = "x"
    later["of a later release"] = {"b": 2}
    view = view.updated(view.version + 1, later)
    view = edited(view, alter_topic(view, "orders", settings=TopicSettings(retention_ms=9)))
    view = edited(view, alter_topic(view, "orders", partitions=3))
    move = Move("orders", 1, (2, 3))
    view = edited(view, set_targets(view, [move]))
    view = edited(view, finish_moves(view, [move]))
    view = edited(view, set_broker_state(view, 3, "leaving"))
    topic = view.values["topic/orders"]
    assert (topic["later"], topic["settings"]["later"]) == ({"a": 1}, 5)
    assert topic["partitions"][1]["later"] == "x"
    assert view.values["broker/3"]["later"] == {"a": 1}
    assert view.values[CLUSTER_KEY]["later"] == {"a": 1}
    assert view.values["of a later release"] == {"b": 2}


def test_a_catalog_of_a_build_before_the_first_release_is_refused(view: View) -> None:
    old = {key: dict(value) for key, value in view.values.items()}
    del old[CLUSTER_KEY]["level"]
    with pytest.raises(UnsupportedFormat, match=r"before release 0\.2\.0"):
        view.updated(view.version + 1, old)


def test_the_brokers_that_may_take_part_are_told_in_words() -> None:
    assert why_unfit(1, "0.2.0", OWN_LEVELS, "0.2.0") == ""
    assert str(Levels(1, 1)) == "feature level 1"
    assert str(Levels(1, 2)) == "feature levels 1 to 2"
    assert str(Levels(0, 0)) == "no feature level"
