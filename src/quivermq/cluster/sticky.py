"""Sticky groups as the catalog keeps them: members, and which of them owns which partition.

Partitions are handed over one by one, and those that stay never pause. One that is to move is
first *revoked*: its owner keeps it until it has finished with it and releases it, or is gone. Then
its *heir* owns it, under a higher *epoch*, with which it fences its predecessor at the partition.

The *generation* counts the changes of a group, and an epoch is the generation that the ownership
began with. A group without members is forgotten; one that is made anew begins behind the version
of the catalog. That grows at least as fast as any generation, so epochs never go back.

Pure: does not decide who is alive.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from quivermq.cluster.assignors import ASSIGNORS, sticky
from quivermq.errors import Corrupt

STICKY_PREFIX: Final = "sticky/"
MEMBERS_MAX: Final = 10_000
STICKY_PARTITIONS_MAX: Final = 30_000
"""With these and names as short as this, a record fits into one change of the catalog."""
MEMBER_NAME_CHARACTERS_MAX: Final = 64
_NUMBER_MAX: Final = (1 << 63) - 1
_TEXT_CHARACTERS_MAX: Final = 200


class Enrolled(NamedTuple):
    """A member's entry in a group."""

    name: str
    session_ms: int
    """How long it may be silent before it is taken for dead."""


class PartitionOwner(NamedTuple):
    """The owner of a partition, and since which generation."""

    member: int
    epoch: int


class Revocation(NamedTuple):
    """The member that gets a partition when its owner releases it, and since which generation."""

    heir: int
    since: int


class MemberShare(NamedTuple):
    """The partitions of one member."""

    assigned: tuple[tuple[int, int], ...]
    """Partitions to read, each with its epoch."""
    revoked: tuple[int, ...]
    """Partitions to finish with and release."""
    since: int
    """The generation that last gave it something, or told it to give something up."""


_NOTHING: Final = MemberShare((), (), 0)


@dataclass(slots=True)
class StickyChanges:
    """Events of a group since it was last changed: first the leaves, then the joins."""

    assignor: str = "sticky"
    """For a group that does not exist yet."""
    leaves: set[int] = field(default_factory=set)
    joins: dict[int, Enrolled] = field(default_factory=dict)
    releases: dict[int, tuple[int, set[int]]] = field(default_factory=dict)
    """By member: the generation that it knew, and the partitions."""

    def join(self, member: int, enrolled: Enrolled) -> None:
        self.joins[member] = enrolled

    def leave(self, member: int) -> None:
        self.joins.pop(member, None)
        self.leaves.add(member)

    def release(self, member: int, generation: int, partitions: Iterable[int]) -> None:
        known, released = self.releases.get(member, (0, set()))
        self.releases[member] = max(known, generation), {*released, *partitions}


