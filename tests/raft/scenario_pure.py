"""Scenario commands without a cluster, on one quorum or one configuration."""

from collections.abc import Callable

from quivermq.raft import Configuration, MembershipRefused, parse_changes
from quivermq.raft.membership import enter_joint, leave_joint, simple
from quivermq.raft.messages import Entry, Role
from quivermq.raft.options import Options
from quivermq.raft.quorum import EVERYTHING, agreed_index, joint_vote
from quivermq.raft.replica import Replica
from quivermq.raft.status import status_of
from quivermq.testing.memory_storage import MemoryStorage
from quivermq.testing.raft_text import configuration_text, member_text
from tests.raft.scenario_grammar import Directive


class Quorums:
    """Commands on one quorum; nothing is kept between them."""

    def committed(self, directive: Directive) -> str:
        configuration, members = self._configuration(directive)
        words = self._answers(directive, "idx", members)
        acked = {member: int(word) for member, word in words.items() if word != "_"}
        agreed = agreed_index(configuration, lambda member: acked.get(member, 0))
        return self._chart(members, acked) + ("∞" if agreed == EVERYTHING else str(agreed))

    def vote(self, directive: Directive) -> str:
        configuration, members = self._configuration(directive)
        words = self._answers(directive, "votes", members)
        votes = {member: word == "y" for member, word in words.items() if word != "_"}
        return joint_vote(configuration, votes).value

    @staticmethod
    def _configuration(directive: Directive) -> tuple[Configuration, list[int]]:
        options = directive.options
        voters = [int(word) for word in options.get("cfg", ())]
        outgoing = [int(word) for word in options.get("cfgj", ()) if word != "zero"]
        configuration = Configuration(tuple(sorted(voters)), tuple(sorted(outgoing)))
        return configuration, list(dict.fromkeys([*voters, *outgoing]))

    @staticmethod
    def _answers(directive: Directive, key: str, members: list[int]) -> dict[int, str]:
        words = directive.options.get(key, ())
        if len(words) != len(members):
            raise ValueError(f"{len(words)} answers for voters {members}")
        return dict(zip(members, words, strict=True))

    @staticmethod
    def _chart(members: list[int], acked: dict[int, int]) -> str:
        """One bar a voter: as long as there are voters with a lower index."""
        if not members:
            return "<empty majority quorum>"
        width = len(members)
        lines = [" " * width + "    idx"]
        for member in sorted(members):
            index = acked.get(member, 0)
            lower = sum(1 for other in members if acked.get(other, 0) < index)
            bar = ("x" * lower + ">").ljust(width + 1) if member in acked else "?" + " " * width
            lines.append(f"{bar} {index:5}    (id={member})")
        return "\n".join(lines) + "\n"


class Memberships:
    """Commands on one configuration, with what a leader would track of it.

    Each command counts as one entry, so that a member's `next` tells when it was added.
    """

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        options = Options(prevote=False)
        self.replica = Replica(1, self.storage, options, self)
        self.replica.role = Role.LEADER

    def randrange(self, stop: int) -> int:
        return stop - 1

    def simple(self, directive: Directive) -> str:
        changes = parse_changes(directive.input)
        return self._change(lambda old: simple(old, changes))

    def enter_joint(self, directive: Directive) -> str:
        changes = parse_changes(directive.input)
        auto_leave = directive.option("autoleave") == "true"
        return self._change(lambda old: enter_joint(old, changes, auto_leave=auto_leave))

    def leave_joint(self, _directive: Directive) -> str:
        return self._change(leave_joint)

    def _change(self, change: Callable[[Configuration], Configuration]) -> str:
        replica = self.replica
        try:
            replica.adopt(change(replica.configuration))
        except MembershipRefused as refusal:
            return str(refusal)
        finally:
            replica.log.append([Entry(1, replica.log.last_index + 1)])
        members = status_of(replica).progress
        lines = [f"{member}: {member_text(known)}" for member, known in members.items()]
        return "\n".join([configuration_text(replica.configuration), *lines])
