"""One group in one partition: where each of its messages stands.

Above the floor a message is fresh (a cursor per priority has not come to it), waiting, leased,
dying (on its way to the dead letters) or done. Everything is kept as intervals: the state grows
with what is under way, never with what waits in the log.

The methods are what committed operations do. They consult neither clock nor settings: whoever
leads decided before, on a copy of the same state (`Desk`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from quivermq.errors import BrokenInvariant
from quivermq.queue.intervals import Interval, IntervalSet, without
from quivermq.queue.pieces import Piece, intervals_of, messages_in, overlapping, take
from quivermq.queue.stretches import LEVELS, Delayed, Stretches
from quivermq.queue.waiting import Parked, Waiting

SPENT_MAX: Final = 1024
"""Leases of which it is remembered what was acknowledged, so that a repeat is recognised."""
SPENT_INTERVALS_MAX: Final = 65_536
"""The same of all of them together: a lease may be acknowledged message by message."""

DELAYED: Final = LEVELS
"""The cursor behind those of the priorities: it runs along the delayed batches."""


@dataclass(slots=True)
class Lease:
    """Messages that one consumer holds."""

    consumer: int
    visibility_ms: int
    pieces: list[Piece]


class Dying(NamedTuple):
    """Messages on their way to the dead letters, or from there back to where they came from."""

    number: int
    """Of its first message among all that this group sent that way: its producer's sequence."""
    start: int
    end: int
    failures: int
    reason: str
    at_ms: int
    redrive: bool = False
    is_stale: bool = False
    """The group was sought elsewhere since: moving it changes nothing of where the group is."""


@dataclass(slots=True)
class Totals:
    """What became of messages, since the group was last sought."""

    done: int = 0
    dead: int = 0
    lost: int = 0
    redelivered: int = 0


