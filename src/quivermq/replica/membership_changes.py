"""Tracks membership changes under way, and the seal behind each (decision 0014).

A change is in force where it is applied, but only its leader need know that. Were the removed
switched off now and the leader lost, the rest could not elect another: they would still count the
removed as voters. So a leader puts one more membership entry behind a change, which changes
nothing: the *seal*. It is committed by the majority of the configuration that it follows, and
a member that has it knows that the change before it is committed, after a restart too. A change is
answered when its seal is applied.

A joint configuration that is left by itself is one change: it is answered when the seal behind
the leaving is applied.
"""

from typing import Final

from quivermq.raft import NOBODY, Act, Change, Configuration, MembershipChange, Transition
from quivermq.replica.effects import Token

SEAL: Final = MembershipChange((Change(Act.UPDATE, NOBODY),), Transition.SIMPLE)


class MembershipChanges:
    """The changes that a member has proposed or applied, and whose end is yet to come."""

    __slots__ = ("_leaving", "_proposed", "_unsealed", "is_seal_due")

    def __init__(self) -> None:
        # By index, what was proposed here and is not applied.
        self._proposed: dict[int, Token] = {}
        # Applied as a joint configuration that will be left by itself.
        self._leaving: list[Token] = []
        # Applied for good, and not sealed.
        self._unsealed: list[Token] = []
        self.is_seal_due = False
        """Whether the last change that was applied has no seal, or none that is applied."""

    def propose(self, index: int, token: Token) -> None:
        """A change was proposed, and took this place in the log."""
        self._proposed[index] = token

    def take_displaced(self, index: int) -> Token | None:
        """The token of a change at `index`, where something else is applied in its stead."""
        return self._proposed.pop(index, None)

    def apply(
        self, index: int, change: MembershipChange, configuration: Configuration
    ) -> list[Token]:
        """A change is applied, which leads to `configuration`: the tokens of changes that are over.

        As any membership entry is proposed only when the one before it is applied, it seals that.
        """
        ended, self._unsealed = self._unsealed, []
        token = self._proposed.pop(index, None)
        mine = [] if token is None else [token]
        self.is_seal_due = change != SEAL and not configuration.is_joint
        if configuration.auto_leave:
            self._leaving = mine
        elif self.is_seal_due:
            self._unsealed = self._leaving + mine
            self._leaving = []
        else:
            # A seal, or a joint configuration that is left on request: no token waits for that.
            ended += mine
        return ended

    def give_up(self) -> list[Token]:
        """The leadership is over: all tokens that wait."""
        tokens = [*self._unsealed, *self._leaving, *self._proposed.values()]
        self._unsealed, self._leaving, self._proposed = [], [], {}
        return tokens

    @property
    def is_busy(self) -> bool:
        """Whether a token waits."""
        return bool(self._unsealed or self._leaving or self._proposed)
