"""Checks what callers with tokens were allowed and refused, against what they were granted.

A `Permit` is a token. Two rules, each with the times of one clock:

- nothing takes effect that is asked for after the server that answers knew that it is not granted:
  a `AccessChange` that takes an action away says since when every server knows;
- nothing is refused that was granted before it was asked for, if taking it away was not asked for
  before the refusal came. While a change of its user spreads, connections end, and refusals of
  anything are excused.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from quivermq.testing import Violation

SIGN_IN: Final = "sign in"
"""The actions that every existing token allows, beside `produce` and `consume`."""


@dataclass
class AccessChange:
    """Actions that are taken away from a token."""

    actions: frozenset[str]
    asked_us: int
    known_us: int | None = None
    """Since then no broker does any of these."""
    settled_us: int | None = None
    """Since then no server lets anybody in by what was taken away, and no connection is left that
    has to end."""

    def holds_from(self, action: str) -> int | None:
        """A gateway that has not heard of it lets a caller in, and no broker does what it asks."""
        if action not in self.actions:
            return None
        return self.settled_us if action == SIGN_IN else self.known_us


@dataclass
class Permit:
    """A token, or a text that is none."""

    user: str
    token: str
    asked: set[str] = field(default_factory=set)
    """Actions that were to be granted, whether that was answered or not."""
    granted_us: dict[str, int] = field(default_factory=dict)
    """Since when an action is granted: the time of the answer."""
    changes: list[AccessChange] = field(default_factory=list)

    def grant(self, action: str, now_us: int) -> None:
        """It was answered that an action is allowed."""
        self.asked.add(action)
        self.granted_us[action] = now_us

    def begin_to_take(self, actions: Iterable[str], now_us: int) -> AccessChange:
        """Asked for; the change is told when it is known."""
        change = AccessChange(frozenset(actions), now_us)
        self.changes.append(change)
        return change

    @property
    def left(self) -> set[str]:
        """Actions that may be allowed and were not asked to end."""
        return self.asked.difference(*(change.actions for change in self.changes))

    def replaced(self, token: str, changes: Sequence[AccessChange]) -> "Permit":
        """The next token of the user, which these were asked to take something from before. As
        long as it is not known that they did, it may allow all of it."""
        open_ones = [change for change in changes if change.known_us is None]
        gone = (change.actions for change in changes if change.known_us is not None)
        return Permit(self.user, token, self.asked.difference(*gone), changes=open_ones)

    def judge_effect(self, action: str, began_us: int) -> None:
        """Something was done that was asked for at this time."""
        if action not in self.asked:
            raise Violation(f"access: {self.user} may not {action}, and did")
        for change in self.changes:
            known_us = change.holds_from(action)
            if known_us is not None and began_us > known_us:
                raise Violation(
                    f"access: {self.user} asked to {action} at {began_us} us and did, though all "
                    f"servers knew at {known_us} us that it may not"
                )

    def judge_refusal(self, action: str, began_us: int, ended_us: int) -> None:
        """Something was refused for lack of a token or a grant."""
        granted_us = self.granted_us.get(action)
        if granted_us is None or granted_us > began_us:
            return
        for change in self.changes:
            if action in change.actions and change.asked_us <= ended_us:
                return
            is_over = change.settled_us is not None and change.settled_us < began_us
            if change.asked_us <= ended_us and not is_over:
                return
        raise Violation(
            f"access: {self.user} was refused to {action} between {began_us} and {ended_us} us, "
            f"though it may since {granted_us} us"
        )
