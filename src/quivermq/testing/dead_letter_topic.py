"""Where a simulation's dead letters go: another topic, as seen from the one that is simulated.

It keeps the rules of an idempotent producer, and now and then it cannot be reached. An answer may
be lost on its way though the letters are stored.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from quivermq.errors import Fenced, NotEnoughReplicas, OutOfSequence, Timeout
from quivermq.testing.story import Violation

LOST_ANSWERS: Final = 0.1


class DeadLetterTopic:
    """The letters of all groups, in the order in which they came."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self.is_available = True
        self.letters: dict[str, list[int]] = {}
        """By group, the offsets of the messages."""
        self._producers: dict[str, tuple[int, list[int]]] = {}
        """By group, the epoch and what is stored in it, by number."""

    def store(self, group: str, epoch: int, number: int, offsets: Sequence[int]) -> None:
        """Take letters in, unless they are here; raises what a broker would answer."""
        if not self.is_available:
            raise NotEnoughReplicas("the dead-letter topic has no leader")
        known_epoch, stored = self._producers.get(group, (epoch, []))
        if epoch < known_epoch:
            raise Fenced(f"epoch {known_epoch} of {group} is known, this is {epoch}")
        if epoch > known_epoch:
            stored = []
        if number > len(stored):
            raise OutOfSequence(f"{len(stored)} comes next", expected=len(stored))
        self._producers[group] = (epoch, stored)
        for position, offset in enumerate(offsets, number):
            if position == len(stored):
                self._add(group, offset)
                stored.append(offset)
            elif stored[position] != offset:
                raise Violation(
                    f"dead letter {position} of {group} is message {stored[position]}, so that "
                    f"message {offset} is taken for a repeat"
                )
        if self._dice.random() < LOST_ANSWERS:
            raise Timeout("no answer came")

    def _add(self, group: str, offset: int) -> None:
        letters = self.letters.setdefault(group, [])
        if offset in letters:
            raise Violation(f"message {offset} of {group} is a dead letter twice")
        letters.append(offset)
