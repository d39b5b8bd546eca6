"""Records of dead letters: messages that a broker moves to another partition, or back.

A record stays until its messages are stored there: nothing is lost if that takes long. Its number
is the producer's sequence that they are stored under, so the target recognises a repeat.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from quivermq.errors import Overloaded
from quivermq.intervals import Interval, IntervalSet, join, without
from quivermq.queue.group import DyingMessages, Group
from quivermq.queue.groups import Op
from quivermq.queue.partition import Partition
from quivermq.queue.pieces import Piece
from quivermq.queue.working_copy import WorkingCopy

REDRIVE_GROUP: Final = "_dlq"
"""The broker's own group in a dead-letter topic: what is done there was redriven or purged."""

RECORD_MESSAGES_MAX: Final = 1000
"""Messages that are moved at a time."""
REVIVED_INTERVALS: Final = 10_000
"""Of messages that groups were given again; past it, all are forgotten."""
RECORDS_AT_ONCE: Final = 1000
"""Records that are named, made or ended in one go: a leader has other requests to serve."""


class DeadLetterRecords:
    """The dead letters of a partition's groups, as its leader decides about them."""

    def __init__(self, partition: Partition, working_copy: WorkingCopy) -> None:
        self._partition = partition
        self._working_copy = working_copy
        self._revived: dict[str, IntervalSet] = {}

    def revived(self, group: str) -> IntervalSet | None:
        """The messages that a group was given again: they do not expire a second time. Only this
        leader remembers them, and not very many: under the next one a message may become a dead
        letter once more."""
        return self._revived.get(group)

    def dying(self) -> list[tuple[str, DyingMessages]]:
        """Records to be moved, with their group, each group's in order; of very many the first.

        Only what is applied: if a leader moved a record that is never committed, the next one would
        give its number to other messages, and the target would take them for a repeat.
        """
        found = []
        dying = self._partition.groups.with_dying
        each = max(RECORDS_AT_ONCE // max(len(dying), 1), 1)
        for number in sorted(dying):
            applied = self._partition.groups.by_number[number]
            group = self._working_copy.groups.by_number.get(number)
            if group is not None and group.dead_epoch == applied.dead_epoch:
                known = (r for n, r in applied.dying.items() if group.dying.get(n) == r)
                found += [(group.name, record) for record in islice(known, each)]
        return found

    def bury(self, group: str, number: int, kept: Sequence[Interval] = ()) -> None:
        """A record is stored where it should be; of a redrive, what is `kept` stays dead."""
        found = self._working_copy.groups.by_name.get(group)
        if found is not None and number in found.dying:
            self._working_copy.propose(Op.BURY, found.number, number, join(kept))

    def dead_epoch(self, group: str) -> int:
        """The epoch of the producer that moves this group's dead letters."""
        found = self._working_copy.groups.by_name.get(group)
        return 0 if found is None else found.dead_epoch

    def restart_numbers(self, group: str) -> None:
        """The target has forgotten this producer: begin its next epoch."""
        found = self._working_copy.groups.by_name.get(group)
        if found is not None:
            self._working_copy.propose(Op.RENUMBER, found.number)

    def dead(self, start: int, end: int) -> list[Interval]:
        """Of a dead-letter topic: what was neither redriven nor purged, nor is about to be."""
        found = self._working_copy.groups.by_name.get(REDRIVE_GROUP)
        if found is None:
            return [(start, end)] if start < end else []
        return found.fresh(start, end)

    def revive(self, group: str, redrive: int, pieces: list[Piece], start: int) -> list[Interval]:
        """Let a group have messages again that it is done with: they wait as if they were never
        delivered. Returns those that it cannot have: deleted (below `start`), or never its own.

        A redrive has a number, by which a repeat is recognised: what was revived before may be
        acknowledged by now. What the group has in hand it has, and nothing is to be done. Raises
        `Overloaded` while a record of them is not ended, though its letters are stored: it would
        end after this, and the group would have done with them for good.
        """
        found = self._working_copy.groups.by_name.get(group)
        if found is None or not found.is_shared:
            return join((piece.start, piece.end) for piece in pieces)
        low, high = max(start, found.start), self._partition.next_offset
        named = [(piece.start, piece.end) for piece in pieces]
        if redrive not in found.revivals:
            _check_ended(found, named)
        gone = without(join(named), [(low, high)] if low < high else [])
        done = IntervalSet([(low, found.floor)] if low < found.floor else [])
        revived: list[tuple[int, int, int]] = []
        for piece in pieces if redrive not in found.revivals else ():
            begin, end = max(piece.start, low), min(piece.end, high)
            for parts in (done, found.done) if begin < end else ():
                revived += [(*part, piece.priority) for part in parts.within(begin, end)]
        if revived:
            self._working_copy.check_room()
            self._working_copy.propose(Op.REVIVE, found.number, redrive, _apart(revived))
            self._remember_revived(group, revived)
        return gone

    def _remember_revived(self, group: str, revived: list[tuple[int, int, int]]) -> None:
        if sum(map(len, self._revived.values())) > REVIVED_INTERVALS:
            self._revived.clear()
        known = self._revived.setdefault(group, IntervalSet())
        for start, end, _ in revived:
            known.add(start, end)

    def redrive(
        self,
        start: int,
        end: int,
        intervals: list[Interval] | None,
        now_ms: int,
        target: str = "",
    ) -> int:
        """Send dead letters back to where they came from, or to a target (`DyingMessages.reason`);
        returns how many. Of very many the first: ask again until there are none."""
        parts = _first(self._unsettled(start, end, intervals), RECORDS_AT_ONCE)
        if parts:
            self._working_copy.check_room()
            group = self._redrive_group(start)
            told = [target] if target else []
            self._working_copy.propose(Op.SEND_BACK, group.number, parts, now_ms, *told)
        return sum(high - low for low, high in parts)

    def purge(self, start: int, end: int, intervals: list[Interval] | None) -> int:
        """Have done with dead letters, also with those that wait to be redriven; returns how
        many. Of very many the first: ask again until there are none."""
        parts = list(islice(self._unsettled(start, end, intervals), RECORDS_AT_ONCE))
        if parts:
            self._working_copy.propose(Op.PURGE, self._redrive_group(start).number, parts)
        waiting = self._redriving(intervals)[:RECORDS_AT_ONCE]
        for record in waiting:
            self.bury(REDRIVE_GROUP, record.number)
        purged = parts + [(record.start, record.end) for record in waiting]
        return sum(high - low for low, high in purged)

    def _redriving(self, intervals: list[Interval] | None) -> list[DyingMessages]:
        """Records under way that lie within what is named."""
        found = self._working_copy.groups.by_name.get(REDRIVE_GROUP)
        records = [] if found is None else [r for r in found.dying.values() if r.redrive]
        if intervals is None:
            return records
        named = IntervalSet(intervals)
        return [r for r in records if not named.gaps(r.start, r.end)]

    def _redrive_group(self, start: int) -> Group:
        self._working_copy.open_group(REDRIVE_GROUP, start)
        return self._working_copy.shared_group(REDRIVE_GROUP)

    def _unsettled(self, start: int, end: int, intervals: list[Interval] | None) -> list[Interval]:
        unsettled = IntervalSet(self.dead(start, end))
        if intervals is None:
            return list(unsettled)
        return [part for low, high in join(intervals) for part in unsettled.within(low, high)]


def _apart(parts: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """In order, and each message once: several dead letters may be of one message."""
    found: list[tuple[int, int, int]] = []
    for start, end, priority in sorted(parts):
        begin = max(start, found[-1][1]) if found else start
        if begin < end:
            found.append((begin, end, priority))
    return found


def _first(intervals: Iterable[Interval], most: int) -> list[Interval]:
    """As records to be moved, no more than so many."""
    records = (
        (at, min(at + RECORD_MESSAGES_MAX, high))
        for low, high in intervals
        for at in range(low, high, RECORD_MESSAGES_MAX)
    )
    return list(islice(records, most))


def _check_ended(group: Group, named: Sequence[Interval]) -> None:
    dying = IntervalSet((r.start, r.end) for r in group.dying.values() if not r.is_stale)
    if any(dying.within(start, end) for start, end in named):
        raise Overloaded(
            f"messages of group {group.name} are still on their way to its dead letters: "
            "they can be put back in a moment"
        )
