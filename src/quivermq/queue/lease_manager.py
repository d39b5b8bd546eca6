"""The lease manager of a partition's leader: leases messages to consumers, and settles them.

It decides on a working copy of the groups; each decision is an operation to be proposed. Leases
are timed by the leader's steady clock alone: no jump of the wall clock ends one.

A lease has a number that was drawn at random, and belongs to the consumer that polled. A settlement
names both, and offsets; it gets back the offsets that were not leased so.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from quivermq.errors import InvalidRequest, Overloaded
from quivermq.intervals import Interval, join, without
from quivermq.queue.dead_letters import DeadLetterRecords
from quivermq.queue.delayed import Delayed, key_of
from quivermq.queue.failure_reasons import REASON_CHARACTERS_MAX, FailureReason
from quivermq.queue.group import DELAYED, Group, Lease
from quivermq.queue.group_stats import GroupStats, stats_of
from quivermq.queue.groups import Op, pack_operation
from quivermq.queue.partition import Partition
from quivermq.queue.pieces import Piece, messages_in, overlapping, piece_intervals
from quivermq.queue.retries import backoff_ms
from quivermq.queue.selection import Selector, count_ready
from quivermq.queue.working_copy import GROUPS_MAX, STATE_BYTES_MAX, WorkingCopy

LEASES_MAX: Final = 100_000
"""Live leases of one group."""
CANCELLED_MAX: Final = 100_000
CANCELLED_OF_BATCH_MAX: Final = 10_000
"""Parts that are cancelled one by one, of all batches and of one, which is taken over in one go."""
PARKED_AT_ONCE: Final = 2_000
EXPIRED_AT_ONCE: Final = 1_000
PIECES_ENDED_AT_ONCE: Final = 4_096
ARMED_AT_ONCE: Final = 10_000
LOOKED_AT_ONCE: Final = 10_000
"""Delayed batches that are taken over, leases that are ended and their pieces, leases of another
leader that are timed, delayed batches that are looked at, in one go: a leader has other requests
to serve."""
BEHIND_AT_ONCE: Final = 4
"""Groups that go on taking over delayed batches by themselves, in one go."""
EXPECTED_AT_ONCE: Final = 1_000
"""Delayed batches that are looked at before a group is forgotten."""
DUE_MAX: Final = 10_000
"""Delayed pieces of a group that are due and not leased; past it, it takes over no more."""
_LEFTOVERS: Final = 10_000
VISIBILITY_MS_MAX: Final = 12 * 3600 * 1000
_LEASE_MAX: Final = 2**63 - 1


class LeaseNumbers(Protocol):
    """The part of a random generator that the numbers of leases need."""

    def randrange(self, stop: int, /) -> int: ...


class LeaseRequest(NamedTuple):
    """The parameters of a lease."""

    group: str
    consumer: int
    messages_max: int
    visibility_ms: int
    auto_ack: bool = False


class GrantedLease(NamedTuple):
    """Leased pieces in order of offsets, under one number."""

    lease: int
    """0: acknowledged already."""
    pieces: list[Piece]
    reasons: list[FailureReason]
    """Why some of them failed before."""


class LeaseTimes(NamedTuple):
    """By the steady clock of the leader."""

    deadline: int
    since: int
    """When it was given, or found by a leader that did not give it."""


class InFlight(NamedTuple):
    """A piece of a lease, for people."""

    piece: Piece
    consumer: int
    held_ms: int
    left_ms: int


class LeaseManager:
    """Serves the consumers of one partition while this replica leads it.

    `working_copy` serves requests about groups, committed offsets and claims, `dead_letters` those
    about dead letters; leases, and the time that they end at, are served here.
    """

    def __init__(
        self,
        partition: Partition,
        steady_ms: int,
        dice: LeaseNumbers,
        *,
        groups_max: int = GROUPS_MAX,
        state_bytes_max: int = STATE_BYTES_MAX,
    ) -> None:
        self._partition = partition
        self.working_copy = WorkingCopy(
            partition, groups_max=groups_max, state_bytes_max=state_bytes_max
        )
        self.dead_letters = DeadLetterRecords(partition, self.working_copy)
        self._dice = dice
        self._selectors: dict[int, Selector] = {}
        self._leftovers_max = _LEFTOVERS
        self.on_restart: Callable[[], None] | None = None
        """Called when operations turn out not to be proposed: the alarm may be another."""
        # When each lease ends, and the same in order, with leftovers of leases that are gone.
        self._times: dict[tuple[int, int], LeaseTimes] = {}
        self._expiring: list[tuple[int, int, int]] = []
        # When each group has something due that came back, and the same in order, with leftovers.
        self._dues: dict[int, int] = {}
        self._coming: list[tuple[int, int]] = []
        # Numbers of groups that have not taken over all delayed batches that are due.
        self._behind: dict[int, None] = {}
        self._arm_all(steady_ms)

    def _propose(self, kind: Op, number: int, *arguments: Any) -> None:
        """Propose an operation of one group, which may change when its next message is due."""
        self.working_copy.propose(kind, number, *arguments)
        group = self.working_copy.groups.by_number.get(number)
        if group is not None:
            self._watch(group)

    def _arm_all(self, steady_ms: int) -> None:
        """Time the leases that are not timed yet from here on: a portion now, the rest when the
        alarm rings."""
        self._armed_ms = steady_ms
        self._unarmed: Iterator[tuple[Group, int]] | None = self._leases(
            list(self.working_copy.groups.by_number)
        )
        self._arm_more()

    def _leases(self, numbers: list[int]) -> Iterator[tuple[Group, int]]:
        """All groups and their leases; a group without one comes with 0."""
        for number in numbers:
            group = self.working_copy.groups.by_number.get(number)
            if group is not None:
                self._watch(group)
                yield group, 0
                for lease in list(group.leases):
                    yield group, lease

    def _arm_more(self) -> None:
        if self._unarmed is None:
            return
        count = 0
        for group, lease in islice(self._unarmed, ARMED_AT_ONCE):
            count += 1
            known = self.working_copy.groups.by_number.get(group.number)
            held = None if known is None else known.leases.get(lease)
            if held is not None and (group.number, lease) not in self._times:
                self._arm(group, lease, self._armed_ms, held.visibility_ms)
        if count < ARMED_AT_ONCE:
            self._unarmed = None

    def _arm(self, group: Group, lease: int, steady_ms: int, visibility_ms: int) -> None:
        deadline, key = steady_ms + visibility_ms, (group.number, lease)
        known = self._times.get(key)
        self._times[key] = LeaseTimes(deadline, steady_ms if known is None else known.since)
        heappush(self._expiring, (deadline, group.number, lease))
        if len(self._expiring) > self._leftovers_max:
            self._forget_ended()
            self._leftovers_max = 2 * len(self._expiring) + _LEFTOVERS

    def _forget_ended(self) -> None:
        """Long leases that were settled soon must not be remembered until their time is over."""
        groups = self.working_copy.groups.by_number
        self._times = {
            (number, lease): times
            for (number, lease), times in self._times.items()
            if (group := groups.get(number)) is not None and lease in group.leases
        }
        self._expiring = [(times.deadline, *key) for key, times in self._times.items()]
        heapify(self._expiring)

    def _watch(self, group: Group) -> None:
        """Remember when the next message of a group is due that came back."""
        due_ms = group.waiting.next_due_ms
        if due_ms is None:
            self._dues.pop(group.number, None)
        elif self._dues.get(group.number) != due_ms:
            self._dues[group.number] = due_ms
            heappush(self._coming, (due_ms, group.number))
            if len(self._coming) > 2 * len(self._dues) + _LEFTOVERS:
                self._coming = [(at, number) for number, at in self._dues.items()]
                heapify(self._coming)

    def begin_again(self, proposed: Iterable[bytes], steady_ms: int) -> None:
        """Operations were not proposed after all: start from what is applied and `proposed`, the
        bodies of entries that are under way."""
        self.working_copy.restart(proposed)
        self._arm_all(steady_ms)
        if self.on_restart is not None:
            self.on_restart()

    def seek(self, group: str, offset: int) -> None:
        """Let a group go on from `offset`. Its leases end: their acks would end messages that are
        to be delivered again."""
        number = self.working_copy.ensure_group(group).number
        self._propose(Op.SEEK, number, self.working_copy.first_findable(offset))

    def expire_group(self, group: str, now_ms: int) -> bool:
        """Forget a shared group that is not in use, but for what it committed; False if there is
        something that ends by itself: a lease, a delay, dead letters on their way."""
        found = self.working_copy.shared_group(group)
        found.waiting.promote(now_ms)
        if found.leases or found.dying or found.waiting.next_due_ms is not None:
            return False
        if self._expects_delayed(found, now_ms):
            return False
        self._propose(Op.EXPIRE, found.number)
        return True

    def _expects_delayed(self, group: Group, now_ms: int) -> bool:
        """Whether one of the next delayed batches was there when the group was last used."""
        delayed = self._partition.priority_index.delayed
        known = group.cursors[DELAYED]
        following = islice(delayed.due_after(key_of(now_ms)), EXPECTED_AT_ONCE)
        return any(one.start < known for one in following)

    # Leases.

    def lease(
        self, ask: LeaseRequest, end: int, now_ms: int, steady_ms: int
    ) -> GrantedLease | None:
        """Messages below `end` for a consumer; None if there are none to be had."""
        working_copy = self.working_copy
        working_copy.check_refusal()
        group = working_copy.shared_group(ask.group)
        if not 0 < ask.visibility_ms <= VISIBILITY_MS_MAX:
            raise InvalidRequest(
                f"a visibility of {ask.visibility_ms} ms: it must be above 0 and at most "
                f"{VISIBILITY_MS_MAX // 3_600_000} hours"
            )
        if len(group.leases) >= LEASES_MAX:
            raise Overloaded(f"group {ask.group} has {len(group.leases)} live leases; try again")
        self._look(group, now_ms)
        selector = self._selectors.setdefault(group.number, Selector())
        is_full = working_copy.is_full
        priority_index = self._partition.priority_index
        choice = selector.choose(
            group, priority_index, end, ask.messages_max, takes_fresh=not is_full
        )
        if not choice and is_full and count_ready(group, priority_index, end, 1):
            # Redeliveries go on, since they take no more room.
            raise working_copy.no_room()
        if not choice:
            if choice.cursors:
                # Messages that are done were stepped over: so they are on every replica.
                skipped = list(choice.cursors.items())
                self._propose(Op.GRANT, group.number, 0, ask.consumer, 0, [], [], skipped)
            return None
        pieces = choice.pieces
        lease = 0 if ask.auto_ack else self._new_lease()
        # The choice was taken out of the copy while it was made; what is left is to hand it on.
        working_copy.operations.append(
            pack_operation(
                (
                    Op.GRANT, group.number, lease, ask.consumer, ask.visibility_ms, choice.fresh,
                    piece_intervals(choice.returned), list(choice.cursors.items()),
                )
            )
        )  # fmt: skip
        reasons = group.reasons.of_pieces(pieces) if len(group.reasons) else []
        if lease:
            group.grant(lease, ask.consumer, ask.visibility_ms, pieces)
            self._arm(group, lease, steady_ms, ask.visibility_ms)
        else:
            group.hand_out(pieces)
        working_copy.groups.count(group)
        self._watch(group)
        return GrantedLease(lease, pieces, reasons)

    def _new_lease(self) -> int:
        """A number that cannot be guessed, and that no earlier leader, whose grants may be lost,
        gave."""
        return self._dice.randrange(_LEASE_MAX) + 1

    def ready(self, group: str, end: int, now_ms: int, limit: int) -> int:
        """How many messages could be leased at once, counted no further than `limit`."""
        found = self.working_copy.shared_group(group)
        self._look(found, now_ms)
        index, is_full = self._partition.priority_index, self.working_copy.is_full
        return count_ready(found, index, end, limit, takes_fresh=not is_full)

    def _look(self, group: Group, now_ms: int) -> None:
        """Take over delayed batches that are due, and see what else is."""
        delayed = self._partition.priority_index.delayed
        if len(delayed) and not self.working_copy.is_full:
            room = DUE_MAX - group.waiting.delayed_pieces
            cancelled = self.working_copy.groups.cancelled
            found = group.parkable(delayed, cancelled, now_ms, PARKED_AT_ONCE, room, LOOKED_AT_ONCE)
            if found.batches or found.due != group.due or not found.is_all:
                self._propose(Op.PARK, group.number, *found[:3])
            else:
                # Nothing in there was for this group: the next leader may look again.
                group.cursors[DELAYED] = found.cursor
            if found.is_all:
                self._behind.pop(group.number, None)
            else:
                self._behind[group.number] = None
        group.waiting.promote(now_ms)
        self._watch(group)

    def acknowledge(
        self,
        group: str,
        lease: int,
        intervals: list[Interval] | None,
        consumer: int | None = None,
    ) -> list[Interval]:
        """Messages are done; returns those that are not the lease's to end. None: all of it.

        Here as below, `consumer` is the one that settles; None: this leader itself.
        """
        found = self.working_copy.shared_group(group)
        held = found.held_by(consumer, lease)
        wanted = self._wanted(held, intervals)
        known = found.settled_leases.get(lease)
        if known is not None and consumer in {None, known.consumer}:
            repeated = [part for low, high in wanted for part in known.done.within(low, high)]
            wanted = without(wanted, repeated)
        leased = join(piece_intervals(_held_pieces(held, wanted)))
        rest = without(wanted, leased)
        # The lease is over, and no other consumer has the messages.
        waiting = [
            part
            for low, high in rest
            for start, end in found.last_holders.held(lease, consumer, low, high)
            for part in found.waiting.within(start, end)
        ]
        if leased or waiting:
            holder = consumer if consumer is not None or held is None else held.consumer
            self._propose(Op.FINISH, found.number, lease, holder or 0, sorted(leased + waiting))
        return without(rest, waiting)

    def _wanted(self, held: Lease | None, intervals: list[Interval] | None) -> list[Interval]:
        """The intervals of a settlement; None: all that is left of a lease."""
        if intervals is None:
            return [] if held is None else join(piece_intervals(held.pieces))
        wanted = join(intervals)
        if self.working_copy.is_brimful and held is not None and len(wanted) > len(held.pieces):
            # Scattered over a lease, they would leave more pieces behind than there were.
            raise self.working_copy.no_room()
        return wanted

    def fail(
        self,
        group: str,
        lease: int,
        intervals: list[Interval] | None,
        delay_ms: int | None,
        now_ms: int,
        consumer: int | None = None,
        reason: str = "",
        *,
        keeps_reason: bool = True,
    ) -> list[Interval]:
        """Messages failed; back after `delay_ms`, or as the topic's settings say. The reason is
        kept with those that come again, if replicas of all releases in the cluster know of it."""
        found = self.working_copy.shared_group(group)
        held = found.held_by(consumer, lease)
        wanted = self._wanted(held, intervals)
        pieces = _held_pieces(held, wanted)
        # A reason takes room that a failure without one does not.
        is_kept = bool(reason) and keeps_reason and not self.working_copy.is_full
        kept = reason[:REASON_CHARACTERS_MAX] if is_kept else ""
        self._return_failed(found, lease, pieces, delay_ms, now_ms, "failed", reason, kept)
        return without(wanted, piece_intervals(pieces))

    def _return_failed(
        self,
        group: Group,
        lease: int,
        pieces: list[Piece],
        delay_ms: int | None,
        now_ms: int,
        how: str,
        reason: str = "",
        kept: str = "",
    ) -> None:
        """Let failed messages wait again, or make dead letters of those that failed too often."""
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
            self._propose(Op.GIVE_BACK, group.number, lease, returns, *([kept] if kept else []))
        if dead:
            times = "once" if settings.max_deliveries == 1 else f"{settings.max_deliveries} times"
            for why, some in group.reasons.stories_of(dead, reason).items():
                self._condemn(group, lease, some, f"{how} {times}{why}", now_ms)

    def _condemn(
        self, group: Group, lease: int, pieces: list[Piece], reason: str, now_ms: int
    ) -> None:
        intervals = join(piece_intervals(pieces))
        self._propose(Op.CONDEMN, group.number, lease, intervals, reason, now_ms)

    def reject(
        self,
        group: str,
        lease: int,
        intervals: list[Interval] | None,
        reason: str,
        now_ms: int,
        consumer: int | None = None,
    ) -> list[Interval]:
        """Messages are dead letters, whatever their number of failures."""
        found = self.working_copy.shared_group(group)
        held = found.held_by(consumer, lease)
        wanted = self._wanted(held, intervals)
        pieces = _held_pieces(held, wanted)
        if pieces:
            self._condemn(found, lease, pieces, reason, now_ms)
        return without(wanted, piece_intervals(pieces))

    def release(
        self,
        group: str,
        lease: int,
        intervals: list[Interval] | None,
        consumer: int | None = None,
    ) -> list[Interval]:
        """Messages were not worked on: back at once, with no failure counted."""
        found = self.working_copy.shared_group(group)
        held = found.held_by(consumer, lease)
        wanted = self._wanted(held, intervals)
        leased = join(piece_intervals(_held_pieces(held, wanted)))
        if leased:
            self._give_back(found, lease, leased)
        return without(wanted, leased)

    def _give_back(self, group: Group, lease: int, held: list[Interval]) -> None:
        returns = [(low, high, 0, False) for low, high in held]
        self._propose(Op.GIVE_BACK, group.number, lease, returns)

    def release_consumer(self, group: str, consumer: int) -> int:
        """A consumer ends: what it holds goes back. Returns how many messages; of very many the
        first: ask again until there are none."""
        found = self.working_copy.groups.by_name.get(group)
        if found is None:
            return 0
        held = (number for number, lease in found.leases.items() if lease.consumer == consumer)
        given, left = 0, PIECES_ENDED_AT_ONCE
        for number in list(islice(held, EXPIRED_AT_ONCE)):
            if not left:
                break
            pieces = found.leases[number].pieces[:left]
            left -= len(pieces)
            given += messages_in(pieces)
            self._give_back(found, number, join(piece_intervals(pieces)))
        return given

    def extend(
        self,
        group: str,
        lease: int,
        visibility_ms: int,
        steady_ms: int,
        consumer: int | None = None,
    ) -> bool:
        """Let a lease last so long from here; False if it is over."""
        if not 0 < visibility_ms <= VISIBILITY_MS_MAX:
            raise InvalidRequest(f"a lease cannot be extended by {visibility_ms} ms")
        found = self.working_copy.shared_group(group)
        held = found.held_by(consumer, lease)
        if held is None:
            return False
        if held.visibility_ms != visibility_ms:
            # For the next leader, which times all leases anew.
            self._propose(Op.EXTEND, found.number, lease, visibility_ms)
        self._arm(found, lease, steady_ms, visibility_ms)
        return True

    # Time.

    def expire(self, now_ms: int, steady_ms: int) -> int:
        """End the leases whose time is over; returns how many messages they held."""
        self.working_copy.check_refusal()
        self._arm_more()
        expired, left = 0, PIECES_ENDED_AT_ONCE
        groups = self.working_copy.groups.by_number
        for _ in range(EXPIRED_AT_ONCE):
            if not self._expiring or self._expiring[0][0] > steady_ms:
                break
            if not left:
                break
            deadline, number, lease = heappop(self._expiring)
            times = self._times.get((number, lease))
            if times is None or times.deadline != deadline:
                continue
            holder = groups.get(number)
            if holder is None or lease not in holder.leases:
                del self._times[number, lease]
                continue
            held = list(holder.leases[lease].pieces[:left])
            expired += messages_in(held)
            left -= len(held)
            self._return_failed(holder, lease, held, None, now_ms, "lease expired")
            if (lasting := groups.get(number)) and lease in lasting.leases:
                # There was too much in it: the rest goes back when the alarm rings, which is now.
                self._arm(lasting, lease, deadline, 0)
            else:
                del self._times[number, lease]
        self._go_on(now_ms)
        return expired

    def _go_on(self, now_ms: int) -> None:
        """Make redeliveries ready that are due, and let some groups take over delayed batches that
        they are behind with."""
        groups = self.working_copy.groups
        for _ in range(EXPIRED_AT_ONCE):
            if not self._coming or self._coming[0][0] > now_ms:
                break
            due_ms, number = heappop(self._coming)
            if self._dues.get(number) == due_ms:
                del self._dues[number]
                if number in groups.by_number:
                    # Or the alarm would ring for it until a poll comes.
                    group = groups.own(number)
                    group.waiting.promote(now_ms)
                    self._watch(group)
        for number in list(islice(self._behind, BEHIND_AT_ONCE)):
            # The others come first next time.
            del self._behind[number]
            if number in groups.by_number:
                self._look(groups.own(number), now_ms)

    def alarm_ms(self, now_ms: int, steady_ms: int) -> int | None:
        """In how many milliseconds something happens by itself; None: never."""
        groups = self.working_copy.groups.by_number
        waits: list[int] = [0] if self._behind or self._unarmed is not None else []
        while self._expiring:
            deadline, number, lease = self._expiring[0]
            group = groups.get(number)
            is_live = group is not None and lease in group.leases
            times = self._times.get((number, lease))
            if is_live and times is not None and times.deadline == deadline:
                waits.append(deadline - steady_ms)
                break
            heappop(self._expiring)
            if not is_live:
                self._times.pop((number, lease), None)
        while self._coming:
            due_ms, number = self._coming[0]
            group = groups.get(number)
            if group is not None and group.waiting.next_due_ms == due_ms:
                waits.append(due_ms - now_ms)
                break
            # It was taken, or deleted, since.
            heappop(self._coming)
            if self._dues.get(number) == due_ms:
                del self._dues[number]
                if group is not None:
                    self._watch(group)
        due_next_ms = self._partition.priority_index.delayed.next_due_ms(now_ms)
        if due_next_ms is not None and groups:
            waits.append(due_next_ms - now_ms)
        return max(min(waits), 0) if waits else None

    # Delayed messages.

    def delayed(self, now_ms: int, from_ms: int, limit: int) -> list[Delayed]:
        """Batches that are not due, the next ones first, without what was cancelled."""
        cancelled = self.working_copy.groups.cancelled
        behind = key_of(max(now_ms, from_ms - 1))
        parts = (
            one._replace(start=start, end=end)
            for one in self._partition.priority_index.delayed.due_after(behind)
            for start, end in cancelled.gaps(one.start, one.end)
        )
        return list(islice(parts, limit))

    def delayed_total(self, now_ms: int) -> int:
        """How many messages are not due."""
        delayed = self._partition.priority_index.delayed
        total = delayed.messages_after(key_of(now_ms))
        for start, end in self.working_copy.groups.cancelled:
            for one in delayed.overlapping(start, end):
                if one.due_ms > now_ms:
                    total -= min(end, one.end) - max(start, one.start)
        return total

    def cancel(self, intervals: list[Interval], now_ms: int) -> int:
        """Cancel delayed messages that are not due, for all groups; returns how many."""
        cancelled = self.working_copy.groups.cancelled
        parts: list[Interval] = []
        of_batch: Counter[Delayed] = Counter()
        for low, high in join(intervals):
            for one in self._partition.priority_index.delayed.overlapping(low, high):
                if one.due_ms > now_ms:
                    found = cancelled.gaps(max(low, one.start), min(high, one.end))
                    parts += found
                    if low > one.start or one.end > high:
                        of_batch[one] += len(found)
        if parts:
            self.working_copy.check_room()
        if len(cancelled) + len(parts) > CANCELLED_MAX or any(
            new and cancelled.parts_in(one.start, one.end) + new > CANCELLED_OF_BATCH_MAX
            for one, new in of_batch.items()
        ):
            raise Overloaded("too many delayed messages were cancelled one by one")
        if parts:
            self.working_copy.propose(Op.CANCEL, parts)
        return sum(high - low for low, high in parts)

    # Statistics.

    def describe(self, end: int, now_ms: int, group: str | None = None) -> list[GroupStats]:
        """Where groups stand; `end` is behind the last message that they may have."""
        groups = self.working_copy.groups
        numbers = list(groups.by_number) if group is None else []
        if group in groups.by_name:
            numbers = [groups.by_name[group].number]
        known = [groups.own(number) for number in numbers]
        for one in known:
            one.waiting.promote(now_ms)
            self._watch(one)
        index = self._partition.priority_index
        return [stats_of(one, index, groups.cancelled, end, now_ms) for one in known]

    def in_flight(self, group: str, steady_ms: int, limit: int) -> list[InFlight]:
        """Pieces that are leased, at most so many, of the oldest leases first."""
        found = self.working_copy.groups.by_name.get(group)
        if found is None:
            return []
        leases = ((self._times_of(found, lease), lease) for lease in found.leases)
        oldest = nsmallest(limit, leases, key=lambda each: each[0].since)
        pieces = (
            InFlight(
                piece,
                found.leases[lease].consumer,
                max(0, steady_ms - times.since),
                max(0, times.deadline - steady_ms),
            )
            for times, lease in oldest
            for piece in found.leases[lease].pieces
        )
        return list(islice(pieces, limit))

    def _times_of(self, group: Group, lease: int) -> LeaseTimes:
        """Also of those that this leader has not timed yet: it came to lead a moment ago."""
        begun = self._armed_ms
        known = self._times.get((group.number, lease))
        return known or LeaseTimes(begun + group.leases[lease].visibility_ms, begun)


def _held_pieces(held: Lease | None, wanted: list[Interval]) -> list[Piece]:
    if held is None:
        return []
    found: list[Piece] = []
    for low, high in wanted:
        first, last = overlapping(held.pieces, low, high)
        found += [piece.part(low, high) for piece in held.pieces[first:last]]
    return found
