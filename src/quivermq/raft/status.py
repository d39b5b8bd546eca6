"""What can be told about a member from outside: a copy, safe to keep."""

from dataclasses import dataclass

from quivermq.raft.messages import NOBODY, Configuration, HardState, Role
from quivermq.raft.progress import Pace
from quivermq.raft.replica import Replica


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What a leader knows of one member."""

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

    @property
    def is_settled(self) -> bool:
        """A leader whose members all have and know everything: the group may hibernate."""
        return (
            self.role is Role.LEADER
            and self.transferee == NOBODY
            and self.applied == self.hard_state.commit == self.last_index
            and not self.configuration.is_joint
            and all(member.match == self.last_index for member in self.progress.values())
        )


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
