"""Chooses the messages that a group gets next: the highest priority first, a reserve for others.

A quarter of what is delivered while several levels wait goes to those below the highest, in turns.
Where the turns are is no part of the replicated state: another leader may begin them anew.
"""

from dataclasses import dataclass, field
from typing import Final

from quivermq.intervals import Interval, IntervalSet
from quivermq.queue.group import Group
from quivermq.queue.pieces import Piece, piece_intervals
from quivermq.queue.priority_index import LEVELS, PriorityIndex

RESERVE: Final = 4
"""One of so many deliveries is for the levels below the highest."""

PIECES_MAX: Final = 200_000
"""Pieces of a group that may be leased, waiting or dying; past it, nothing fresh is given out.
Messages that their producer delayed are not among them: they are bounded by themselves."""

PIECES_AT_ONCE: Final = 4096
"""Pieces of one lease."""


@dataclass(slots=True)
class Selection:
    """The chosen messages, and how they were found: the content of a grant."""

    fresh: list[tuple[int, int, int]] = field(default_factory=list)
    returned: list[Piece] = field(default_factory=list)
    cursors: dict[int, int] = field(default_factory=dict)

    @property
    def pieces(self) -> list[Piece]:
        fresh = [Piece(start, end, priority, 0) for start, end, priority in self.fresh]
        return sorted(fresh + self.returned)

    def __bool__(self) -> bool:
        return bool(self.fresh or self.returned)


class Selector:
    """The turns of one group."""

    def __init__(self) -> None:
        self._carry = 0
        self._turn = 0

    def choose(
        self,
        group: Group,
        priority_index: PriorityIndex,
        end: int,
        wanted: int,
        *,
        takes_fresh: bool = True,
    ) -> Selection:
        """Take up to `wanted` messages out of what is ready and fresh below `end`."""
        candidates = Candidates(group, priority_index, end, takes_fresh=takes_fresh)
        while wanted:
            levels = [level for level in range(LEVELS - 1, -1, -1) if candidates.has(level)]
            if not levels:
                break
            share = 0
            if len(levels) > 1:
                share, self._carry = divmod(self._carry + wanted, RESERVE)
            given = self._spread(candidates, levels[1:], share)
            wanted -= given + candidates.take(levels[0], wanted - given)
        return candidates.choice

    def _spread(self, candidates: "Candidates", levels: list[int], share: int) -> int:
        """Give the reserve to the levels in turns, beginning behind the last that had one."""
        given = 0
        while share > given and (waiting := [level for level in levels if candidates.has(level)]):
            turns = sorted(waiting, key=lambda level: (self._turn - level - 1) % LEVELS)
            each, more = divmod(share - given, len(turns))
            for position, level in enumerate(turns):
                part = each + (position < more)
                if part:
                    given += candidates.take(level, part)
                if position < more:
                    # Not behind the last of all: the same levels would have one more every time.
                    self._turn = level
        return given


class Candidates:
    """The messages that a group could be given, level by level, while a choice is made."""

    def __init__(
        self, group: Group, priority_index: PriorityIndex, end: int, *, takes_fresh: bool = True
    ) -> None:
        self.choice = Selection()
        self._group = group
        self._priority_index = priority_index
        self._end = end
        self._left = PIECES_AT_ONCE
        self._taken: IntervalSet | None = None
        self._fresh_left = room_for_fresh(group) if takes_fresh else 0

    def has(self, level: int) -> bool:
        if not self._left:
            return False
        return self._group.waiting.first_ready(level) is not None or self._fresh(level) is not None

    def take(self, level: int, wanted: int) -> int:
        """Take messages of a level: those that came back, then fresh ones, both in order."""
        taken = 0
        while taken < wanted and self._left:
            piece = self._group.waiting.first_ready(level)
            if piece is not None:
                stop = min(piece.end, piece.start + wanted - taken)
                self.choice.returned += self._group.waiting.take(piece.start, stop)
                self._note_taken(piece.start, stop)
                taken += stop - piece.start
                self._left -= 1
                continue
            fresh = self._fresh(level)
            if fresh is None:
                break
            start, stop = fresh[0], min(fresh[1], fresh[0] + wanted - taken)
            self.choice.fresh.append((start, stop, level))
            self._note_taken(start, stop)
            self._fresh_left -= 1
            self._left -= 1
            self._move(level, stop)
            taken += stop - start
        return taken

    def _fresh(self, level: int) -> Interval | None:
        if not self._fresh_left:
            return None
        while True:
            cursor = self._group.cursors[level]
            found = self._priority_index.find(level, cursor, self._end)
            if found is None:
                return None
            if found[0] >= self._priority_index.flat_end:
                # Done without having been taken: it was purged, or acknowledged in another way.
                left = self._group.done.first_gap(max(found[0], self._group.floor), found[1])
            else:
                # Stretches were made one since: some may have been taken by other cursors.
                left = self._taken_before(found[0]).first_gap(*found)
            if left is not None:
                return left
            self._move(level, found[1])

    def _taken_before(self, start: int) -> IntervalSet:
        """The taken parts of the flat part of the index, from the first look on: gathered once."""
        if self._taken is None:
            chosen = piece_intervals(self.choice.pieces)
            found = sorted(
                self._group.taken_intervals(start, self._priority_index.flat_end) + chosen
            )
            self._taken = IntervalSet(found)
        return self._taken

    def _note_taken(self, start: int, end: int) -> None:
        if self._taken is not None:
            self._taken.add(start, end)

    def _move(self, level: int, cursor: int) -> None:
        self._group.cursors[level] = cursor
        self.choice.cursors[level] = cursor


def room_for_fresh(group: Group) -> int:
    """How many pieces of fresh messages may be given out."""
    waiting = len(group.waiting) - group.waiting.delayed_pieces
    return max(PIECES_MAX - waiting - group.leased_pieces - len(group.dying), 0)


def count_ready(
    group: Group, priority_index: PriorityIndex, end: int, limit: int, *, takes_fresh: bool = True
) -> int:
    """How many messages could be chosen, counted no further than `limit`."""
    found = group.waiting.ready_messages
    # A poll that is told of messages which are not given out would ask again and again.
    for level in range(LEVELS if takes_fresh and room_for_fresh(group) else 0):
        if found >= limit:
            break
        found += priority_index.count(level, group.cursors[level], end, limit - found)
    return min(found, limit)
