"""Records of the catalog, its views, and the names in it."""

import json
import time
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.cluster import (
    METADATA_PARTITION,
    BrokerRecord,
    ClusterRecord,
    Placement,
    Topic,
    View,
    epoch_of,
    member_of,
    node_of,
    partition_id,
)
from quivermq.cluster.records import broker_member_of, next_producer, retired_member
from quivermq.errors import Corrupt, InvalidRequest, TopicNotFound, UnsupportedFormat
from quivermq.queue import TopicSettings
from tests.cluster.catalogs import broker, edited, view_of, with_topic

NODES, EPOCHS, STAYS = st.integers(1, 65_535), st.integers(0, 65_535), st.integers(0, 2**30 - 1)
MEMBERS = st.builds(member_of, NODES, EPOCHS, STAYS)
GROUPS = st.lists(MEMBERS, min_size=1, max_size=5, unique_by=node_of).map(tuple)
PLACEMENTS = st.builds(Placement, GROUPS, GROUPS | st.just(()), GROUPS | st.just(()), moves=STAYS)
SETTINGS = st.builds(
    TopicSettings, retention_ms=st.integers(0, 10**12), rate_per_second=st.floats(0, 1e6)
)
TOPICS = st.builds(
    Topic,
    name=st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True),
    id=st.binary(min_size=12, max_size=12).map(bytes.hex),
    replication=st.integers(1, 9),
    settings=SETTINGS.map(lambda settings: json.loads(settings.encode())),
    partitions=st.lists(PLACEMENTS, min_size=1, max_size=4).map(tuple),
)
TEXTS = st.text(max_size=30)
BROKERS = st.builds(member_of, NODES, EPOCHS).flatmap(
    lambda member: st.builds(
        BrokerRecord,
        id=st.just(node_of(member)),
        directory_id=st.binary(max_size=32).map(bytes.hex),
        boot=st.integers(0, 2**63 - 1),
        member=st.just(member),
        address=TEXTS,
        peer_address=TEXTS,
        http_address=TEXTS,
        version=TEXTS,
        state=st.sampled_from(["serving", "leaving"]),
        life=st.binary(max_size=32).map(bytes.hex),
        level_min=st.integers(0, 9),
        level_max=st.integers(0, 9),
        zone=TEXTS,
    )
)
CLUSTERS = st.builds(
    ClusterRecord,
    st.binary(min_size=1, max_size=32).map(bytes.hex),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**32 - 1),
    TEXTS,
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(5000).map(lambda digits: 10**digits)  # too long for Python to print
    | st.floats()
    | st.text(max_size=5)
)
HOSTILE = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


@given(st.one_of(TOPICS, BROKERS, PLACEMENTS, CLUSTERS))
def test_a_record_survives_its_json_and_keeps_what_it_does_not_know(record: Any) -> None:
    value = json.loads(json.dumps(record.to_json()))
    assert type(record).from_json(value) == record
    later = value | {"of a later release": [1]}
    kept = type(record).from_json(later)
    assert kept.to_json() == later
    assert replace(kept, others={}) == record


@given(st.one_of(TOPICS, BROKERS, PLACEMENTS, CLUSTERS), st.data())
def test_hostile_json_is_corrupt_and_nothing_else(record: Any, data: st.DataObject) -> None:
    value: Any = record.to_json()
    key = data.draw(st.sampled_from(sorted(value)))
    if key == "settings" and data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(value["settings"])))
        value["settings"][name] = data.draw(HOSTILE)
    elif key == "partitions" and data.draw(st.booleans()):
        value["partitions"][0] = data.draw(HOSTILE)
    elif isinstance(value[key], list) and data.draw(st.booleans()):
        value[key].append(data.draw(HOSTILE))
    else:
        value[key] = data.draw(HOSTILE)
    try:
        found = type(record).from_json(value)
    except Corrupt:
        return
    assert type(record).from_json(found.to_json()) == found


