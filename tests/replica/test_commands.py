"""Catalog and committed offsets, replicated."""

import pytest

from quivermq.errors import InvalidRequest, NotLeader, Overloaded, QuiverError, TooLarge
from quivermq.raft import parse_changes
from quivermq.raft.membership import MembershipChange
from quivermq.replica import Changed, ReplicaSettings, Result
from tests.replica.group import Group, Node


def change_catalog(group: Group, node: Node, base: int, put: dict, delete=()) -> Result | None:
    token = group.token()
    node.replica.change_catalog(token, base, put, delete, group.now_ms)
    group.settle()
    return node.answers.get(token)


def commit_offset(group: Group, node: Node, name: str, offset: int) -> Result | None:
    token = group.token()
    try:
        say_offset(group, node, name, offset, token)
    except QuiverError as error:
        return error
    group.settle()
    return node.answers.get(token)


def say_offset(group: Group, node: Node, name: str, offset: int, token: int) -> None:
    now_ms = group.now_ms
    node.replica.with_leases(
        lambda leases: leases.working_copy.commit(name, offset), token, now_ms, now_ms
    )


def offsets(node: Node) -> dict[str, int | None]:
    return {name: one.committed for name, one in node.replica.groups.by_name.items()}


def test_the_catalog_is_the_same_on_all_replicas_and_after_a_restart() -> None:
    group = Group(3)
    leader = group.leader()
    assert change_catalog(group, leader, 0, {"topic/a": {"partitions": 2}}) == Changed()
    assert change_catalog(group, leader, 1, {"topic/b": 1}, ["topic/a"]) == Changed()
    group.tick()
    for node in group.nodes.values():
        node.restart()
    group.leader()
    group.tick(3)
    for node in group.nodes.values():
        assert (node.replica.catalog.version, node.replica.catalog.values) == (2, {"topic/b": 1})


def test_of_two_changes_made_from_one_version_the_first_wins() -> None:
    group = Group(3)
    leader = group.leader()
    tokens = [group.token(), group.token()]
    for token in tokens:
        leader.replica.change_catalog(token, 0, {"owner": token}, (), group.now_ms)
    group.settle()
    assert leader.answers[tokens[0]] == Changed()
    assert isinstance(leader.answers[tokens[1]], Overloaded)
    assert leader.replica.catalog.values == {"owner": tokens[0]}
    assert isinstance(change_catalog(group, leader, 0, {"owner": 9}), Overloaded)
    assert leader.replica.catalog.values == {"owner": tokens[0]}


def test_changes_may_follow_each_other_without_waiting() -> None:
    group = Group(3)
    leader = group.leader()
    tokens = [group.token() for _ in range(3)]
    for base, token in enumerate(tokens):
        leader.replica.change_catalog(token, base, {f"k{base}": base}, (), group.now_ms)
    group.settle()
    assert [leader.answers[token] for token in tokens] == [Changed()] * 3
    assert leader.replica.catalog.version == 3


def test_the_catalog_is_bounded_and_can_be_emptied_when_it_is_full() -> None:
    group = Group(1, ReplicaSettings(catalog_bytes_max=1000))
    leader = group.leader()
    assert change_catalog(group, leader, 0, {"a": "x" * 950}) == Changed()
    assert isinstance(change_catalog(group, leader, 1, {"b": "x" * 50}), TooLarge)
    assert change_catalog(group, leader, 1, {}, ["a" * 100, "a"]) == Changed()
    assert change_catalog(group, leader, 2, {"b": "x" * 50}) == Changed()


def test_offsets_are_the_same_on_all_replicas_and_after_a_restart() -> None:
    group = Group(3)
    leader = group.leader()
    for name, offset in (("a", 7), ("b", 1), ("a", 5)):
        assert commit_offset(group, leader, name, offset) == Changed()
    group.tick()
    for node in group.nodes.values():
        node.restart()
    group.leader()
    group.tick(3)
    for node in group.nodes.values():
        assert offsets(node) == {"a": 5, "b": 1}


def test_only_so_many_groups_are_remembered_and_they_go_on() -> None:
    group = Group(1, ReplicaSettings(groups_max=2))
    leader = group.leader()
    assert commit_offset(group, leader, "a", 1) == Changed()
    assert commit_offset(group, leader, "b", 1) == Changed()
    assert isinstance(commit_offset(group, leader, "c", 1), Overloaded)
    assert commit_offset(group, leader, "a", 2) == Changed()
    assert offsets(leader) == {"a": 2, "b": 1}


def test_groups_in_flight_count_too() -> None:
    group = Group(1, ReplicaSettings(groups_max=2))
    leader = group.leader()
    tokens = {name: group.token() for name in "abc"}
    for name in "ab":
        say_offset(group, leader, name, 1, tokens[name])
    with pytest.raises(Overloaded):
        say_offset(group, leader, "c", 1, tokens["c"])
    group.settle()
    assert offsets(leader) == {"a": 1, "b": 1}


def test_invalid_requests_and_followers_are_refused_at_once() -> None:
    group = Group(3)
    leader = group.leader()
    group.tick()
    follower = next(node for node in group.nodes.values() if node is not leader)
    assert isinstance(change_catalog(group, leader, 0, {"": 1}), InvalidRequest)
    assert isinstance(commit_offset(group, leader, "..", 1), InvalidRequest)
    assert isinstance(change_catalog(group, follower, 0, {"a": 1}), NotLeader)
    assert isinstance(commit_offset(group, follower, "a", 1), NotLeader)


def test_a_leader_knows_how_far_its_members_are_behind() -> None:
    group = Group(3)
    leader = group.leader()
    group.tick(2)
    others = [node for node in group.nodes.values() if node is not leader]
    assert [leader.replica.lag_of(node.member) for node in group.nodes.values()] == [0, 0, 0]
    group.isolate(others[0].member)
    for _ in range(4):
        group.produce(leader)
    assert leader.replica.lag_of(others[0].member) == 4
    assert leader.replica.lag_of(others[1].member) == 0
    assert others[1].replica.lag_of(leader.member) is None, "only a leader knows"
    assert leader.replica.lag_of(9) is None
    group.heal()
    group.add(9)
    group[9].is_up = False
    leader.replica.change_membership(group.token(), MembershipChange(parse_changes("l9")))
    group.settle()
    assert leader.replica.lag_of(9) is None, "nothing was heard of it"
    group[9].is_up = True
    group.tick(10)
    assert leader.replica.lag_of(9) == 0


def test_what_can_be_told_of_a_replica() -> None:
    group = Group(3)
    leader = group.leader()
    group.isolate(leader.member)
    group.produce(leader)
    assert not leader.replica.status.is_settled
    group.heal()
    group.tick(2)
    assert leader.replica.status.is_settled
    assert leader.replica.settings.max_deliveries == 5
    assert offsets(leader) == {}
    assert leader.replica.catalog.version == 0
