"""The desk of a partition's leader: where consumers are served.

It decides on its working copy of the groups; each decision is an operation to be proposed. Leases
are timed by the leader's steady clock alone: no jump of the wall clock ends one.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final, NamedTuple

from quivermq.errors import InvalidRequest, Overloaded
from quivermq.queue.choosing import Chooser, count_ready
from quivermq.queue.dead_letters import DeadLetters
from quivermq.queue.figures import Figures, figures_of
from quivermq.queue.group import Group
from quivermq.queue.groups import Op, packed
from quivermq.queue.intervals import Interval, IntervalSet, joined, without
from quivermq.queue.partition import Partition
from quivermq.queue.pieces import Piece, intervals_of, messages_in, overlapping
from quivermq.queue.retries import backoff_ms
from quivermq.queue.stretches import Delayed
from quivermq.queue.working_copy import GROUPS_MAX

LEASES_MAX: Final = 100_000
"""Live leases of one group."""
CANCELLED_MAX: Final = 100_000
PARKED_AT_ONCE: Final = 2_000
EXPIRED_AT_ONCE: Final = 1_000
"""Delayed batches that are taken over, and leases that are ended, in one go: whoever leads has
others to serve."""
_LEFTOVERS: Final = 10_000
VISIBILITY_MS_MAX: Final = 12 * 3600 * 1000


class Ask(NamedTuple):
    """What a consumer wants."""

    group: str
    consumer: int
    messages_max: int
    visibility_ms: int
    auto_ack: bool = False


class Leased(NamedTuple):
    """What it gets: pieces in order of offsets, under one token."""

    lease: int
    """0: acknowledged already."""
    pieces: list[Piece]


class Desk(DeadLetters):
    """Serves the consumers of one partition while this replica leads it."""

    def __init__(
        self, partition: Partition, steady_ms: int, *, groups_max: int = GROUPS_MAX
    ) -> None:
        super().__init__(partition, groups_max=groups_max)
        # Leases of another leadership, whose grants may be lost, never share a number with ours.
        # Nor does a group that is deleted and made again give out a number for the second time.
        # A term of very many leases reaches into the numbers of the next one.
        known = [n for group in self.groups.by_name.values() for n in (*group.leases, *group.spent)]
        self._first_lease = self._next_lease = max([partition.term << 32, *known]) + 1
        self._choosers: dict[int, Chooser] = {}
        self._leftovers_max = _LEFTOVERS
        self.on_restart: Callable[[], None] | None = None
        """Called when something that was said turns out not to be: the alarm may be another."""
        # When each lease ends, and the same in order, with leftovers of leases that are gone.
        self._deadlines: dict[tuple[int, int], int] = {}
        self._expiring: list[tuple[int, int, int]] = []
        # Numbers of groups that have not taken over all delayed batches yet.
        self._behind: set[int] = set()
        self._arm_all(steady_ms)

    def _arm_all(self, steady_ms: int) -> None:
        for group in self.groups.by_name.values():
            for lease, content in group.leases.items():
                if (group.number, lease) not in self._deadlines:
                    self._arm(group, lease, steady_ms + content.visibility_ms)

    def _arm(self, group: Group, lease: int, deadline: int) -> None:
        self._deadlines[group.number, lease] = deadline
        heappush(self._expiring, (deadline, group.number, lease))
        if len(self._expiring) > self._leftovers_max:
            self._forget_ended()
            self._leftovers_max = 2 * len(self._expiring) + _LEFTOVERS

    def _forget_ended(self) -> None:
        """Long leases that were settled soon must not be remembered until their time is over."""
        live = {
            (group.number, lease)
            for group in self.groups.by_name.values()
            for lease in group.leases
        }
        self._deadlines = {key: at for key, at in self._deadlines.items() if key in live}
        self._expiring = [(at, *key) for key, at in self._deadlines.items()]
        heapify(self._expiring)

    def begin_again(self, proposed: Iterable[bytes], steady_ms: int) -> None:
        """Something was not proposed after all: start from what is applied and `proposed`, the
        bodies of entries that are under way."""
        self._start_again(proposed)
        self._forget_ended()
        self._arm_all(steady_ms)
        if self.on_restart is not None:
            self.on_restart()

    def seek(self, group: str, offset: int) -> None:
        """Let a group go on from `offset`. Its leases end: their acks are refused, lest they end
        what is to be delivered again."""
        number = self._made(group).number
        self._propose(Op.SEEK, number, self._findable(offset), self._next_lease)

    def expire_group(self, group: str, now_ms: int) -> bool:
        """Forget a shared group that nobody uses, but for what it committed; False if there is
        something that ends by itself: a lease, a delay, dead letters on their way."""
        found = self._shared(group)
        found.waiting.promote(now_ms)
        if found.leases or found.dying or found.waiting.next_due_ms is not None:
            return False
        self._propose(Op.EXPIRE, found.number, self._next_lease)
        return True

    # Leases.

    def lease(self, ask: Ask, end: int, now_ms: int, steady_ms: int) -> Leased | None:
        """Messages below `end` for a consumer; None if there are none to be had."""
        group = self._shared(ask.group)
        if not 0 < ask.visibility_ms <= VISIBILITY_MS_MAX:
            raise InvalidRequest(
                f"a visibility of {ask.visibility_ms} ms: it must be above 0 and at most "
                f"{VISIBILITY_MS_MAX // 3_600_000} hours"
            )
        if len(group.leases) >= LEASES_MAX:
            raise Overloaded(f"group {ask.group} has {len(group.leases)} live leases; try again")
        self._look(group, end, now_ms)
        chooser = self._choosers.setdefault(group.number, Chooser())
        choice = chooser.choose(group, self._partition.stretches, end, ask.messages_max)
        if not choice:
            if choice.cursors:
                # What is done already was stepped over, here and so everywhere.
                skipped = list(choice.cursors.items())
                self._propose(Op.GRANT, group.number, 0, ask.consumer, 0, [], [], skipped)
            return None
        pieces = choice.pieces
        lease = 0 if ask.auto_ack else self._next_lease
        # The choice was taken out of the copy while it was made; what is left is to hand it on.
        self._operations.append(
            packed(
                (
                    Op.GRANT, group.number, lease, ask.consumer, ask.visibility_ms, choice.fresh,
                    intervals_of(choice.returned), list(choice.cursors.items()),
                )
            )
        )  # fmt: skip
        if lease:
            self._next_lease += 1
            group.grant(lease, ask.consumer, ask.visibility_ms, pieces)
            self._arm(group, lease, steady_ms + ask.visibility_ms)
        else:
            group.hand_out(pieces)
        return Leased(lease, pieces)

    def ready(self, group: str, end: int, now_ms: int, limit: int) -> int:
        """How many messages could be leased at once, counted no further than `limit`."""
        found = self._shared(group)
        self._look(found, end, now_ms)
        return count_ready(found, self._partition.stretches, end, limit)

    def _look(self, group: Group, end: int, now_ms: int) -> None:
        """Take over delayed batches, and see what is due."""
        if batches := group.parkable(self._partition.stretches, end, PARKED_AT_ONCE):
            self._propose(Op.PARK, group.number, batches)
        if len(batches) == PARKED_AT_ONCE:
            self._behind.add(group.number)
        else:
            self._behind.discard(group.number)
        group.waiting.promote(now_ms)

    def acknowledge(
        self, group: str, lease: int, intervals: list[Interval] | None
    ) -> list[Interval]:
        """Messages are done; returns those that are not the lease's to end. None: all of it."""
        found = self._shared(group)
        wanted = self._wanted(found, lease, intervals)
        if not found.first_lease <= lease < self._next_lease:
            return wanted
        repeated = found.spent.get(lease, IntervalSet())
        held = self._held(found, lease, wanted)
        rest = without(wanted, held)
        # Its lease is over, and nobody else has it.
        waiting = [part for low, high in rest for part in found.waiting.within(low, high)]
        fresh: list[Interval] = []
        if lease < self._first_lease and lease not in found.leases:
            # Its grant may have been lost with another leader: to us, nobody ever had it.
            fresh = self._fresh(found, without(rest, waiting))
        if held or waiting or fresh:
            self._propose(Op.FINISH, found.number, lease, sorted(held + waiting), fresh)
        lost = without(rest, sorted(waiting + fresh))
        return [part for low, high in lost for part in repeated.gaps(low, high)]

    def _fresh(self, group: Group, intervals: list[Interval]) -> list[Interval]:
        """What of these offsets no cursor has taken."""
        if not intervals:
            return []
        end = min(intervals[-1][1], self._partition.next_offset)
        fresh = IntervalSet(group.fresh(intervals[0][0], end))
        return [part for low, high in intervals for part in fresh.within(low, high)]

    def _wanted(self, group: Group, lease: int, intervals: list[Interval] | None) -> list[Interval]:
        if intervals is not None:
            return joined(intervals)
        held = group.leases.get(lease)
        return [] if held is None else joined(intervals_of(held.pieces))

    def _held(self, group: Group, lease: int, wanted: list[Interval]) -> list[Interval]:
        return joined(intervals_of(self._held_pieces(group, lease, wanted)))

    def _held_pieces(self, group: Group, lease: int, wanted: list[Interval]) -> list[Piece]:
        held = group.leases.get(lease)
        if held is None:
            return []
        found: list[Piece] = []
        for low, high in wanted:
            first, last = overlapping(held.pieces, low, high)
            found += [piece.part(low, high) for piece in held.pieces[first:last]]
        return found

    def fail(
        self,
        group: str,
        lease: int,
        intervals: list[Interval] | None,
        delay_ms: int | None,
        now_ms: int,
    ) -> list[Interval]:
        """Messages failed; back after `delay_ms`, or as the topic's settings say."""
        found = self._shared(group)
        wanted = self._wanted(found, lease, intervals)
        pieces = self._held_pieces(found, lease, wanted)
        self._failed(found, lease, pieces, delay_ms, now_ms, "failed")
        return without(wanted, intervals_of(pieces))

    def _failed(
        self,
        group: Group,
        lease: int,
        pieces: list[Piece],
        delay_ms: int | None,
        now_ms: int,
        how: str,
    ) -> None:
        settings = self._partition.settings
        returns: list[tuple[int, int, int, bool]] = []
        dead: list[Piece] = []
        for piece in pieces:
            failures = piece.failures + 1
            if failures >= settings.max_deliveries:
                dead.append(piece)
                continue
            wait = backoff_ms(settings, failures) if delay_ms is None else delay_ms
            start, due_ms = piece.start, now_ms + wait if wait else 0
            if returns and returns[-1][1:3] == (start, due_ms):
                start = returns.pop()[0]
            returns.append((start, piece.end, due_ms, True))
        if returns:
            self._propose(Op.GIVE_BACK, group.number, lease, returns)
        if dead:
            times = "once" if settings.max_deliveries == 1 else f"{settings.max_deliveries} times"
            self._condemn(group, lease, dead, f"{how} {times}", now_ms)

    def _condemn(
        self, group: Group, lease: int, pieces: list[Piece], reason: str, now_ms: int
    ) -> None:
        intervals = joined(intervals_of(pieces))
        self._propose(Op.CONDEMN, group.number, lease, intervals, reason, now_ms)

    def reject(
        self, group: str, lease: int, intervals: list[Interval] | None, reason: str, now_ms: int
    ) -> list[Interval]:
        """Messages are dead letters, whatever their number of failures."""
        found = self._shared(group)
        wanted = self._wanted(found, lease, intervals)
        pieces = self._held_pieces(found, lease, wanted)
        if pieces:
            self._condemn(found, lease, pieces, reason, now_ms)
        return without(wanted, intervals_of(pieces))

    def release(self, group: str, lease: int, intervals: list[Interval] | None) -> list[Interval]:
        """Messages were not worked on: back at once, with no failure counted."""
        found = self._shared(group)
        wanted = self._wanted(found, lease, intervals)
        held = self._held(found, lease, wanted)
        if held:
            self._give_back(found, lease, held)
        return without(wanted, held)

    def _give_back(self, group: Group, lease: int, held: list[Interval]) -> None:
        returns = [(low, high, 0, False) for low, high in held]
        self._propose(Op.GIVE_BACK, group.number, lease, returns)

    def release_consumer(self, group: str, consumer: int) -> int:
        """A consumer ends: what it holds goes back. Returns how many messages."""
        found = self.groups.by_name.get(group)
        if found is None:
            return 0
        mine = [number for number, lease in found.leases.items() if lease.consumer == consumer]
        given = 0
        for number in mine:
            pieces = found.leases[number].pieces
            given += messages_in(pieces)
            self._give_back(found, number, joined(intervals_of(pieces)))
        return given

    def extend(self, group: str, lease: int, visibility_ms: int, steady_ms: int) -> bool:
        """Let a lease last so long from here; False if it is over."""
        if not 0 < visibility_ms <= VISIBILITY_MS_MAX:
            raise InvalidRequest(f"a lease cannot be extended by {visibility_ms} ms")
        found = self._shared(group)
        held = found.leases.get(lease)
        if held is None:
            return False
        if held.visibility_ms != visibility_ms:
            # For the next leader, which times all leases anew.
            self._propose(Op.EXTEND, found.number, lease, visibility_ms)
        self._arm(found, lease, steady_ms + visibility_ms)
        return True

    # Time.

    def expire(self, now_ms: int, steady_ms: int) -> int:
        """End the leases whose time is over; returns how many messages they held."""
        expired = 0
        for _ in range(EXPIRED_AT_ONCE):
            if not self._expiring or self._expiring[0][0] > steady_ms:
                break
            deadline, number, lease = heappop(self._expiring)
            if self._deadlines.get((number, lease)) != deadline:
                continue
            del self._deadlines[number, lease]
            holder = self.groups.by_number.get(number)
            if holder is None or lease not in holder.leases:
                continue
            pieces = list(holder.leases[lease].pieces)
            expired += messages_in(pieces)
            self._failed(holder, lease, pieces, None, now_ms, "lease expired")
        for number in list(self._behind):
            behind = self.groups.by_number.get(number)
            if behind is not None:
                self._look(behind, self._partition.next_offset, now_ms)
            else:
                self._behind.discard(number)
        for group in self.groups.by_name.values():
            # Or the alarm would ring for it until somebody asks.
            group.waiting.promote(now_ms)
        return expired

    def alarm_ms(self, now_ms: int, steady_ms: int) -> int | None:
        """In how many milliseconds something happens by itself; None: never."""
        waits: list[int] = [0] if self._behind else []
        while self._expiring:
            deadline, number, lease = self._expiring[0]
            group = self.groups.by_number.get(number)
            is_live = group is not None and lease in group.leases
            if is_live and self._deadlines.get((number, lease)) == deadline:
                waits.append(deadline - steady_ms)
                break
            heappop(self._expiring)
            if not is_live:
                self._deadlines.pop((number, lease), None)
        for group in self.groups.by_name.values():
            due_ms = group.waiting.next_due_ms
            if due_ms is not None:
                waits.append(due_ms - now_ms)
        return max(min(waits), 0) if waits else None

    # Delayed messages.

    def delayed(self, now_ms: int, from_ms: int, limit: int) -> list[Delayed]:
        """Batches that are not due, the next ones first, without what was cancelled."""
        found = (one for one in self._delayed(now_ms) if one.due_ms >= from_ms)
        return nsmallest(limit, found, key=lambda one: (one.due_ms, one.start))

    def _delayed(self, now_ms: int) -> Iterable[Delayed]:
        cancelled = self.groups.cancelled
        for one in self._partition.stretches.delayed.values():
            if one.due_ms <= now_ms:
                continue
            if not len(cancelled):
                yield one
                continue
            for start, end in cancelled.gaps(one.start, one.end):
                yield one._replace(start=start, end=end)

    def delayed_total(self, now_ms: int) -> int:
        """How many messages are not due."""
        return sum(one.end - one.start for one in self._delayed(now_ms))

    def cancel(self, intervals: list[Interval], now_ms: int) -> int:
        """Delayed messages that are not due are not delivered to anybody; returns how many."""
        parts = [
            part
            for low, high in joined(intervals)
            for one in self._partition.stretches.delayed_from(low, high)
            if one.due_ms > now_ms
            for part in self.groups.cancelled.gaps(max(low, one.start), min(high, one.end))
        ]
        if len(self.groups.cancelled) + len(parts) > CANCELLED_MAX:
            raise Overloaded("too many delayed messages were cancelled one by one")
        if parts:
            self._propose(Op.CANCEL, parts)
        return sum(high - low for low, high in parts)

    # Looking at it.

    def describe(self, end: int, now_ms: int, group: str | None = None) -> list[Figures]:
        """Where groups stand; `end` is behind the last message that they may have."""
        names = list(self.groups.by_name) if group is None else [group]
        known = [self.groups.by_name[name] for name in names if name in self.groups.by_name]
        for one in known:
            one.waiting.promote(now_ms)
        stretches, cancelled = self._partition.stretches, self.groups.cancelled
        return [figures_of(one, stretches, cancelled, end, now_ms) for one in known]
