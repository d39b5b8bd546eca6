"""One group in one partition: where each of its messages stands.

Above the floor a message is fresh (a cursor per priority has not come to it), waiting, leased,
dying (on its way to the dead letters) or done. Everything is kept as intervals: the state grows
with what is under way, never with what waits in the log.

The methods are what committed operations do. They consult neither clock nor settings: the leader
decided before, on a copy of the same state (`LeaseManager`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from quivermq.errors import BrokenInvariant
from quivermq.intervals import Interval, IntervalSet, without
from quivermq.queue.delayed import FIRST_KEY, Delayed, DelayedBatches, DueKey
from quivermq.queue.failure_reasons import FailureReasons
from quivermq.queue.last_holders import LastHolders
from quivermq.queue.pieces import Piece, cut, messages_in, overlapping, piece_intervals
from quivermq.queue.priority_index import LEVELS, PriorityIndex
from quivermq.queue.redelivery_queue import RedeliveryQueue

SETTLED_MAX: Final = 1024
"""Leases of which it is remembered what was acknowledged, so that a repeat is recognised."""
SETTLED_INTERVALS_MAX: Final = 65_536
"""The same of all of them together: a lease may be acknowledged message by message."""
REVIVALS_MAX: Final = 64
"""Redrives to a group that are remembered. A dead-letter partition repeats only its last one."""

TO_GROUP: Final = "@group"
"""The target of a redrive to the group that failed. No topic is called so."""

DELAYED: Final = LEVELS
"""The cursor behind those of the priorities: it runs along the delayed batches."""

GROUP_BYTES: Final = 256
LEASE_BYTES: Final = 29
PIECE_BYTES: Final = 21
WAITING_BYTES: Final = 29
DYING_BYTES: Final = 49
SETTLED_BYTES: Final = 21
HOLDER_BYTES: Final = 32
INTERVAL_BYTES: Final = 16
REVIVAL_BYTES: Final = 8
"""The size of each in a checkpoint."""


class Lease(NamedTuple):
    """Messages that one consumer holds. Never changed, but replaced: copies of a group share it."""

    consumer: int
    visibility_ms: int
    pieces: Sequence[Piece]
    is_whole: bool = True
    """Nothing of it was given up, lost or rejected so far."""


@dataclass(slots=True)
class SettledLease:
    """The acknowledged part of a lease, kept so that a repeat is recognised."""

    consumer: int
    done: IntervalSet
    is_whole: bool
    """All that left the lease was acknowledged."""

    def copy(self) -> "SettledLease":
        return SettledLease(self.consumer, self.done.copy(), self.is_whole)


class TakeOver(NamedTuple):
    """Delayed batches that a group takes over, and how far it has come with that."""

    batches: list[Delayed]
    cursor: int
    due: DueKey
    is_all: bool
    """False: there is more to look at."""


class DyingMessages(NamedTuple):
    """Messages on their way to the dead letters, or from there back to where they came from."""

    number: int
    """Of its first message among all that this group sent that way: its producer's sequence."""
    start: int
    end: int
    failures: int
    reason: str
    """Why they died. Of a redrive, its target: "": the topic that they came from, for all groups;
    `TO_GROUP`: the group that failed; else a topic."""
    at_ms: int
    redrive: bool = False
    is_stale: bool = False
    """The group was sought elsewhere since: moving it changes nothing of where the group is."""


@dataclass(slots=True)
class Totals:
    """Counts of messages since the group was last sought."""

    done: int = 0
    dead: int = 0
    lost: int = 0
    redelivered: int = 0


