"""Edits of the catalog: topics, brokers, moves; and which brokers are let in."""

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.cluster import (
    Edit,
    Level,
    Move,
    Placement,
    Topic,
    View,
    alter_topic,
    create_topic,
    delete_topic,
    drain,
    epoch_of,
    finish_moves,
    found_cluster,
    grant_producers,
    judge,
    member_of,
    node_of,
    rebalance,
    register_broker,
    remove_broker,
    replace_broker,
    set_broker_state,
    set_targets,
    start_rebalance,
)
from quivermq.cluster import replace as replacing
from quivermq.errors import Forbidden, InvalidRequest, TopicExists, TopicNotFound
from quivermq.queue import TopicSettings
from tests.cluster.catalogs import broker, edited, moved, view_of, with_topic

ID = "0a" * 12
OURS = "c1"


@pytest.fixture
def view() -> View:
    return edited(View(), found_cluster(OURS, 7, map(broker, (1, 2, 3))))


def test_a_founded_cluster_knows_itself_and_its_brokers(view: View) -> None:
    assert view.cluster is not None
    assert (view.cluster.id, view.cluster.created_ms) == (OURS, 7)
    assert list(view.brokers) == [1, 2, 3]


def test_producer_ids_are_granted_once(view: View) -> None:
    edit, first = grant_producers(view, 10)
    later, second = grant_producers(edited(view, edit))
    assert (first, second) == (1, 11)
    assert later.put == {"producers": {"next": 12}}


def test_creating_the_same_topic_again_changes_nothing(view: View) -> None:
    settings = TopicSettings(retention_ms=5)

    def create(view: View, **changes: object) -> Edit | None:
        wanted = {"partitions": 4, "replication": 2, "settings": settings, "topic_id": ID}
        return create_topic(view, "a", **{**wanted, **changes})  # type: ignore[arg-type]

    view = edited(view, create(view))
    topic = view.topic("a")
    assert (topic.id, len(topic.partitions), topic.replication) == (ID, 4, 2)
    assert topic.topic_settings == settings
    assert create(view, topic_id="0b" * 12) is None
    assert create(view, partitions=0, replication=0) is None
    for other, says in (
        ({"partitions": 5}, "4 partitions, not 5"),
        ({"replication": 3}, "replication 2, not 3"),
        ({"settings": TopicSettings(retention_ms=6)}, "retention_ms 5, not 6"),
    ):
        with pytest.raises(TopicExists, match=says):
            create(view, **other)


def test_a_topic_without_wishes_gets_the_defaults(view: View) -> None:
    view = edited(view, create_topic(view, "a", topic_id=ID, default_partitions=2))
    assert (len(view.topic("a").partitions), view.topic("a").replication) == (2, 3)
    one = view_of([broker(1)])
    assert edited(one, create_topic(one, "a", topic_id=ID)).topic("a").replication == 1


