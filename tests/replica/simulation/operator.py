"""The simulated operator: adds, removes and replaces members while the cluster serves.

It asks the leader as any client would, and forgets a request that is not answered. It keeps the one
rule of operators: sound members stay a majority of the voters.
"""

from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Final

from quivermq.raft import Act, Change, MembershipChange, Transition
from quivermq.replica import Changed
from tests.replica.simulation.clients import TOKENS_PER_CLIENT
from tests.replica.simulation.requests import ChangeMembership, ClientRequest, NodeReply
from tests.replica.simulation.world import World

VOTERS_MIN: Final = 3
VOTERS_MAX: Final = 5
PATIENCE_MS: Final = 4_000


class Operator:
    """A client with the right to change the membership."""

    def __init__(self, address: int, world: World, dice: Random, fragile: Sequence[int]) -> None:
        self.address = address
        self._world = world
        self._dice = dice
        self._fragile = fragile
        """Members whose disks get damaged in this run."""
        self._tokens = count(-address * TOKENS_PER_CLIENT)
        self._asked_at_ms = -PATIENCE_MS
        self._asked = 0
        self._change = MembershipChange()
        """The last change that was asked for."""
        self._removed: set[int] = set()
        """Members that are known to be removed."""
        self._voters_min = min(VOTERS_MIN, len(world.auditor.voters))
        self.is_tidy = False
        """All members are sound voters."""

    def take(self, sender: int, reply: NodeReply) -> None:
        if reply.token == self._asked:
            self._asked_at_ms = -PATIENCE_MS
            text = "is made" if isinstance(reply.result, Changed) else f"fails: {reply.result}"
            self._world.story.tell(f"membership change at node {sender} {text}")
            if isinstance(reply.result, Changed):
                self._world.story.counts["membership changes"] += 1
                self._note_removals()

    def _note_removals(self) -> None:
        """A change is made: the members that it removed may be switched off at once."""
        if self._change.transition is Transition.EXPLICIT:
            return
        self._removed |= {c.member for c in self._change.changes if c.act is Act.REMOVE}
        if self._dice.random() < 0.5:
            self.retire_removed()

    def change_something(self) -> None:
        """Ask for any change that the rule allows."""
        changes = self._any_changes()
        if changes and self._is_safe(changes):
            transition = Transition.AUTO
            if self._dice.random() < 0.2:
                transition = self._dice.choice((Transition.IMPLICIT, Transition.EXPLICIT))
            self._ask(MembershipChange(tuple(changes), transition))

    def _any_changes(self) -> list[Change]:
        auditor = self._world.auditor
        if auditor.is_joint:
            return []
        leaving = Change(Act.REMOVE, self._dice.choice(auditor.members))
        kind = self._dice.choice(("add", "remove", "replace", "learn"))
        if kind == "remove":
            return [leaving]
        learners = [member for member in auditor.members if member not in auditor.voters]
        if learners and self._dice.random() < 0.5:
            return [Change(Act.ADD_VOTER, self._dice.choice(learners))]
        act = Act.ADD_LEARNER if kind == "learn" else Act.ADD_VOTER
        coming = Change(act, self._spare())
        return [coming, leaving] if kind == "replace" else [coming]

    def _spare(self) -> int:
        """A machine that was never a member."""
        for member, host in self._world.hosts.items():
            if member not in self._world.auditor.ever_members and not host.is_lost:
                return member
        return self._world.add_host().member

    def retire_removed(self) -> None:
        """Switch off machines that are no longer members."""
        for member in sorted(self._removed):
            if not self._world.hosts[member].is_retired:
                self._world.hosts[member].retire()

    def _is_safe(self, changes: Sequence[Change]) -> bool:
        """Whether sound voters are a majority after the change, and so many as to lose one."""
        voters = set(self._world.auditor.voters)
        for change in changes:
            voters.discard(change.member)
            if change.act is Act.ADD_VOTER:
                voters.add(change.member)
        sound = voters.difference(self._fragile)
        return self._voters_min <= len(voters) <= VOTERS_MAX and 2 * len(sound) > len(voters)

    def tidy(self) -> None:
        """One step towards a cluster of sound voters only."""
        self.retire_removed()
        change = self._tidying_change()
        self.is_tidy = change is None
        if change is not None:
            self._ask(change)

    def _tidying_change(self) -> MembershipChange | None:
        auditor = self._world.auditor
        if auditor.is_joint:
            return MembershipChange()
        hosts = self._world.hosts
        lost = [member for member in auditor.members if hosts[member].is_lost]
        if lost:
            return MembershipChange((Change(Act.REMOVE, lost[0]),))
        learners = [member for member in auditor.members if member not in auditor.voters]
        if learners:
            return MembershipChange((Change(Act.ADD_VOTER, learners[0]),))
        if len(auditor.voters) < self._voters_min:
            return MembershipChange((Change(Act.ADD_VOTER, self._spare()),))
        gone = auditor.ever_members.difference(auditor.members, self._removed)
        if gone:
            # The answer was lost. Asked again, the change changes nothing, and is answered.
            return MembershipChange((Change(Act.REMOVE, min(gone)),))
        return None

    def _ask(self, change: MembershipChange) -> None:
        """Send a change to the leader, unless one is under way."""
        world = self._world
        leader = world.leader
        if leader is None or world.time.now_ms - self._asked_at_ms < PATIENCE_MS:
            return
        self._asked = next(self._tokens)
        self._change = change
        self._asked_at_ms = world.time.now_ms
        story = " ".join(map(str, change.changes)) or "leave joint"
        world.story.tell(f"operator asks node {leader.member}: {change.transition.value} {story}")
        world.network.send(
            self.address, leader.member, ClientRequest(self._asked, ChangeMembership(change))
        )