@dataclass(slots=True)
class Group:
    """The state of one group."""

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
    due: DueKey = FIRST_KEY
    """Delayed batches up to here in the order by due time are taken over, if they begin below
    the cursor `DELAYED`."""
    leases: dict[int, Lease] = field(default_factory=dict)
    leased_messages: int = 0
    leased_pieces: int = 0
    waiting: RedeliveryQueue = field(default_factory=RedeliveryQueue)
    dying: dict[int, DyingMessages] = field(default_factory=dict)
    dying_messages: int = 0
    """Without stale ones."""
    reason_bytes: int = 0
    last_holders: LastHolders = field(default_factory=LastHolders)
    """Of what waits again: they may finish it for as long as no other consumer has it."""
    reasons: FailureReasons = field(default_factory=FailureReasons)
    """Why messages that are not done failed before."""
    settled_leases: dict[int, SettledLease] = field(default_factory=dict)
    settled_intervals: int = 0
    next_dying: int = 0
    dead_epoch: int = 0
    revivals: dict[int, None] = field(default_factory=dict)
    """The last redrives that brought dead letters back here: a repeat changes nothing."""
    totals: Totals = field(default_factory=Totals)
    committed: int | None = None
    claimed: int = 0
    """The epoch of the member of a sticky group that holds the partition."""
    counted_bytes: int = 0
    """Its `size_bytes` as it was last added to that of all groups."""

    def copy(self) -> "Group":
        """The same, to be changed apart: at the cost of a few copies of lists, whatever is in
        them."""
        return replace(
            self,
            done=self.done.copy(),
            cursors=self.cursors.copy(),
            leases=self.leases.copy(),
            waiting=self.waiting.copy(),
            last_holders=self.last_holders.copy(),
            reasons=self.reasons.copy(),
            revivals=self.revivals.copy(),
            dying=self.dying.copy(),
            settled_leases={lease: known.copy() for lease, known in self.settled_leases.items()},
            totals=replace(self.totals),
        )

    @property
    def size_bytes(self) -> int:
        """The size of it in a checkpoint, at most."""
        return (
            GROUP_BYTES
            + 4 * len(self.name)
            + INTERVAL_BYTES * (len(self.done) + self.settled_intervals)
            + LEASE_BYTES * len(self.leases)
            + PIECE_BYTES * self.leased_pieces
            + WAITING_BYTES * len(self.waiting)
            + DYING_BYTES * len(self.dying)
            + self.reason_bytes
            + SETTLED_BYTES * len(self.settled_leases)
            + HOLDER_BYTES * len(self.last_holders)
            + self.reasons.size_bytes
            + REVIVAL_BYTES * len(self.revivals)
        )

    def share_from(self, start: int) -> None:
        """It begins to share work, at `start`."""
        self.is_shared = True
        self.start = self.floor = start
        self.cursors = [start] * (LEVELS + 1)
        self.due = FIRST_KEY

    # Leases.

    def grant(self, lease: int, consumer: int, visibility_ms: int, pieces: list[Piece]) -> None:
        """Lease pieces that are neither fresh nor waiting any more."""
        self.leases[lease] = Lease(consumer, visibility_ms, sorted(pieces))
        self.leased_messages += messages_in(pieces)
        self.leased_pieces += len(pieces)
        self.totals.redelivered += sum(p.end - p.start for p in pieces if p.failures)
        self._forget_holders(pieces)

    def _forget_holders(self, pieces: Iterable[Piece]) -> None:
        """Messages are with another consumer: an ack of the one before comes too late."""
        if len(self.last_holders):
            for piece in pieces:
                self.last_holders.remove(piece.start, piece.end)

    def held_by(self, consumer: int | None, number: int) -> Lease | None:
        """A lease that lasts, if it is this consumer's; None: any consumer's."""
        lease = self.leases.get(number)
        return lease if lease is not None and consumer in {None, lease.consumer} else None

    def is_known(self, consumer: int, number: int) -> bool:
        """Whether a consumer's lease lasts, or all of it was acknowledged. Of no other is it known
        what its consumer would speak of without naming it."""
        known = self.settled_leases.get(number)
        is_done = known is not None and known.is_whole and known.consumer == consumer
        return is_done or self.held_by(consumer, number) is not None

    def take_leased(self, number: int, intervals: Sequence[Interval]) -> list[Piece]:
        """Take messages, in order, out of a lease, which ends with the last of them."""
        lease = self.leases.get(number)
        if lease is None:
            return []
        found, left = cut(lease.pieces, intervals)
        self.leased_messages -= messages_in(found)
        self.leased_pieces += len(left) - len(lease.pieces)
        if left:
            self.leases[number] = lease._replace(pieces=left)
        else:
            del self.leases[number]
        return found

    def hand_out(self, pieces: Sequence[Piece]) -> None:
        """Messages are done before they are delivered."""
        self._forget_holders(pieces)
        for piece in pieces:
            self.totals.redelivered += (piece.end - piece.start) * (piece.failures > 0)
            self.drop(piece.start, piece.end)

    def finish(self, lease: int, consumer: int, intervals: list[Interval]) -> None:
        """Messages are acknowledged: of a lease, or waiting since it was lost."""
        known = self.leases.get(lease)
        is_whole = known is not None and known.is_whole
        held = self.take_leased(lease, intervals)
        for start, end in without(intervals, piece_intervals(held)):
            found = self.waiting.take(start, end)
            self.last_holders.remove(start, end)
            if messages_in(found) != end - start:
                raise BrokenInvariant(f"{self.name}: {start} to {end} is not there to be done")
        settled = self.settled_leases
        done = settled.setdefault(lease, SettledLease(consumer, IntervalSet(), is_whole)).done
        self.settled_intervals -= len(done)
        for start, end in intervals:
            done.add(start, end)
            self.drop(start, end)
        self.settled_intervals += len(done)
        while len(settled) > SETTLED_MAX or self.settled_intervals > SETTLED_INTERVALS_MAX:
            self.settled_intervals -= len(settled.pop(next(iter(settled))).done)

    def _break(self, lease: int) -> None:
        """Something leaves a lease that is not acknowledged."""
        if (held := self.leases.get(lease)) is not None:
            self.leases[lease] = held._replace(is_whole=False)
        if (known := self.settled_leases.get(lease)) is not None:
            known.is_whole = False

    def complete(self, start: int, end: int) -> None:
        """Messages never come again, unless they are dead and revived."""
        if len(self.reasons):
            self.reasons.remove(start, end)
        if start <= self.floor:
            self.floor = max(self.floor, end)
        else:
            self.done.add(start, end)
        if len(self.done) and self.done.starts[0] <= self.floor:
            self.floor = self.done.take_up_to(self.floor)

    def give_back(
        self, lease: int, returns: Sequence[tuple[int, int, int, bool]], reason: str = ""
    ) -> None:
        """Leased messages wait again: from, to, when they are due, whether they failed; and why."""
        consumer = self.leases[lease].consumer if lease in self.leases else 0
        self._break(lease)
        at = 0
        for piece in self.take_leased(lease, [(start, end) for start, end, _, _ in returns]):
            while returns[at][1] <= piece.start:
                at += 1
            _, _, due_ms, failed = returns[at]
            self.last_holders.put(piece.start, piece.end, lease, consumer)
            self.waiting.put(piece._replace(failures=piece.failures + failed), due_ms)
            if reason:
                self.reasons.put(piece.start, piece.end, reason)

    def condemn(self, lease: int, intervals: Sequence[Interval], reason: str, at_ms: int) -> None:
        """Leased messages are to be dead letters. One record for each count of failures."""
        self._break(lease)
        for piece in self.take_leased(lease, intervals):
            self._record(piece.start, piece.end, piece.failures + 1, reason, at_ms)
            self.reasons.remove(piece.start, piece.end)

    def _record(
        self, start: int, end: int, failures: int, reason: str, at_ms: int, *, redrive: bool = False
    ) -> None:
        number = self.next_dying
        self.dying[number] = DyingMessages(number, start, end, failures, reason, at_ms, redrive)
        self.dying_messages += end - start
        self.reason_bytes += len(reason.encode())
        self.next_dying += end - start

    def send_back(self, start: int, end: int, at_ms: int, target: str = "") -> None:
        """Dead letters are to go to where they came from, or to a target."""
        self._record(start, end, 0, target, at_ms, redrive=True)

    def bury(self, number: int, kept: Sequence[Interval] = ()) -> None:
        """A record is where it should be, but for what is `kept` here after all."""
        record = self.dying.pop(number, None)
        if record is None:
            return
        self.reason_bytes -= len(record.reason.encode())
        if record.is_stale:
            return
        self.dying_messages -= record.end - record.start
        for start, end in without([(record.start, record.end)], kept):
            if record.redrive:
                self.totals.done += end - start
            else:
                self.totals.dead += end - start
            self.complete(start, end)

    def revive(self, redrive: int, pieces: Sequence[Piece]) -> None:
        """Messages that were done wait again, as if they had never been delivered."""
        self.revivals.pop(redrive, None)
        self.revivals[redrive] = None
        if len(self.revivals) > REVIVALS_MAX:
            del self.revivals[next(iter(self.revivals))]
        behind = [(piece.start, piece.end) for piece in pieces if piece.start < self.floor]
        if behind:
            floor, self.floor = self.floor, behind[0][0]
            for start, end in without([(self.floor, floor)], behind):
                self.done.add(start, end)
        for piece in pieces:
            self.done.remove(piece.start, piece.end)
            self.waiting.put(piece, 0)
        count = messages_in(pieces)
        # If it was sought since it has done more than it has dead letters.
        dead = min(count, self.totals.dead)
        self.totals.dead -= dead
        self.totals.done -= count - dead

    def renumber(self, epoch: int) -> None:
        """Count the dead letters from 0 again, in another epoch."""
        self.dead_epoch = epoch
        records, self.dying, self.next_dying = self.dying, {}, 0
        for record in records.values():
            self.dying[self.next_dying] = record._replace(number=self.next_dying)
            self.next_dying += record.end - record.start

    # Where it stands.

    def park(
        self, batches: list[Delayed], cursor: int, due: DueKey, cancelled: IntervalSet
    ) -> None:
        """Take over delayed batches: they wait until they are due.

        They are named, and not looked up: the index may have been flattened since.
        """
        for one in batches:
            for low, high in self.not_done(one.start, one.end):
                for start, stop in cancelled.gaps(low, high):
                    self.waiting.put(Piece(start, stop, one.priority, 0), one.due_ms)
                for start, stop in cancelled.within(low, high):
                    self.drop(start, stop)
        self.cursors[DELAYED], self.due = cursor, due

    def drop(self, start: int, end: int) -> None:
        """Messages are done with."""
        self.totals.done += end - start
        self.complete(start, end)

    def parkable(
        self,
        delayed: DelayedBatches,
        cancelled: IntervalSet,
        now_ms: int,
        most: int,
        room: int,
        looks: int,
    ) -> TakeOver:
        """The next batches to `park`: up to `most` pieces that came in with a time that this group
        has passed, and up to `room` of those that are due; the last batch may exceed it, by what
        was cancelled of it. Looks at no more than about twice `looks`.
        """
        found: list[Delayed] = []
        pieces = 0
        cursor, due = self.cursors[DELAYED], self.due
        first = delayed.position(cursor)
        stop = len(delayed) if due == FIRST_KEY else min(len(delayed), first + looks)
        for position in delayed.due_by(due.due_ms, first, stop):
            one = delayed.at(position)
            if one.key <= due:
                if pieces >= most:
                    stop = position
                    break
                found.append(one)
                pieces += 1 + cancelled.parts_in(one.start, one.end)
        if first < stop:
            cursor = delayed.start_at(stop - 1) + 1
        is_all = stop == len(delayed)
        for number, one in enumerate(delayed.due_after(due)):
            if one.due_ms > now_ms:
                break
            if number >= looks or room <= 0 or pieces >= most or one.start >= cursor:
                is_all = is_all and room <= 0
                break
            if one.end > self.floor:
                found.append(one)
                parts = 1 + cancelled.parts_in(one.start, one.end)
                room -= parts
                pieces += parts
            due = one.key
        return TakeOver(found, cursor, due, is_all)

    def has_taken(self, one: Delayed) -> bool:
        """Whether a delayed batch was taken over."""
        return one.start < self.cursors[DELAYED] and one.key <= self.due

    def not_done(self, start: int, end: int) -> list[Interval]:
        """The parts of [start, end) that are not done."""
        low = max(start, self.floor)
        return self.done.gaps(low, end) if low < end else []

    def cancel(self, start: int, end: int) -> None:
        """Delayed messages are not to be delivered."""
        for piece in self.waiting.take(start, end):
            self.last_holders.remove(piece.start, piece.end)
            self.drop(piece.start, piece.end)

    def seek(self, offset: int) -> None:
        """Be at `offset`: everything below is behind it, everything above ahead. Its leases are
        forgotten, or their acks would end what is to be delivered again."""
        if self.is_shared:
            self.leases, self.leased_messages, self.leased_pieces = {}, 0, 0
            self.waiting, self.done, self.totals = RedeliveryQueue(), IntervalSet(), Totals()
            self.settled_leases, self.settled_intervals, self.last_holders = {}, 0, LastHolders()
            self.reasons = FailureReasons()
            self.dying_messages = 0
            self.dying = {n: record._replace(is_stale=True) for n, record in self.dying.items()}
            self.share_from(offset)
        if self.committed is not None or not self.is_shared:
            self.committed = offset

    def cease_sharing(self) -> None:
        """Forget what it shared; what it committed, and who claimed it, stays."""
        committed = self.committed
        self.seek(0)
        self.is_shared, self.committed = False, committed

    def trim(self, begin: int, cancelled: IntervalSet) -> None:
        """Retention deleted what is below `begin`: what was not done is lost."""
        if not self.is_shared or begin <= self.floor:
            return
        behind = [n for n, lease in self.leases.items() if lease.pieces[0].start < begin]
        for lease in behind:
            self._break(lease)
            self.take_leased(lease, [(0, begin)])
        self.waiting.take(0, begin)
        self.last_holders.remove(0, begin)
        self.reasons.remove(0, begin)
        kept: dict[int, DyingMessages] = {}
        for number, record in self.dying.items():
            if record.end <= begin:
                continue
            # Its number is its first message's: what is left of it starts further on.
            gone = max(begin - record.start, 0)
            kept[number + gone] = record._replace(number=number + gone, start=record.start + gone)
        self.dying = kept
        self.dying_messages = sum(r.end - r.start for r in kept.values() if not r.is_stale)
        self.reason_bytes = sum(len(record.reason.encode()) for record in kept.values())
        for low, high in self.not_done(self.floor, begin):
            unwanted = sum(end - start for start, end in cancelled.within(low, high))
            self.totals.done += unwanted
            self.totals.lost += high - low - unwanted
        self.cursors = [max(cursor, begin) for cursor in self.cursors]
        self.done.remove(0, begin)
        self.complete(self.floor, begin)

    def first_fresh(self, priority_index: PriorityIndex) -> int:
        """The lowest offset that a cursor of a priority may still come to."""
        lowest = priority_index.end
        for level in range(LEVELS):
            cursor = max(self.cursors[level], self.floor)
            stretch = priority_index.find(level, cursor, priority_index.end)
            if stretch is not None:
                lowest = min(lowest, stretch[0])
        return lowest

    def fresh(self, start: int, end: int) -> list[Interval]:
        """The parts of [start, end) that are not taken, for when cursors cannot tell."""
        return without([(start, end)], self.taken_intervals(start, end))

    def taken_intervals(self, start: int, end: int) -> list[Interval]:
        """The parts of [start, end), and around it, that are taken; in order, but for overlaps."""
        found = [(0, self.floor), *self.done.within(start, end), *self.waiting.within(start, end)]
        for lease in self.leases.values():
            if lease.pieces[0].start < end and start < lease.pieces[-1].end:
                first, last = overlapping(lease.pieces, start, end)
                found += piece_intervals(lease.pieces[first:last])
        found += [(r.start, r.end) for r in self.dying.values() if not r.is_stale]
        found.sort()
        return found

    def validate(self, priority_index: PriorityIndex) -> None:
        """Raise `BrokenInvariant` unless every message is in one place only, and counted."""
        self.done.validate()
        self.waiting.validate()
        self.last_holders.validate()
        self.reasons.validate()
        held = [piece for lease in self.leases.values() for piece in lease.pieces]
        if (messages_in(held), len(held)) != (self.leased_messages, self.leased_pieces):
            raise BrokenInvariant(f"{self.name}: {self.leased_messages} leased are counted")
        moving = [r.end - r.start for r in self.dying.values() if not r.is_stale]
        reasons = sum(len(record.reason.encode()) for record in self.dying.values())
        if (sum(moving), reasons) != (self.dying_messages, self.reason_bytes):
            raise BrokenInvariant(f"{self.name}: {self.dying_messages} dying are counted")
        places = [*piece_intervals(held), *self.done, (0, self.floor)]
        places += [(p.piece.start, p.piece.end) for p in self.waiting.parked()]
        places += [(r.start, r.end) for r in self.dying.values() if not r.is_stale]
        counted = sum(end - start for start, end in places)
        if IntervalSet(places).count != counted:
            raise BrokenInvariant(f"{self.name} has messages in two places: {sorted(places)[:20]}")
        if self.is_shared and self.floor > max(priority_index.end, self.start):
            raise BrokenInvariant(f"{self.name} is done with {self.floor} of {priority_index.end}")
