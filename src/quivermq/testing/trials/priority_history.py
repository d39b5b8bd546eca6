"""Checks that one consumer of a group got its messages by priority, with the promised shares.

It knows what waited: the polls follow one another, nothing is produced meanwhile, and no answer is
lost. For each partition:

- Within a level, messages come in the order of their offsets.
- As long as the same level is the highest that waits, a quarter goes to the levels below it.
- Each level that waits gets at least 2 % of that time's messages.

Another leader may begin its turns anew, so a few messages more or less prove nothing. Messages that
came back or were delayed come before others of their level: they are not waited for here.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from quivermq.testing import Violation
from quivermq.testing.trials.history import TopicPartition

RESERVE: Final = 4
LEAST_SHARE: Final = 0.02
_SLACK: Final = 2


class _Turn(NamedTuple):
    """A poll of one partition."""

    top: int
    """The highest level that waited or was given."""
    given: Counter[int]
    waiting: frozenset[int]
    """The levels that still waited afterwards."""


class PriorityHistory:
    """The polls of one consumer that has its group for itself."""

    def __init__(self) -> None:
        self._polls: dict[TopicPartition, list[list[int]]] = defaultdict(list)

    def record_poll(self, place: TopicPartition, offsets: Sequence[int]) -> None:
        """A poll brought these messages of a partition."""
        self._polls[place].append(list(offsets))

    def check(
        self,
        levels: Mapping[TopicPartition, Mapping[int, int]],
        delayed: Mapping[TopicPartition, set[int]],
    ) -> int:
        """Raise `Violation` if a rule is broken; returns the number of messages that were judged.
        `levels`: of all messages, which all were there before the first poll."""
        for place, polls in self._polls.items():
            turns = _turns(place, polls, levels[place], delayed.get(place, set()))
            for first in range(len(turns)):
                _check_from(place, turns[first:])
        return sum(len(offsets) for polls in self._polls.values() for offsets in polls)


def _turns(
    place: TopicPartition, polls: list[list[int]], levels: Mapping[int, int], delayed: set[int]
) -> list[_Turn]:
    waiting: dict[int, list[int]] = defaultdict(list)
    for offset in sorted(levels, reverse=True):
        if offset not in delayed:
            waiting[levels[offset]].append(offset)
    turns = []
    for offsets in polls:
        given = Counter(levels[offset] for offset in offsets)
        top = max([*given, *(level for level, left in waiting.items() if left)])
        for offset in sorted(set(offsets) - delayed):
            left = waiting[levels[offset]]
            if left and left[-1] < offset:
                raise Violation(
                    f"I8: {place}@{offset} of priority {levels[offset]} was given out before "
                    f"{left[-1]} of the same priority"
                )
            if left and left[-1] == offset:
                left.pop()
        turns.append(_Turn(top, given, frozenset(level for level, left in waiting.items() if left)))
    return turns


def _check_from(place: TopicPartition, turns: Sequence[_Turn]) -> None:
    """Check all stretches of polls that begin with the first of these, as long as the highest level
    stays the same and is not used up."""
    top = turns[0].top
    given: Counter[int] = Counter()
    waiting = set(range(top))
    for turn in turns:
        if turn.top != top or top not in turn.waiting:
            return
        given += turn.given
        waiting &= turn.waiting
        total = given.total()
        below = total - given[top]
        if below > (total + RESERVE - 1) // RESERVE + _SLACK:
            raise Violation(
                f"I8: {place}: {below} of {total} messages were below priority {top}, which "
                f"waited: {dict(given)}"
            )
        if waiting and below < total // RESERVE - _SLACK:
            raise Violation(
                f"I8: {place}: only {below} of {total} messages were below priority {top}, though "
                f"{sorted(waiting)} waited: {dict(given)}"
            )
        for level in sorted(waiting):
            if given[level] < int(total * LEAST_SHARE) - 1:
                raise Violation(
                    f"I8: {place}: priority {level} waited, and got {given[level]} of {total} "
                    f"messages: {dict(given)}"
                )
