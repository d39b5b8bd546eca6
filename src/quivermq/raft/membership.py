"""Changes of membership: which configuration follows from another.

Pure functions from one `Configuration` to the next; what the leader tracks of each member follows
from the configuration and does not belong here. One voter at a time may change directly,
because majorities of two such configurations always overlap (thesis §4.1); anything more goes
through a joint configuration (§4.3). No path leads to a configuration without voters.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from quivermq.errors import InvalidRequest
from quivermq.raft.messages import NOBODY, Configuration


class MembershipRefused(InvalidRequest):
    """The change does not lead from the current configuration to a safe one."""


class Act(Enum):
    """A change of one member; the value is its letter in the text of a change."""

    ADD_VOTER = "v"
    ADD_LEARNER = "l"
    REMOVE = "r"
    UPDATE = "u"


class Transition(Enum):
    """How to get to the target configuration."""

    AUTO = "auto"  # directly if it is one change, else through a joint one that is left by itself
    IMPLICIT = "implicit"  # through a joint configuration that is left by itself
    EXPLICIT = "explicit"  # through a joint configuration that is left on request
    SIMPLE = "simple"  # directly, or not at all


@dataclass(frozen=True, slots=True)
class Change:
    """One act on one member."""

    act: Act
    member: int

    def __str__(self) -> str:
        return f"{self.act.value}{self.member}"


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """The content of a membership entry; no changes ask to leave the joint configuration."""

    changes: tuple[Change, ...] = ()
    transition: Transition = Transition.AUTO

    @property
    def leaves_joint(self) -> bool:
        return not self.changes and self.transition is Transition.AUTO

    @property
    def enters_joint(self) -> bool:
        if self.transition is Transition.AUTO:
            return len(self.changes) > 1
        return self.transition is not Transition.SIMPLE

    def encode(self) -> bytes:
        return f"{self.transition.value}:{' '.join(map(str, self.changes))}".encode()

    @classmethod
    def decode(cls, data: object) -> "MembershipChange":
        if not isinstance(data, bytes | bytearray | memoryview):
            raise MembershipRefused(f"a membership entry holds {type(data).__name__}, not bytes")
        try:
            transition, _, changes = bytes(data).decode().partition(":")
            return cls(parse_changes(changes), Transition(transition))
        except ValueError as error:
            raise MembershipRefused(f"{bytes(data)!r} is no membership change") from error


def parse_changes(text: str) -> tuple[Change, ...]:
    """Read changes as `v1 l2 r3`."""
    return tuple(Change(Act(word[:1]), int(word[1:])) for word in text.split())


def changed(configuration: Configuration, change: MembershipChange) -> Configuration:
    """The configuration after `change`; raises `MembershipRefused`."""
    if change.leaves_joint:
        return leave_joint(configuration)
    if change.enters_joint:
        auto_leave = change.transition is not Transition.EXPLICIT
        return enter_joint(configuration, change.changes, auto_leave=auto_leave)
    return simple(configuration, change.changes)


def simple(configuration: Configuration, changes: Iterable[Change]) -> Configuration:
    """Change at most one voter, directly."""
    if configuration.is_joint:
        raise MembershipRefused("can't apply simple config change in joint config")
    target = _with_changes(configuration, changes)
    if len(set(configuration.voters) ^ set(target.voters)) > 1:
        raise MembershipRefused("more than one voter changed without entering joint config")
    return target


def enter_joint(
    configuration: Configuration, changes: Iterable[Change], *, auto_leave: bool
) -> Configuration:
    """Make any changes at once; the voters so far keep their say as the outgoing half."""
    if configuration.is_joint:
        raise MembershipRefused("config is already joint")
    if not configuration.voters:
        raise MembershipRefused("can't make a zero-voter config joint")
    joint = configuration._replace(outgoing=configuration.voters, auto_leave=auto_leave)
    return _with_changes(joint, changes)


def leave_joint(configuration: Configuration) -> Configuration:
    """Drop the outgoing half; voters on their way to learner arrive there."""
    if not configuration.is_joint:
        raise MembershipRefused("can't leave a non-joint config")
    learners = _ascending({*configuration.learners, *configuration.learners_next})
    return Configuration(voters=configuration.voters, learners=learners)


def check(configuration: Configuration) -> None:
    """Raise unless the configuration is one that changes could have led to."""
    voters, outgoing = set(configuration.voters), set(configuration.outgoing)
    learners, later = set(configuration.learners), set(configuration.learners_next)
    faults = [
        name
        for name, wrong in (
            ("ids out of order or repeated", any(
                field != _ascending(set(field)) for field in configuration[:4]
            )),
            ("a learner that votes", learners & (voters | outgoing)),
            ("a member both voter and learner to be", later & voters),
            ("a learner to be that is not an outgoing voter", later - outgoing),
            ("joint leftovers", not outgoing and (later or configuration.auto_leave)),
        )
        if wrong
    ]  # fmt: skip
    if faults:
        raise MembershipRefused(f"{configuration} has {', '.join(faults)}")


def _with_changes(configuration: Configuration, changes: Iterable[Change]) -> Configuration:
    voters = set(configuration.voters)
    learners = set(configuration.learners)
    later = set(configuration.learners_next)
    for change in changes:
        member = change.member
        if member == NOBODY or change.act is Act.UPDATE:
            continue
        if change.act is Act.ADD_LEARNER and member in learners:
            continue
        voters.discard(member)
        learners.discard(member)
        later.discard(member)
        if change.act is Act.ADD_VOTER:
            voters.add(member)
        elif change.act is Act.ADD_LEARNER:
            # A voter of the outgoing half still votes, so it cannot be a learner yet.
            (later if member in configuration.outgoing else learners).add(member)
    if not voters:
        raise MembershipRefused("removed all voters")
    return configuration._replace(
        voters=_ascending(voters),
        learners=_ascending(learners),
        learners_next=_ascending(later),
    )


def _ascending(ids: set[int]) -> tuple[int, ...]:
    return tuple(sorted(ids))
