"""The status of a member, for the outside: a copy, safe to keep."""

from collections.abc import Collection
from dataclasses import dataclass

from quivermq.raft.messages import NOBODY, Configuration, HardState, Role
from quivermq.raft.progress import Pace
from quivermq.raft.quorum import VoteResult, joint_vote
from quivermq.raft.replica import Replica


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member, as its leader knows it."""

    match: int
    next: int
    pace: Pace
    is_learner: bool
    is_paused: bool
    is_active: bool
    pending_snapshot: int
    inflight: int
    inflight_full: bool


@dataclass(frozen=True, slots=True)
class Status:
    """One member at one moment; `progress` is empty unless it leads."""

    id: int
    role: Role
    leader: int
    hard_state: HardState
    applied: int
    last_index: int
    transferee: int
    configuration: Configuration
    progress: dict[int, MemberStatus]
    is_settled: bool
    """A leader whose members all have everything: they may sleep."""


def is_settled(replica: Replica, away: Collection[int] = ()) -> bool:
    """Whether this member leads, and no member needs anything from it, but for those `away`."""
    log = replica.log
    last_index = log.last_index
    return (
        replica.role is Role.LEADER
        and log.applied == log.committed == last_index
        and replica.transferee == NOBODY
        and not replica.configuration.is_joint
        and not replica.reads
        and all(
            progress.match == last_index
            for member, progress in replica.progress.items()
            if member not in away
        )
    )


def has_quorum_without(replica: Replica, away: Collection[int]) -> bool:
    """Whether the members that are not `away` can decide alone."""
    votes = {member: member not in away for member in replica.progress}
    return joint_vote(replica.configuration, votes) is VoteResult.WON


def status_of(replica: Replica) -> Status:
    return Status(
        id=replica.id,
        role=replica.role,
        leader=replica.leader,
        hard_state=replica.hard_state,
        applied=replica.log.applied,
        last_index=replica.log.last_index,
        transferee=replica.transferee,
        configuration=replica.configuration,
        progress=_members(replica) if replica.role is Role.LEADER else {},
        is_settled=is_settled(replica),
    )


def _members(replica: Replica) -> dict[int, MemberStatus]:
    return {
        member: MemberStatus(
            match=progress.match,
            next=progress.next,
            pace=progress.pace,
            is_learner=progress.is_learner,
            is_paused=progress.is_paused,
            is_active=progress.active,
            pending_snapshot=progress.pending_snapshot,
            inflight=len(progress.inflight),
            inflight_full=progress.inflight.full,
        )
        for member, progress in replica.progress.items()
    }