@given(HOSTILE)
def test_nonsense_in_place_of_a_record_is_corrupt(value: Any) -> None:
    for read in (
        Topic.from_json,
        BrokerRecord.from_json,
        Placement.from_json,
        next_producer,
        retired_member,
    ):
        with pytest.raises(Corrupt):
            read(value)
    for key in ("topic/a", "broker/1", "producers", "retired/1"):
        with pytest.raises(Corrupt):
            View(1, {key: value})
    # Without a level it may be of a build from before there were any.
    with pytest.raises((Corrupt, UnsupportedFormat)):
        ClusterRecord.from_json(value)
    with pytest.raises((Corrupt, UnsupportedFormat)):
        View(1, {"cluster": value})


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": []},
        {"replicas": [1, 1]},
        {"replicas": [1, 1 << 16 | 1]},
        {"replicas": [0]},
        {"replicas": [1 << 16]},
        {"replicas": [1 << 62 | 1]},
        {"replicas": [True]},
        {"replicas": [1], "target": [2, 2]},
        {"replicas": [1], "founders": [-1]},
        {"replicas": [1], "moves": 1 << 30},
    ],
)
def test_a_placement_that_no_group_can_have_is_corrupt(wrong: Any) -> None:
    with pytest.raises(Corrupt):
        Placement.from_json(wrong)


def test_a_record_under_the_key_of_another_is_corrupt() -> None:
    for key, record in (("broker/2", broker(1)), ("topic/b", TOPIC)):
        with pytest.raises(Corrupt, match="is kept as"):
            View(1, {key: record.to_json()})
    twin = TOPIC.to_json() | {"name": "b"}
    with pytest.raises(Corrupt, match="one id"):
        View(1, {"topic/a": TOPIC.to_json(), "topic/b": twin})


@given(NODES, EPOCHS, STAYS)
def test_a_member_number_holds_node_epoch_and_stay(node: int, epoch: int, stay: int) -> None:
    member = member_of(node, epoch, stay)
    assert (node_of(member), epoch_of(member)) == (node, epoch)
    assert broker_member_of(member) == member_of(node, epoch)
    assert epoch == 65_535 or member_of(node, epoch + 1, stay) > member
    assert member_of(node, epoch, stay + 1) > member


TOPIC = Topic("a", "0a" * 12, 1, {}, (Placement((1,)), Placement((2,), (2,), (1 << 16 | 2, 1))))


def test_a_view_finds_brokers_topics_groups_and_what_a_node_holds() -> None:
    view = edited(view_of([broker(10), broker(2), broker(1, state="leaving")]), None)
    view = view.updated(2, view.values | {"topic/a": TOPIC.to_json(), "unknown/key": 7})
    assert list(view.brokers) == [1, 2, 10]
    assert [one.id for one in view.serving] == [2, 10]
    assert view.topics_by_id["0a" * 12] is view.topics["a"] is view.topic("a")
    assert view.partition_of(partition_id("0a" * 12, 1)) == (TOPIC, 1)
    assert view.partition_of(partition_id("0a" * 12, 2)) is None
    assert view.partition_of(partition_id("0b" * 12, 0)) is None
    assert view.partition_of(METADATA_PARTITION) is None
    assert view.partition_of(b"") is None
    assert [(h.partition, h.member) for h in view.hosted(1)] == [(0, 1), (1, 1)]
    # Under two numbers, before and after a lost disk: the later one is what the node is.
    assert [(h.partition, h.member) for h in view.hosted(2)] == [(1, 1 << 16 | 2)]
    assert list(view.hosted(10)) == []
    with pytest.raises(TopicNotFound, match="create"):
        view.topic("b")
    with pytest.raises(InvalidRequest, match="no broker 3"):
        view.broker(3)
    with pytest.raises(InvalidRequest, match="0 to 1"):
        view.placement("a", 2)


