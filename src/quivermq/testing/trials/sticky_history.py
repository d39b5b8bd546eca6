"""Checks what the members of a sticky group were given: each partition in order, by one member.

- While a member holds a partition, it gets its messages one after another, without a gap.
- Whoever gets a partition goes on at or before the message behind the last one given out.
- A member that was given a message of a partition after another one had got that partition, and
  messages of it, was not the holder any more.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from quivermq.testing import Violation
from quivermq.testing.trials.history import TopicPartition


@dataclass(eq=False)
class Holding:
    """A member holds a partition."""

    member: str
    place: TopicPartition
    since_us: int
    given: list[tuple[int, int]] = field(default_factory=list)
    """When, and which offset."""


class StickyHistory:
    """The holdings of all members of one group."""

    def __init__(self) -> None:
        self._holdings: dict[TopicPartition, list[Holding]] = defaultdict(list)
        self._last: dict[tuple[str, TopicPartition], Holding] = {}

    def assign(self, member: str, place: TopicPartition, at_us: int) -> None:
        """A member has got a partition."""
        holding = Holding(member, place, at_us)
        self._holdings[place].append(holding)
        self._last[member, place] = holding

    def give(self, member: str, place: TopicPartition, at_us: int, offset: int) -> None:
        """A member was given a message of a partition that it has."""
        self._last[member, place].given.append((at_us, offset))

    def check(self, ends: dict[TopicPartition, int], *, is_drained: bool) -> int:
        """Raise `Violation` if a rule is broken; returns how many messages were given out."""
        for place, holdings in self._holdings.items():
            for holding in holdings:
                _check_dense(holding)
            _check_gaps(place, holdings)
            _check_exclusive(holdings)
            seen = {offset for holding in holdings for _, offset in holding.given}
            if is_drained and seen != set(range(ends[place])):
                missing = sorted(set(range(ends[place])) - seen)[:10]
                raise Violation(f"I5: {place}: no member was given {missing}")
        return sum(len(one.given) for held in self._holdings.values() for one in held)


def _check_dense(holding: Holding) -> None:
    offsets = [offset for _, offset in holding.given]
    if offsets and offsets != list(range(offsets[0], offsets[0] + len(offsets))):
        at = next(n for n, offset in enumerate(offsets) if offset != offsets[0] + n)
        raise Violation(
            f"I7: {holding.member} was given offset {offsets[at]} of {holding.place} behind "
            f"{offsets[at - 1]}"
        )


def _check_gaps(place: TopicPartition, holdings: list[Holding]) -> None:
    given = sorted(
        (at_us, offset, number)
        for number, holding in enumerate(holdings)
        for at_us, offset in holding.given
    )
    end = 0
    for _, offset, number in given:
        if offset > end:
            raise Violation(
                f"I5: {holdings[number].member} was given offset {offset} of {place}, and no "
                f"member offset {end}"
            )
        end = max(end, offset + 1)


def _check_exclusive(holdings: list[Holding]) -> None:
    begun = sorted((one for one in holdings if one.given), key=lambda one: one.since_us)
    for number, holding in enumerate(begun):
        for later in begun[number + 1 :]:
            last_us, offset = holding.given[-1]
            if later.member != holding.member and last_us > later.given[0][0]:
                raise Violation(
                    f"I7: {holding.member} was given offset {offset} of {holding.place} at "
                    f"{last_us} us; {later.member} had it since {later.given[0][0]} us"
                )