@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        ("a/b", {}, "no topic name"),
        ("_quiver", {}, "reserved"),
        ("a", {"partitions": 11}, "1 to 10 partitions, not 11"),
        ("a", {"partitions": -1}, "1 to 10 partitions, not -1"),
        ("a", {"replication": 4}, "replication is 4, and 3 brokers"),
        ("a", {"replication": -1}, "replication is -1"),
        ("a", {"settings": TopicSettings(retention_ms=-1)}, "retention_ms"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(
    view: View, name: str, wrong: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        create_topic(view, name, topic_id=ID, partitions_max=10, **wrong)  # type: ignore[arg-type]


def test_a_name_that_differs_in_case_only_is_refused_while_the_other_exists(view: View) -> None:
    view = edited(view, create_topic(view, "Orders", topic_id=ID))
    for name in ("orders", "ORDERS"):
        with pytest.raises(InvalidRequest, match="the existing 'Orders' in upper and lower case"):
            create_topic(view, name, topic_id=ID)
    assert create_topic(view, "Orders", topic_id=ID) is None
    assert create_topic(view, "orders2", topic_id=ID) is not None
    assert create_topic(edited(view, delete_topic(view, "Orders")), "orders", topic_id=ID)


def test_a_cluster_without_serving_brokers_takes_no_topic() -> None:
    with pytest.raises(InvalidRequest, match="0 brokers"):
        create_topic(View(), "a", topic_id=ID)


def test_altering_keeps_what_is_there(view: View) -> None:
    view = with_topic(view, "a", 2, 3)
    before = view.topic("a")
    values = json.loads(json.dumps(view.values))
    values["topic/a"]["settings"]["of a later release"] = 1
    view = view.updated(5, values)
    assert alter_topic(view, "a") is None
    assert alter_topic(view, "a", partitions=2, replication=3) is None
    settings = TopicSettings(retention_bytes=9)
    after = edited(view, alter_topic(view, "a", partitions=5, settings=settings)).topic("a")
    assert after.partitions[:2] == before.partitions
    assert len(after.partitions) == 5
    assert after.topic_settings == settings
    assert after.settings["of a later release"] == 1
    assert edited(view, alter_topic(view, "a", replication=1)).topic("a").replication == 1
    with pytest.raises(InvalidRequest, match="fewer"):
        alter_topic(view, "a", partitions=1)
    with pytest.raises(InvalidRequest, match="1 to 4"):
        alter_topic(view, "a", partitions=5, partitions_max=4)
    with pytest.raises(TopicNotFound):
        alter_topic(view, "b", partitions=3)


def test_a_deleted_topic_is_gone(view: View) -> None:
    view = with_topic(view, "a")
    assert delete_topic(view, "a") == Edit(delete=["topic/a"])
    with pytest.raises(TopicNotFound):
        delete_topic(edited(view, delete_topic(view, "a")), "a")


def moving(view: View) -> View:
    topic = Topic("a", ID, 2, {}, (Placement((1, 2), (1, 2)), Placement((2, 3), (2, 3))))
    return view.updated(5, view.values | {topic.key: topic.to_json()})


def test_a_move_has_a_target_until_it_is_done_and_then_no_founders(view: View) -> None:
    view = moving(view)
    move = Move("a", 0, (3, 2))
    aimed = edited(view, set_targets(view, [move]))
    assert aimed.placement("a", 0) == Placement((1, 2), (1, 2), (3, 2))
    assert aimed.placement("a", 1) == view.placement("a", 1)
    done = edited(aimed, finish_moves(aimed, [move]))
    assert done.placement("a", 0) == Placement((3, 2), moves=1)
    assert finish_moves(aimed, [Move("a", 0, (1, 3))]) is None, "it aims elsewhere"
    assert finish_moves(aimed, [Move("a", 2, (1,)), Move("b", 0, (1,))]) is None, "they are gone"
    assert finish_moves(view, [move]) is None, "nothing moves"
    assert set_targets(aimed, [move]) is None, "it moves there already"


def test_another_order_is_in_force_at_once_and_keeps_the_founders(view: View) -> None:
    view = moving(view)
    edit = set_targets(view, [Move("a", 0, (2, 1)), Move("a", 1, (2, 3))])
    assert edited(view, edit).placement("a", 0) == Placement((2, 1), (1, 2))
    assert set_targets(view, []) is None


def test_a_move_that_cannot_be_is_refused(view: View) -> None:
    view = moving(view)
    for replicas in ((), (1, 1 << 16 | 1)):
        with pytest.raises(InvalidRequest, match="different brokers"):
            set_targets(view, [Move("a", 0, replicas)])
    with pytest.raises(InvalidRequest, match="partitions 0 to 1"):
        set_targets(view, [Move("a", 2, (1,))])


def register(view: View, **changes: object) -> Edit | None:
    known = broker(2)
    says = {
        "id": 2,
        "directory_id": known.directory_id,
        "boot": 1,
        "lives": ["01"],
        "address": known.address,
        "peer_address": known.peer_address,
        "version": "1",
        "cluster_id": OURS,
    }
    return register_broker(view, **{**says, **changes})  # type: ignore[arg-type]


def test_a_broker_that_starts_again_brings_its_addresses_up_to_date(view: View) -> None:
    assert register(view) is None
    view = edited(view, set_broker_state(view, 2, "leaving"))
    after = edited(view, register(view, boot=2, lives=["01", "02"], address="elsewhere:1")).brokers[
        2
    ]
    assert (after.boot, after.address, after.state) == (2, "elsewhere:1", "leaving")
    assert after.member == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lives": ["0a"]}, "old copy.*cluster replace 2"),
        ({"directory_id": "ff"}, "another data directory.*cluster replace 2"),
        (
            {"directory_id": "ff", "joining": True, "cluster_id": ""},
            "another --node-id, like 4; .*cluster replace 2",
        ),
        ({"cluster_id": "c2"}, "belongs to cluster c2, this is cluster c1"),
        ({"directory_id": broker(3).directory_id}, "that of broker 3"),
        ({"id": 9, "directory_id": "ff"}, "--join"),
        ({"id": 9, "joining": True}, "that of broker 2"),
    ],
)
def test_a_directory_that_is_not_the_brokers_own_is_refused(
    view: View, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(Forbidden, match=says):
        register(view, **changes)


@given(st.lists(st.booleans(), max_size=8), st.integers(0, 9), st.integers(1, 4))
def test_a_copy_that_missed_a_registered_start_is_refused(
    registers: list[bool], copied_at: int, restarts: int
) -> None:
    """A directory is started again and again, registering or not; a copy is taken on the way, and
    started later, any number of times."""
    lives, registered, copy = ["00"], "00", ["00"]
    for number, is_registered in enumerate(registers, 1):
        lives.append(f"{number:02x}")
        registered = lives[-1] if is_registered else registered
        copy = list(lives) if number <= copied_at else copy
    view = View(1, {"broker/1": broker(1).to_json() | {"life": registered}})
    judge(view, 1, broker(1).directory_id, lives, "")
    restarted = [*copy, *(f"a{number}" for number in range(restarts))]
    if registered in copy:
        judge(view, 1, broker(1).directory_id, restarted, "")
    else:
        with pytest.raises(Forbidden, match="old copy"):
            judge(view, 1, broker(1).directory_id, restarted, "")


def test_a_replaced_broker_comes_back_empty_and_under_a_higher_number(view: View) -> None:
    view = edited(view, replace_broker(view, 2))
    assert view.brokers[2].member == 1 << 16 | 2
    with pytest.raises(Forbidden, match="is being replaced"):
        register(view, boot=9)
    view = edited(view, register(view, directory_id="ff", joining=True, cluster_id=""))
    assert (view.brokers[2].directory_id, view.brokers[2].member) == ("ff", 1 << 16 | 2)
    with pytest.raises(Forbidden, match="another data directory"):
        register(view, boot=9)
    assert edited(view, replace_broker(view, 2)).brokers[2].member == 2 << 16 | 2


def test_the_number_of_a_removed_broker_is_never_given_again(view: View) -> None:
    for epoch in (1, 2):
        view = edited(view, remove_broker(view, 2))
        assert 2 not in view.brokers
        view = edited(view, register(view, joining=True, cluster_id=""))
        assert view.brokers[2].member == epoch << 16 | 2


def test_a_broker_that_holds_something_is_removed_by_force_only(view: View) -> None:
    view = moving(view)
    with pytest.raises(InvalidRequest, match="holds replicas of 2 partitions"):
        remove_broker(view, 2)
    assert 2 not in edited(view, remove_broker(view, 2, force=True)).brokers


def test_the_last_serving_broker_cannot_leave(view: View) -> None:
    for node in (1, 2):
        view = edited(view, set_broker_state(view, node, "leaving"))
    assert set_broker_state(view, 2, "leaving") is None
    with pytest.raises(InvalidRequest, match="last one"):
        set_broker_state(view, 3, "leaving")
    assert [b.id for b in edited(view, set_broker_state(view, 2, "serving")).serving] == [2, 3]


@pytest.mark.parametrize(
    "wrong",
    [{"id": 0}, {"id": 65_536}, {"directory_id": "xyz"}, {"address": "x" * 1_001}, {"boot": -1}],
)
def test_a_broker_that_cannot_be_is_not_written(view: View, wrong: dict[str, object]) -> None:
    joining = {"id": 9, "directory_id": "ff", "joining": True, "cluster_id": ""}
    with pytest.raises(InvalidRequest):
        register(view, **{**joining, **wrong})


def test_of_two_edits_the_later_wins() -> None:
    both = Edit({"a": 1, "b": 1}, ["c", "d"]) | Edit({"c": 2}, ["b"])
    assert both == Edit({"a": 1, "c": 2}, ["d", "b"])


def test_a_redirected_move_keeps_a_replica_that_may_be_a_member_by_now(
    view: View,
) -> None:
    view = moving(view)
    view = edited(view, set_targets(view, [Move("a", 0, (3, 2))]))
    view = edited(view, set_targets(view, [Move("a", 0, (1,))]))
    assert view.placement("a", 0) == Placement((1, 2), (1, 2), (1,), leaving=(3,))
    assert [hosted.partition for hosted in view.hosted(3)] == [0, 1]
    view = edited(view, finish_moves(view, [Move("a", 0, (1,))]))
    assert view.placement("a", 0) == Placement((1,), moves=1)
    assert [hosted.partition for hosted in view.hosted(3)] == [1]


def test_a_replica_that_comes_back_without_its_log_is_another_member(view: View) -> None:
    view = moved(moving(view), [Move("a", 0, (3, 2))])
    back = view.placement("a", 0).member_on(1)
    assert (node_of(back), back != 1) == (1, True)
    assert view.placement("a", 0).member_on(2) == 2, "it has its log"
    view = moved(view, [Move("a", 0, (back, 2))])
    assert [hosted.member for hosted in view.hosted(1)] == [back]
    third = member_of(3, 0, stay=2)
    assert [move.replicas for move in drain(view, 2) if not move.partition] == [(back, third)]
    assert rebalance(moved(view, rebalance(view))) == [], "it is not taken for one that lost a disk"


def test_a_target_that_is_given_up_gives_its_number_up_too(view: View) -> None:
    view = edited(moving(view), replaced(moving(view), 2))
    joined = view.placement("a", 0).target[1]
    assert node_of(joined) == 2
    view = edited(view, set_targets(view, [Move("a", 0, (1, 3))]))
    assert next(view.hosted(2)).member != joined, "its log is removed"
    assert view.placement("a", 0).member_on(view.broker(2).member) != joined


def test_below_its_feature_level_no_release_meets_a_later_stay(view: View) -> None:
    assert view.cluster is not None
    first = replace(view.cluster, level=int(Level.FIRST))
    view = moving(edited(view, Edit({"cluster": first.to_json()})))
    view = moved(view, [Move("a", 0, (3, 2))])
    assert view.placement("a", 0).to_json() == {"replicas": [3, 2]}
    assert view.placement("a", 0).member_on(1) == 1


@pytest.mark.parametrize("seed", range(20))
def test_no_broker_hosts_a_member_again_whose_log_it_removed(seed: int) -> None:
    """Whatever moves are begun, redirected and ended: a log is removed when the catalog names it no
    more, and its member has voted and acknowledged."""
    dice = Random(seed)
    view = edited(View(), found_cluster(OURS, 7, map(broker, (1, 2, 3, 4))))
    view = with_topic(view, "a", 2, dice.randint(1, 3))
    hosts: set[tuple[int, int]] = set()
    gone: set[tuple[int, int]] = set()
    for _ in range(60):
        edit = dice.choice([leave, come, replaced, finish, finish, finish])
        view = edited(view, edit(view, dice.randint(1, 4)))
        now = {
            (hosted.partition, hosted.member)
            for one in view.brokers.values()
            for hosted in view.hosted(one.id)
            # The log of another epoch is on a disk that is lost, and is not made again.
            if epoch_of(hosted.member) == epoch_of(one.member)
        }
        gone |= hosts - now
        hosts = now
        assert not hosts & gone
    assert gone


def leave(view: View, node: int) -> Edit | None:
    if [one.id for one in view.serving] == [node]:
        return None
    return (set_broker_state(view, node, "leaving") or Edit()) | (
        set_targets(view, drain(view, node)) or Edit()
    )


def come(view: View, node: int) -> Edit | None:
    view = edited(view, served := set_broker_state(view, node, "serving") or Edit())
    return served | start_rebalance(view)


def replaced(view: View, node: int) -> Edit:
    edit = replace_broker(view, node)
    member = int(edit.put[view.broker(node).key]["member"])
    return edit | (set_targets(view, replacing(view, node, member)) or Edit())


def finish(view: View, partition: int) -> Edit | None:
    target = view.placement("a", partition % 2).target
    return finish_moves(view, [Move("a", partition % 2, target)])


def test_a_topic_is_not_its_own_dead_letter_topic(view: View) -> None:
    own = TopicSettings(dead_letter="a")
    with pytest.raises(InvalidRequest, match="its own dead-letter topic"):
        create_topic(view, "a", topic_id=ID, settings=own)
    with pytest.raises(InvalidRequest, match="its own dead-letter topic"):
        alter_topic(with_topic(view, "a"), "a", settings=own)
