"""Replicas whose state is large: written down in portions, bounded, and never the end of them."""

from dataclasses import replace
from itertools import pairwise

import pytest

from quivermq.batches import Index, Origin, encode_batch
from quivermq.errors import Overloaded
from quivermq.log import Log
from quivermq.queue import LeaseManager
from quivermq.replica import (
    Produced,
    ReplicaSettings,
    SaveCheckpoint,
    carry_out,
    member,
    newest_state,
)
from tests.replica import group as group_stage
from tests.replica.group import FOLDER, SMALL, Group, Node


def commit_offsets(group: Group, node: Node, count: int) -> None:
    """Make so many groups, of which there is nothing but an offset."""

    def act(leases: LeaseManager) -> None:
        for number in range(count):
            leases.working_copy.commit(f"group-{number}", number)

    node.replica.with_leases(act, None, group.now_ms, group.now_ms)
    group.settle()


def test_entries_are_applied_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(1)
    leader = group.leader()
    # A checkpoint is taken every ten entries: these end just before one.
    for _ in range(48):
        group.produce(leader)
    monkeypatch.setattr(member, "APPLIED_AT_ONCE", 2)
    leader.restart(power=False)
    leader.replica.campaign()
    seen = [leader.replica.applied_index]
    while leader.replica.is_behind or not leader.replica.is_serving:
        leader.pump()
        seen.append(leader.replica.applied_index)
    assert seen[-1] - seen[0] > 6
    assert max(after - before for before, after in pairwise(seen)) <= 4
    leader.replica.validate()
    assert leader.replica.edge.next_offset == 48


def test_a_snapshot_that_comes_in_is_not_overtaken_by_what_was_to_be_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member, "APPLIED_AT_ONCE", 1)
    group = Group(3)
    leader = group.leader()
    behind = next(node for node in group.nodes.values() if node is not leader)
    group.isolate(behind.member)
    for _ in range(120):
        group.produce(leader)
    group.tick(3)
    starts = [index for index in leader.log.checkpoints() if index in leader.log.segment_starts]
    leader.log.drop_before(starts[-1])
    group.heal()
    group.tick(60)
    assert behind.replica.applied_index == leader.replica.applied_index
    assert behind.replica.digest == leader.replica.digest
    behind.replica.validate()


def test_a_state_too_large_for_a_checkpoint_is_left_out_and_stops_no_replica() -> None:
    group = Group(1)
    leader = group.leader()
    for _ in range(30):
        group.produce(leader)
    log = leader.log
    kept = log.checkpoints()
    index = next(index for index in log.segment_starts if index not in kept or index > 1)
    small = Log.open(leader.disk, FOLDER, replace(SMALL, checkpoint_bytes_max=100))
    carry_out(small, SaveCheckpoint(Index(index), newest_state(log).snapshot()))
    assert small.checkpoints() == kept
    assert newest_state(small).partition.applied_index >= 0


def test_what_would_outgrow_a_checkpoint_is_refused_before_it_is_proposed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = replace(SMALL, checkpoint_bytes_max=6_000)
    monkeypatch.setattr(group_stage, "SMALL", small)
    group = Group(1, ReplicaSettings(checkpoint_bytes_max=6_000))
    leader = group.leader()
    with pytest.raises(Overloaded, match="of 6,000 bytes"):
        commit_offsets(group, leader, 100)
    group.settle()
    later = encode_batch([b"later"], origin=Origin(not_before_ms=group.now_ms + 1_000))
    refused = leader.answers[group.produce(leader, later)]
    assert isinstance(refused, Overloaded)
    assert "delete or seek groups" in str(refused)
    # What does not make it larger is taken; and so the state always fits.
    for _ in range(60):
        assert isinstance(leader.answers[group.produce(leader)], Produced)
    assert len(leader.replica._live.state.pack()) < 6_000  # type: ignore[union-attr]
    assert leader.log.checkpoints()[-1] > 2
    leader.restart()
    assert group.leader().replica.edge.next_offset == 60


def test_requests_are_served_again_once_the_state_is_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = replace(SMALL, checkpoint_bytes_max=6_000)
    monkeypatch.setattr(group_stage, "SMALL", small)
    group = Group(1, ReplicaSettings(checkpoint_bytes_max=6_000))
    leader = group.leader()
    with pytest.raises(Overloaded):
        commit_offsets(group, leader, 100)

    def drop(leases: LeaseManager) -> None:
        for number in range(5):
            leases.working_copy.drop(f"group-{number}")

    leader.replica.with_leases(drop, None, group.now_ms, group.now_ms)
    group.settle()
    later = encode_batch([b"later"], origin=Origin(not_before_ms=group.now_ms + 1_000))
    assert isinstance(leader.answers[group.produce(leader, later)], Produced)