@dataclass(frozen=True)
class StickyGroup:
    """One group of one topic."""

    topic_id: str
    group: str
    generation: int
    assignor: str = "sticky"
    members: Mapping[int, Enrolled] = field(default_factory=dict)
    owners: tuple[PartitionOwner, ...] = ()
    """By partition."""
    revoking: Mapping[int, Revocation] = field(default_factory=dict)
    """By partition: those that their owners have to release."""

    @property
    def key(self) -> str:
        return sticky_key(self.topic_id, self.group)

    @cached_property
    def _shares(self) -> dict[int, MemberShare]:
        assigned: dict[int, list[tuple[int, int]]] = {}
        revoked: dict[int, list[int]] = {}
        since: dict[int, int] = {}
        for partition, (member, epoch) in enumerate(self.owners):
            revocation = self.revoking.get(partition)
            if revocation is None:
                assigned.setdefault(member, []).append((partition, epoch))
            else:
                revoked.setdefault(member, []).append(partition)
            told = epoch if revocation is None else revocation.since
            since[member] = max(since.get(member, 0), told)
        return {
            member: MemberShare(
                tuple(assigned.get(member, ())), tuple(revoked.get(member, ())), since[member]
            )
            for member in since
        }

    def share(self, member: int) -> MemberShare:
        return self._shares.get(member, _NOTHING)

    def changed(self, changes: StickyChanges, partitions: int) -> "StickyGroup":
        """The group after this; itself if that makes no difference."""
        left = {member: self.members[member] for member in self.members.keys() - changes.leaves}
        members = dict(sorted((left | changes.joins).items()))
        holders = self._holders(changes, partitions)
        if members.keys() == self.members.keys() == left.keys() and partitions == len(self.owners):
            heirs = {number: each.heir for number, each in self.revoking.items()}
            target = {number: heirs.get(number, holders[number]) for number in holders}
        else:
            target = self._target(list(members), holders, partitions)
        generation = self.generation + 1
        owners, revoking = [], {}
        for number in range(partitions if members else 0):
            holder, wanted = holders.get(number, 0), target[number]
            if not holder:
                owners.append(PartitionOwner(wanted, generation))
                continue
            owners.append(self.owners[number])
            if holder != wanted:
                before = self.revoking.get(number)
                revoking[number] = Revocation(wanted, before.since if before else generation)
        after = StickyGroup(
            self.topic_id, self.group, self.generation, self.assignor, members, tuple(owners),
            revoking,
        )  # fmt: skip
        if after == self:
            return self
        return StickyGroup(
            self.topic_id, self.group, generation, self.assignor, members, tuple(owners), revoking
        )

    def _holders(self, changes: StickyChanges, partitions: int) -> dict[int, int]:
        """The member that holds each partition: 0 if none does, any more or yet."""
        holders = dict.fromkeys(range(partitions), 0)
        for number, (member, _) in enumerate(self.owners):
            if member not in changes.leaves:
                holders[number] = member
        for member, (generation, released) in changes.releases.items():
            for number in released:
                revocation = self.revoking.get(number)
                # A release that was said before this revocation is about an earlier one.
                is_told = revocation is not None and revocation.since <= generation
                if is_told and holders.get(number) == member:
                    holders[number] = 0
        return holders

    def _target(
        self, members: list[int], holders: Mapping[int, int], partitions: int
    ) -> dict[int, int]:
        """Those that are being revoked come last: they are the first to be given up again."""
        order = sorted(range(partitions), key=self.revoking.__contains__)
        current = {number: member for number, member in holders.items() if member}
        return ASSIGNORS.get(self.assignor, sticky)(order, members, current)

    def to_json(self) -> dict[str, Any]:
        return {
            "topic_id": self.topic_id,
            "group": self.group,
            "generation": self.generation,
            "assignor": self.assignor,
            "members": {str(member): list(known) for member, known in self.members.items()},
            "owners": [list(owner) for owner in self.owners],
            "revoking": {str(number): list(each) for number, each in self.revoking.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> "StickyGroup":
        try:
            group = cls(
                topic_id=_text(value["topic_id"]),
                group=_text(value["group"]),
                generation=_number(value["generation"]),
                # One that this build does not know is replaced by the usual one.
                assignor=_text(value["assignor"]),
                members={
                    _number(int(member)): Enrolled(_text(name), _number(session_ms))
                    for member, (name, session_ms) in value["members"].items()
                },
                owners=tuple(
                    PartitionOwner(_number(member), _number(epoch))
                    for member, epoch in value["owners"]
                ),
                revoking={
                    _number(int(number)): Revocation(_number(heir), _number(since))
                    for number, (heir, since) in value["revoking"].items()
                },
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise Corrupt("the record of a sticky group is not as any build writes it") from error
        named = {owner.member for owner in group.owners}
        named |= {revocation.heir for revocation in group.revoking.values()}
        if not named <= group.members.keys():
            raise Corrupt(f"partitions of sticky group {group.group} belong to no member")
        if any(number >= len(group.owners) for number in group.revoking):
            raise Corrupt(f"sticky group {group.group} revokes a partition that it does not have")
        return group


def sticky_key(topic_id: str, group: str) -> str:
    """By the id of the topic: one that is created again begins without groups."""
    return f"{STICKY_PREFIX}{topic_id}/{group}"


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise ValueError("no number that a sticky group has")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_CHARACTERS_MAX:
        raise ValueError("no text that a sticky group has")
    return value
