"""What is promised of shared groups, told the naive way: one object per message and group.

Nothing here is clever, so that it can be read beside the guarantees. Which messages a lease gives
out is not predicted but judged (`judge_grant`): it must keep the promises, however it was chosen.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum

BACKOFF_FIRST_MS, BACKOFF_MAX_MS = 1_000, 60_000


class State(Enum):
    FRESH = "never delivered"
    WAITING = "returned"
    LEASED = "with a consumer"
    DYING = "on its way to the dead letters"
    DONE = "acknowledged, dead or cancelled"
    LOST = "deleted by retention before it was done"


class Arrival:
    """What a message is to every group alike."""

    __slots__ = ("not_before_ms", "priority")

    def __init__(self, priority: int, not_before_ms: int) -> None:
        self.priority = priority
        self.not_before_ms = not_before_ms


@dataclass(slots=True)
class Message:
    """What a message is to one group."""

    offset: int
    priority: int
    due_ms: int
    is_delayed: bool
    """Its producer wanted it so."""
    state: State = State.FRESH
    failures: int = 0
    lease: int = 0
    """Who has it, or had it last; 0 if nobody has."""
    reason: str = ""
    """Why it failed, as its consumer said the last time that it said so."""
    is_dead: bool = False
    story: str = ""
    """The reason that its dead letter tells."""

    def is_ready(self, now_ms: int) -> bool:
        return self.state in {State.FRESH, State.WAITING} and self.due_ms <= now_ms


@dataclass(slots=True)
class Lease:
    consumer: int
    visibility_ms: int
    ends_ms: int
    """By the steady clock of the leader."""


@dataclass
class NaiveGroup:
    start: int
    messages: dict[int, Message] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    dead: int = 0
    redelivered: int = 0
    is_shared: bool = True
    committed: int | None = None
    claimed: int = 0
    revivals: set[int] = field(default_factory=set)
    """Redrives that brought something back."""
    known: set[int] = field(default_factory=set)
    """Leases that were given, by this group, and ended by no seek: nobody else ends anything."""


def backoff_ms(failures: int) -> int:
    """At once after the first failure, then 1 s, doubling up to a minute."""
    if failures <= 1:
        return 0
    return min(BACKOFF_FIRST_MS * 2 ** (failures - 2), BACKOFF_MAX_MS)


def offsets_of(intervals: Iterable[Sequence[int]]) -> list[int]:
    return [offset for interval in intervals for offset in range(interval[0], interval[1])]


@dataclass
class NaivePartition:
    """A partition and all of its groups."""

    max_deliveries: int = 5
    start: int = 0
    arrivals: list[Arrival] = field(default_factory=list)
    """By offset; shared by all copies, since what is committed is never taken back."""
    cancelled: set[int] = field(default_factory=set)
    groups: dict[str, NaiveGroup] = field(default_factory=dict)

    def copy(self) -> "NaivePartition":
        return NaivePartition(
            self.max_deliveries,
            self.start,
            self.arrivals,
            set(self.cancelled),
            deepcopy(self.groups),
        )

    @property
    def end(self) -> int:
        return len(self.arrivals)

    def message(self, name: str, offset: int) -> Message:
        """A group's view of a message, made when it is first looked at."""
        messages = self.groups[name].messages
        if offset not in messages:
            arrival = self.arrivals[offset]
            due_ms = arrival.not_before_ms
            made = Message(offset, arrival.priority, due_ms, is_delayed=due_ms > 0)
            if offset in self.cancelled:
                made.state = State.DONE
            elif offset < self.start:
                made.state = State.LOST
            messages[offset] = made
        return messages[offset]

    def messages(self, name: str) -> list[Message]:
        """All that a group has to do with, in order."""
        return [self.message(name, at) for at in range(self.groups[name].start, self.end)]

    def ready(self, name: str, now_ms: int) -> list[Message]:
        return [message for message in self.messages(name) if message.is_ready(now_ms)]

    def held(self, name: str, lease: int) -> list[Message]:
        return [m for m in self.messages(name) if m.state is State.LEASED and m.lease == lease]

    def is_shared(self, name: str) -> bool:
        return name in self.groups and self.groups[name].is_shared

    def open_group(self, name: str, start: int, findable: int = 0) -> None:
        """A group shares work from `start` on, or from where it committed; but not from what
        nobody can find any more."""
        group = self.groups.setdefault(name, NaiveGroup(start))
        if not group.is_shared:
            begin = start if group.committed is None else group.committed
            group.start, group.is_shared = max(begin, findable), True

    def _known(self, name: str) -> NaiveGroup:
        """A group, perhaps one of which there is nothing but a committed offset."""
        return self.groups.setdefault(name, NaiveGroup(0, is_shared=False))

    def grant(
        self,
        name: str,
        lease: int,
        offsets: Sequence[int],
        *,
        consumer: int = 0,
        visibility_ms: int = 0,
        steady_ms: int = 0,
    ) -> None:
        """Messages are leased; with lease 0 they are done at once."""
        group = self.groups[name]
        if lease:
            group.leases[lease] = Lease(consumer, visibility_ms, steady_ms + visibility_ms)
            group.known.add(lease)
        for message in (self.message(name, at) for at in offsets):
            message.state = State.LEASED if lease else State.DONE
            message.lease = lease
            group.redelivered += message.failures > 0

    def _chosen(self, name: str, lease: int, offsets: Sequence[int] | None) -> list[Message]:
        """The messages that somebody speaks of; None: all that is left of the lease."""
        if offsets is None:
            return self.held(name, lease)
        start = self.groups[name].start
        return [self.message(name, at) for at in offsets if start <= at < self.end]

    def acknowledge(
        self, name: str, lease: int, offsets: Sequence[int] | None, lost: set[int]
    ) -> None:
        """Messages are done, but for those of which the caller was told that they are `lost`.

        Lost is what another has, or had since, or finished; and everything that this lease never
        held: it is forged, was ended by a seek, or was lost with a leader that had not committed
        it. What has expired, or was given back, is still the caller's to finish if nobody else has
        had it since.
        """
        for message in self._chosen(name, lease, offsets):
            is_lost = message.offset in lost
            is_mine = message.lease == lease and lease in self.groups[name].known
            if message.state in {State.LEASED, State.WAITING} and is_mine:
                assert not is_lost, f"an ack of {message} by its holder {lease} is refused"
            elif message.state is State.DONE:
                assert is_lost or is_mine, f"{lease} finishes {message} again"
            else:
                assert is_lost, f"an ack of {message} by {lease} is accepted"
            if not is_lost:
                message.state = State.DONE
                message.lease = lease

    def return_failed(
        self,
        name: str,
        lease: int,
        offsets: Sequence[int] | None,
        delay_ms: int | None,
        now_ms: int,
        reason: str = "",
    ) -> set[int]:
        """Returns what was lost, like the following ones."""

        def fail(message: Message) -> None:
            self._fail(message, now_ms, delay_ms, reason)

        return self._end(name, lease, offsets, fail)

    def reject(self, name: str, lease: int, offsets: Sequence[int] | None) -> set[int]:
        def condemn(message: Message) -> None:
            message.state, message.lease, message.story = State.DYING, 0, "bad"

        return self._end(name, lease, offsets, condemn)

    def release(self, name: str, lease: int, offsets: Sequence[int] | None) -> set[int]:
        def give_back(message: Message) -> None:
            message.state, message.due_ms = State.WAITING, 0

        return self._end(name, lease, offsets, give_back)

    def _end(
        self,
        name: str,
        lease: int,
        offsets: Sequence[int] | None,
        act: Callable[[Message], None],
    ) -> set[int]:
        lost = set()
        for message in self._chosen(name, lease, offsets):
            if message.lease == lease and message.state is State.LEASED:
                act(message)
            else:
                lost.add(message.offset)
        return lost

    def _fail(
        self, message: Message, now_ms: int, delay_ms: int | None = None, reason: str | None = None
    ) -> None:
        """No reason at all: its lease expired."""
        message.failures += 1
        if message.failures >= self.max_deliveries:
            message.state = State.DYING
            how = "lease expired" if reason is None else "failed"
            before = f"; before that: {message.reason}" if message.reason else ""
            last = f"; the last time: {reason}" if reason else before
            message.story = f"{how} {self.max_deliveries} times{last}"
            return
        message.reason = reason or message.reason
        wait_ms = backoff_ms(message.failures) if delay_ms is None else delay_ms
        message.state, message.due_ms = State.WAITING, now_ms + wait_ms if wait_ms else 0

    def release_consumer(self, name: str, consumer: int) -> int:
        """Returns how many messages are given back."""
        count = 0
        for lease, known in self.groups[name].leases.items():
            if known.consumer == consumer:
                count += len(self.held(name, lease))
                self.release(name, lease, None)
        return count

    def extend(self, name: str, lease: int, visibility_ms: int, steady_ms: int) -> bool:
        if not self.held(name, lease):
            return False
        known = self.groups[name].leases[lease]
        known.visibility_ms, known.ends_ms = visibility_ms, steady_ms + visibility_ms
        return True

    def expire(self, now_ms: int, steady_ms: int) -> int:
        """Returns how many messages lost their lease."""
        count = 0
        for name, group in self.groups.items():
            for lease, known in group.leases.items():
                for message in self.held(name, lease) if known.ends_ms <= steady_ms else ():
                    self._fail(message, now_ms)
                    count += 1
        return count

    def restart_leases(self, steady_ms: int) -> None:
        """Another leader: nobody's lease ends before its whole visibility has passed again."""
        for group in self.groups.values():
            for lease in group.leases.values():
                lease.ends_ms = steady_ms + lease.visibility_ms

    def seek(self, name: str, offset: int) -> None:
        """Everything below is behind the group, everything above is ahead of it, as if fresh."""
        group = self._known(name)
        if group.is_shared:
            self.groups[name] = NaiveGroup(
                offset,
                committed=group.committed,
                claimed=group.claimed,
                revivals=group.revivals,
            )
        if group.committed is not None or not group.is_shared:
            self.groups[name].committed = offset

    def is_under_way(self, name: str) -> bool:
        """Whether something of a group is with a consumer, or on its way to the dead letters."""
        states = {State.LEASED, State.DYING}
        return any(message.state in states for message in self.messages(name))

    def forget(self, name: str) -> None:
        """Nobody uses the group: all that stays is what it committed, and who claimed it."""
        group = self.groups.pop(name)
        if group.committed is not None or group.claimed:
            self.groups[name] = NaiveGroup(
                0,
                is_shared=False,
                committed=group.committed,
                claimed=group.claimed,
                revivals=group.revivals,
            )

    def trim(self, start: int) -> None:
        self.start = max(start, self.start)
        for name in self.groups:
            for message in self.messages(name):
                if message.offset < start and message.state is not State.DONE:
                    is_wanted = message.offset not in self.cancelled
                    message.state = State.LOST if is_wanted else State.DONE

    def cancel(self, offsets: Sequence[int], now_ms: int) -> int:
        """Returns how many messages were not due yet and are never delivered."""
        chosen = [
            at
            for at in offsets
            if self.start <= at < self.end
            and self.arrivals[at].not_before_ms > now_ms
            and at not in self.cancelled
        ]
        self.cancelled.update(chosen)
        for name, group in self.groups.items():
            for message in (self.message(name, at) for at in chosen if at >= group.start):
                # A clock that went back may have delivered it, in its own time, before.
                if message.state in {State.FRESH, State.WAITING}:
                    message.state = State.DONE
        return len(chosen)

    def claim(self, name: str, epoch: int) -> None:
        self._known(name).claimed = epoch

    def commit(self, name: str, offset: int) -> None:
        self._known(name).committed = offset

    def dying(self, name: str) -> list[int]:
        return [m.offset for m in self.messages(name) if m.state is State.DYING]

    def bury(self, name: str, offsets: Sequence[int], *, redriven: bool = False) -> None:
        for at in offsets:
            message = self.message(name, at)
            assert message.state is State.DYING, f"{message} is buried"
            message.state, message.is_dead = State.DONE, not redriven
        self.groups[name].dead += 0 if redriven else len(offsets)

    def dead(self, name: str) -> list[Message]:
        """What a group can have again: its dead letters that are not deleted."""
        return [
            message
            for message in self.messages(name)
            if message.is_dead and message.offset >= self.start
        ]

    def revive(self, name: str, redrive: int, messages: Sequence[Message]) -> None:
        """Dead messages are delivered again, as if they never had been; by one redrive once."""
        group = self.groups[name]
        if redrive in group.revivals or not messages:
            return
        group.revivals.add(redrive)
        group.dead -= len(messages)
        for message in messages:
            message.state, message.failures, message.due_ms = State.WAITING, 0, 0
            message.lease, message.reason, message.is_dead = 0, "", False

    def settle_letters(self, name: str, offsets: Sequence[int], state: State) -> int:
        """Dead letters are redriven (dying) or purged (done); returns how many were neither."""
        is_known = name in self.groups
        self.open_group(name, self.start)
        chosen = [m for m in self._chosen(name, 0, offsets) if m.state is State.FRESH]
        for message in chosen:
            message.state = state
        if not (chosen or is_known):
            del self.groups[name]
        return len(chosen)

    def counts(self, name: str, now_ms: int) -> Counter[str]:
        """How many messages are in which state."""
        found: Counter[str] = Counter()
        for message in self.messages(name):
            waits = message.state in {State.FRESH, State.WAITING}
            key = message.state.name if not waits else "READY"
            found["DELAYED" if waits and message.due_ms > now_ms else key] += 1
        return found

    def floor(self, name: str) -> int:
        """Below this everything is done."""
        ended = {State.DONE, State.LOST}
        open_offsets = [m.offset for m in self.messages(name) if m.state not in ended]
        return min(open_offsets, default=max(self.end, self.groups[name].start))