def test_an_updated_view_reuses_what_did_not_change() -> None:
    view = view_of([broker(1), broker(2)])
    view = with_topic(with_topic(view, "a", 3), "b", 3)
    values = json.loads(json.dumps(view.values))
    values["topic/b"]["partitions"][1] = {"replicas": [1, 2]}
    values["broker/2"]["boot"] = 2
    later = view.updated(9, values)
    assert later.version == 9
    assert later.topics["a"] is view.topics["a"]
    assert later.brokers[1] is view.brokers[1]
    assert later.brokers[2].boot == 2
    for partition in (0, 2):
        assert later.topics["b"].partitions[partition] is view.topics["b"].partitions[partition]
    assert later.topics["b"].partitions[1] == Placement((1, 2))
    del values["topic/a"]
    assert list(later.updated(10, values).topics) == ["b"]


CATALOGS = st.dictionaries(st.sampled_from("abc"), TOPICS).map(
    lambda topics: {
        f"topic/{name}": topic.to_json() | {"name": name, "id": name.encode().hex() * 12}
        for name, topic in topics.items()
    }
)


@given(CATALOGS, CATALOGS, st.data())
def test_an_updated_view_is_the_same_as_a_fresh_one(
    before: dict[str, Any], after: dict[str, Any], data: st.DataObject
) -> None:
    for key in before.keys() & after.keys():
        if data.draw(st.booleans(), f"{key} differs in one partition at most"):
            after[key]["partitions"] = [*before[key]["partitions"]]
            after[key]["partitions"][-1] = {"replicas": [1, 2]}
    updated, fresh = View(1, before).updated(2, after), View(2, after)
    assert updated.topics == fresh.topics
    for node in (1, 2, 65_535):
        assert list(updated.hosted(node)) == list(fresh.hosted(node))


def _variants() -> dict[str, list[Any]]:
    """Keys of most kinds, with two values each."""
    placements = ([{"replicas": [1, 2]}], [{"replicas": [1, 2], "target": [2, 3]}] * 2)
    topics = {
        f"topic/{name}": [
            TOPIC.to_json() | {"name": name, "id": name.encode().hex() * 12, "partitions": found}
            for found in placements
        ]
        for name in "abc"
    }
    brokers = {
        f"broker/{node}": [broker(node).to_json(), broker(node, state="leaving").to_json()]
        for node in (1, 2, 10)
    }
    others = {
        "cluster": [ClusterRecord("c1", 1).to_json(), ClusterRecord("c1", 2).to_json()],
        "producers": [{"next": 5}, {"next": 6, "floor": 4}],
        "retired/4": [{"member": 4}, {"member": 1 << 16 | 4}],
    }
    return topics | brokers | others


@pytest.mark.parametrize("seed", range(20))
def test_a_view_after_many_changes_is_the_same_as_a_fresh_one(seed: int) -> None:
    dice, variants = Random(seed), _variants()
    view, values = View(), dict[str, Any]()
    for version in range(1, 40):
        for key in dice.sample(sorted(variants), dice.choice((1, 1, 2, 5))):
            values.pop(key, None)
            if dice.random() < 0.7:
                values[key] = dice.choice(variants[key])
        view, fresh = view.updated(version, values), View(version, values)
        for name in ("values", "brokers", "serving", "topics", "topics_by_id", "retired", "cluster",
                     "next_producer", "producer_floor"):  # fmt: skip
            assert getattr(view, name) == getattr(fresh, name), name
        assert [*view.topics] == [*fresh.topics]
        assert [*view.brokers] == [*fresh.brokers]
        if dice.random() < 0.5:
            continue
        assert [*view.moving()] == [*fresh.moving()]
        assert [*view.partition_ids()] == [*fresh.partition_ids()]
        for node in (1, 2, 3):
            assert [*view.hosted(node)] == [*fresh.hosted(node)]


def test_a_view_of_a_thousand_partitions_is_read_in_milliseconds() -> None:
    view = view_of([broker(node) for node in (1, 2, 3)])
    for number in range(100):
        view = with_topic(view, f"t{number}", 10, 3)
    values = json.loads(json.dumps(view.values))
    fastest = 1.0
    for _ in range(5):
        start = time.process_time()
        assert len(list(View(1, values).hosted(1))) == 1_000
        fastest = min(fastest, time.process_time() - start)
    assert fastest < 0.1