@dataclass(slots=True)
class Group:
    """What is known of one group."""

    number: int
    name: str
    start: int = 0
    """The first message that is its business."""
    is_shared: bool = False
    """False: all it has is a committed offset."""
    floor: int = 0
    """Everything below is done, or never was its business."""
    done: IntervalSet = field(default_factory=IntervalSet)
    cursors: list[int] = field(default_factory=lambda: [0] * (LEVELS + 1))
    leases: dict[int, Lease] = field(default_factory=dict)
    leased_messages: int = 0
    leased_pieces: int = 0
    waiting: Waiting = field(default_factory=Waiting)
    dying: dict[int, Dying] = field(default_factory=dict)
    spent: dict[int, IntervalSet] = field(default_factory=dict)
    spent_intervals: int = 0
    next_dying: int = 0
    dead_epoch: int = 0
    totals: Totals = field(default_factory=Totals)
    first_lease: int = 1
    """Leases before this one were ended by a seek."""
    committed: int | None = None
    claimed: int = 0
    """The epoch of the member of a sticky group that holds the partition."""

    def share_from(self, start: int) -> None:
        """It begins to share work, at `start`."""
        self.is_shared = True
        self.start = self.floor = start
        self.cursors = [start] * (LEVELS + 1)

    # Leases.

    def grant(self, lease: int, consumer: int, visibility_ms: int, pieces: list[Piece]) -> None:
        """Lease pieces that are neither fresh nor waiting any more."""
        self.leases[lease] = Lease(consumer, visibility_ms, sorted(pieces))
        self.leased_messages += messages_in(pieces)
        self.leased_pieces += len(pieces)
        self.totals.redelivered += sum(p.end - p.start for p in pieces if p.failures)

    def take_leased(self, number: int, start: int, end: int) -> list[Piece]:
        """Take messages out of a lease, which ends with the last of them."""
        lease = self.leases.get(number)
        if lease is None:
            return []
        before = len(lease.pieces)
        found = take(lease.pieces, start, end)
        self.leased_messages -= messages_in(found)
        self.leased_pieces += len(lease.pieces) - before
        if not lease.pieces:
            del self.leases[number]
        return found

    def hand_out(self, pieces: Iterable[Piece]) -> None:
        """Messages are done before they are delivered."""
        for piece in pieces:
            self.totals.redelivered += (piece.end - piece.start) * (piece.failures > 0)
            self.drop(piece.start, piece.end)

    def finish(self, lease: int, intervals: list[Interval], fresh: list[Interval]) -> None:
        """Messages are acknowledged: of a lease; or waiting, or fresh, since it was lost."""
        for start, end in intervals:
            found = self.take_leased(lease, start, end) or self.waiting.take(start, end)
            if messages_in(found) != end - start:
                raise BrokenInvariant(f"{self.name}: {start} to {end} is not there to be done")
        spent = self.spent.setdefault(lease, IntervalSet())
        self.spent_intervals -= len(spent)
        for start, end in (*intervals, *fresh):
            spent.add(start, end)
            self.drop(start, end)
        self.spent_intervals += len(spent)
        while len(self.spent) > SPENT_MAX or self.spent_intervals > SPENT_INTERVALS_MAX:
            self.spent_intervals -= len(self.spent.pop(next(iter(self.spent))))

    def complete(self, start: int, end: int) -> None:
        """Messages never come again."""
        if start <= self.floor:
            self.floor = max(self.floor, end)
        else:
            self.done.add(start, end)
        while len(self.done) and self.done.first[0] <= self.floor:
            self.floor = max(self.floor, self.done.pop_first()[1])

    def give_back(self, lease: int, start: int, end: int, due_ms: int, *, failed: bool) -> None:
        """Leased messages wait again."""
        for piece in self.take_leased(lease, start, end):
            self.waiting.put(piece._replace(failures=piece.failures + failed), due_ms)

    def condemn(self, lease: int, start: int, end: int, reason: str, at_ms: int) -> None:
        """Leased messages are to be dead letters. One record for each count of failures."""
        for piece in self.take_leased(lease, start, end):
            self._record(piece.start, piece.end, piece.failures + 1, reason, at_ms)

    def _record(
        self, start: int, end: int, failures: int, reason: str, at_ms: int, *, redrive: bool = False
    ) -> None:
        number = self.next_dying
        self.dying[number] = Dying(number, start, end, failures, reason, at_ms, redrive)
        self.next_dying += end - start

    def send_back(self, start: int, end: int, at_ms: int) -> None:
        """Dead letters are to go to where they came from."""
        self._record(start, end, 0, "", at_ms, redrive=True)

    def bury(self, number: int, kept: Sequence[Interval] = ()) -> None:
        """A record is where it should be, but for what is `kept` here after all."""
        record = self.dying.pop(number, None)
        if record is None or record.is_stale:
            return
        for start, end in without([(record.start, record.end)], kept):
            if record.redrive:
                self.totals.done += end - start
            else:
                self.totals.dead += end - start
            self.complete(start, end)

    def renumber(self, epoch: int) -> None:
        """Count the dead letters from 0 again, in another epoch."""
        self.dead_epoch = epoch
        records, self.dying, self.next_dying = self.dying, {}, 0
        for record in records.values():
            self.dying[self.next_dying] = record._replace(number=self.next_dying)
            self.next_dying += record.end - record.start

    # Where it stands.

    def park(self, batches: list[Delayed], cancelled: IntervalSet) -> None:
        """Take over the next delayed batches: they wait until they are due.

        They are named, and not looked up: the index may have been flattened since.
        """
        for one in batches:
            for low, high in self.not_done(max(one.start, self.cursors[DELAYED]), one.end):
                for start, stop in cancelled.gaps(low, high):
                    self.waiting.put(Piece(start, stop, one.priority, 0), one.due_ms)
                for start, stop in cancelled.within(low, high):
                    self.drop(start, stop)
            self.cursors[DELAYED] = max(self.cursors[DELAYED], one.end)

    def drop(self, start: int, end: int) -> None:
        """Messages are done with."""
        self.totals.done += end - start
        self.complete(start, end)

    def parkable(self, stretches: Stretches, end: int, most: int) -> list[Delayed]:
        """The next batches to `park`, no more than `most`."""
        return list(islice(stretches.delayed_from(self.cursors[DELAYED], end), most))

    def not_done(self, start: int, end: int) -> list[Interval]:
        """What of [start, end) is not done."""
        low = max(start, self.floor)
        return self.done.gaps(low, end) if low < end else []

    def cancel(self, start: int, end: int) -> None:
        """Delayed messages are not to be delivered."""
        for piece in self.waiting.take(start, end):
            self.drop(piece.start, piece.end)

    def seek(self, offset: int, first_lease: int) -> None:
        """Be at `offset`: everything below is behind it, everything above ahead."""
        self.first_lease = first_lease
        if self.is_shared:
            self.leases, self.leased_messages, self.leased_pieces = {}, 0, 0
            self.waiting, self.done, self.totals = Waiting(), IntervalSet(), Totals()
            self.spent, self.spent_intervals = {}, 0
            self.dying = {n: record._replace(is_stale=True) for n, record in self.dying.items()}
            self.share_from(offset)
        if self.committed is not None or not self.is_shared:
            self.committed = offset

    def cease_sharing(self, first_lease: int) -> None:
        """Forget what it shared; what it committed, and who claimed it, stays."""
        committed = self.committed
        self.seek(0, first_lease)
        self.is_shared, self.committed = False, committed

    def trim(self, begin: int, cancelled: IntervalSet) -> None:
        """Retention deleted what is below `begin`: what was not done is lost."""
        if not self.is_shared or begin <= self.floor:
            return
        for lease in list(self.leases):
            self.take_leased(lease, 0, begin)
        self.waiting.take(0, begin)
        kept: dict[int, Dying] = {}
        for number, record in self.dying.items():
            if record.end <= begin:
                continue
            # Its number is its first message's: what is left of it starts further on.
            gone = max(begin - record.start, 0)
            kept[number + gone] = record._replace(number=number + gone, start=record.start + gone)
        self.dying = kept
        for low, high in self.not_done(self.floor, begin):
            unwanted = sum(end - start for start, end in cancelled.within(low, high))
            self.totals.done += unwanted
            self.totals.lost += high - low - unwanted
        self.cursors = [max(cursor, begin) for cursor in self.cursors]
        self.done.remove(0, begin)
        self.complete(self.floor, begin)

    def first_fresh(self, stretches: Stretches) -> int:
        """The lowest offset that a cursor may still come to."""
        ahead = stretches.delayed_from(self.cursors[DELAYED], stretches.end)
        lowest = next((one.start for one in ahead), stretches.end)
        for level in range(LEVELS):
            cursor = max(self.cursors[level], self.floor)
            stretch = stretches.find(level, cursor, stretches.end)
            if stretch is not None:
                lowest = min(lowest, stretch[0])
        return lowest

    def fresh(self, start: int, end: int) -> list[Interval]:
        """What of [start, end) nobody has taken, for the rare case that cursors cannot tell."""
        taken = IntervalSet(self.done.within(start, end))
        taken.add(0, self.floor)
        for low, high in self.waiting.within(start, end):
            taken.add(low, high)
        for lease in self.leases.values():
            if lease.pieces[0].start < end and start < lease.pieces[-1].end:
                first, last = overlapping(lease.pieces, start, end)
                for low, high in intervals_of(lease.pieces[first:last]):
                    taken.add(low, high)
        for record in self.dying.values():
            if not record.is_stale:
                taken.add(record.start, record.end)
        return taken.gaps(start, end)

    # As bytes.

    def state(self) -> list[Any]:
        """All of it as JSON values."""
        totals = self.totals
        return [
            [self.number, self.name, self.start, self.is_shared, self.floor],
            list(self.done),
            self.cursors,
            [[n, x.consumer, x.visibility_ms, x.pieces] for n, x in self.leases.items()],
            self.waiting.parked(),
            list(self.dying.values()),
            [[lease, list(known)] for lease, known in self.spent.items()],
            [self.next_dying, self.dead_epoch],
            [totals.done, totals.dead, totals.lost, totals.redelivered],
            [self.committed, self.claimed, self.first_lease],
        ]

    @classmethod
    def of_state(cls, state: list[Any]) -> "Group":
        """What `state` gave."""
        head, done, cursors, leases, waiting, dying, spent, numbers, totals, progress = state
        group = cls(head[0], head[1], head[2], head[3], head[4], IntervalSet(done), cursors)
        for number, consumer, visibility_ms, pieces in leases:
            found = [Piece(*piece) for piece in pieces]
            group.leases[number] = Lease(consumer, visibility_ms, found)
            group.leased_messages += messages_in(found)
            group.leased_pieces += len(found)
        group.waiting = Waiting.of(Parked(Piece(*piece), due) for piece, due in waiting)
        group.dying = {record[0]: Dying(*record) for record in dying}
        group.spent = {lease: IntervalSet(known) for lease, known in spent}
        group.spent_intervals = sum(map(len, group.spent.values()))
        group.next_dying, group.dead_epoch = numbers
        group.totals = Totals(*totals)
        group.committed, group.claimed, group.first_lease = progress
        return group

    def validate(self, stretches: Stretches) -> None:
        """Raise `BrokenInvariant` unless every message is in one place only, and counted."""
        self.done.validate()
        self.waiting.validate()
        held = [piece for lease in self.leases.values() for piece in lease.pieces]
        if (messages_in(held), len(held)) != (self.leased_messages, self.leased_pieces):
            raise BrokenInvariant(f"{self.name}: {self.leased_messages} leased are counted")
        places = [*intervals_of(held), *self.done, (0, self.floor)]
        places += [(p.piece.start, p.piece.end) for p in self.waiting.parked()]
        places += [(r.start, r.end) for r in self.dying.values() if not r.is_stale]
        counted = sum(end - start for start, end in places)
        if IntervalSet(places).count != counted:
            raise BrokenInvariant(f"{self.name} has messages in two places: {sorted(places)[:20]}")
        if self.is_shared and self.floor > max(stretches.end, self.start):
            raise BrokenInvariant(f"{self.name} is done with {self.floor} of {stretches.end}")