def judge_grant(given: Sequence[int], ready: Sequence[Message], wanted: int) -> None:
    """Hold what a lease gives against the promises on priority and order."""
    by_offset = {message.offset: message for message in ready}
    assert len(set(given)) == len(given), f"{given} holds a message twice"
    strangers = [at for at in given if at not in by_offset]
    assert not strangers, f"{strangers} are given out, and are not ready"
    assert len(given) == min(wanted, len(ready)), f"{len(given)} of {len(ready)} for {wanted}"
    chosen = set(given)
    for level in {message.priority for message in ready}:
        line = [
            message.offset in chosen
            for message in ready
            if message.priority == level and message.state is State.FRESH and not message.is_delayed
        ]
        assert line == sorted(line, reverse=True), f"level {level} is not served in order: {given}"
    _judge_reserve(chosen, ready, wanted)


def _judge_reserve(chosen: set[int], ready: Sequence[Message], wanted: int) -> None:
    """A quarter, give or take a turn, is for the levels below the highest, if they can use it."""
    top = max((message.priority for message in ready), default=0)
    below = [message.offset in chosen for message in ready if message.priority < top]
    above = [message.offset in chosen for message in ready if message.priority == top]
    share = wanted // 4
    if not all(above):
        assert sum(below) <= share + 1, f"{sum(below)} of {wanted} are taken from level {top}"
    least = min(len(below), share)
    assert sum(below) >= least, f"{sum(below)} of {wanted} below level {top}, {least} are due"
