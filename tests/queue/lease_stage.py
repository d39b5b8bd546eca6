"""A partition with a lease manager and a naive model of both, side by side, one operation at a
time.

Operations that the lease manager decides on are proposed in batches and applied later, in order, to
the partition and to a follower. When leadership is lost, some of them never are: the lease manager
begins anew, and the model goes back to what was applied.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from quivermq.batches import Frame, FrameKind, Header, Index
from quivermq.errors import Fenced, InvalidRequest, Overloaded, QuiverError
from quivermq.queue import (
    REDRIVE_GROUP,
    DyingMessages,
    LeaseManager,
    LeaseRequest,
    Partition,
    Piece,
    TopicSettings,
    groups_command,
    settings_command,
)
from tests.queue.naive_group import Arrival, NaivePartition, State, judge_grant, offsets_of

START_MS = 1_700_000_000_000
MAX_DELIVERIES = 3
DAY_MS = 24 * 3_600_000
ROUNDS_MAX = 5
FIXED_BYTES = 500
"""Of a checkpoint: heads, settings."""


class Grant(NamedTuple):
    """What a consumer was given once; it may be long over."""

    group: str
    lease: int
    offsets: list[int]
    consumer: int = 1


class Entry(NamedTuple):
    """What is proposed: data, or operations with the model as it is once they are applied."""

    frame: Frame
    model: NaivePartition | None


@dataclass
class DeadLetters:
    """A topic that takes the dead letters of one group, as an idempotent producer's batches."""

    epoch: int = 0
    next_number: int = 0
    offsets: list[int] = field(default_factory=list)
    at: dict[int, int] = field(default_factory=dict)
    """By number, in the epoch."""

    def store(self, epoch: int, number: int, offsets: Sequence[int]) -> bool:
        """False if something is missing before it, so that it cannot be stored."""
        if epoch != self.epoch:
            assert epoch > self.epoch
            self.epoch, self.next_number, self.at = epoch, 0, {}
        if number > self.next_number:
            return False
        for position, offset in enumerate(offsets, number):
            known = self.at.setdefault(position, offset)
            assert known == offset, f"dead letter {position} is {known}, and {offset} is lost"
            if position == self.next_number:
                self.next_number += 1
                self.offsets.append(offset)
        return True


def data_frame(count: int, priority: int = 0, not_before_ms: int = 0) -> Frame:
    """Messages; nobody here looks into their body."""
    header = Header(FrameKind.DATA, priority=priority, not_before_ms=not_before_ms, count=count)
    return Frame(header, b"")


class DeskStage:
    """Both of them, and everything that can happen."""

    def __init__(self, *, is_fair: bool = True) -> None:
        self.is_fair = is_fair
        """Whether the index is large enough to keep all priorities."""
        self.now_ms = START_MS
        self.steady_ms = 0
        self.term = 1
        self.dice = Random(7)
        self.partition, self.follower = Partition(), Partition()
        self.applied = NaivePartition(MAX_DELIVERIES)
        self.entries: list[Entry] = []
        self.batch_starts = [0]
        """Where retention may begin to keep: it deletes whole batches."""
        self.grants: list[Grant] = []
        self.tokens: set[tuple[str, int]] = set()
        self.graveyards: dict[str, DeadLetters] = {}
        settings = TopicSettings(max_deliveries=MAX_DELIVERIES)
        self._apply(Frame.of(FrameKind.COMMAND, settings_command(settings)))
        self._take_leadership()

    def _take_leadership(self) -> None:
        self._apply(Frame.of(FrameKind.NOOP))
        self.leases = LeaseManager(self.partition, self.steady_ms, self.dice)
        self.model = self.applied.copy()
        self.model.restart_leases(self.steady_ms)

    @property
    def end(self) -> int:
        return self.partition.next_offset

    def _apply(self, frame: Frame) -> None:
        entry = frame.stamped(
            term=self.term,
            index=Index(self.partition.applied_index + 1),
            base_offset=self.partition.next_offset,
            timestamp_ms=max(self.now_ms, self.partition.timestamp_ms),
        )
        self.partition.apply(entry)
        self.follower.apply(entry)

    # What happens to the log.

    def append(self, count: int, priority: int, delay_ms: int) -> None:
        self.propose()
        not_before_ms = self.now_ms + delay_ms if delay_ms else 0
        self.entries.append(Entry(data_frame(count, priority, not_before_ms), None))

    def propose(self) -> None:
        """All that came up since the last time, as one entry."""
        operations = self.leases.working_copy.take_operations()
        if operations:
            frame = Frame.of(FrameKind.COMMAND, groups_command(operations))
            self.entries.append(Entry(frame, self.model.copy()))

    def commit(self, count: int) -> None:
        """The next entries are committed and applied."""
        self.propose()
        ready, self.entries = self.entries[:count], self.entries[count:]
        for frame, model in ready:
            self._apply(frame)
            header = frame.header
            arrival = Arrival(header.priority, header.not_before_ms)
            self.applied.arrivals.extend([arrival] * header.count)
            if header.count:
                self.batch_starts.append(self.end)
            if model is not None:
                self.applied = model

    def restart(self) -> None:
        """The follower starts from a checkpoint."""
        self.follower = Partition.restore(self.follower.checkpoint())

    def lose_leadership(self, committed: int) -> None:
        """Some of what is under way is committed; the next leader begins with that."""
        self.commit(committed)
        self.entries.clear()
        self.term += 1
        self.partition, self.follower = self.follower, self.partition
        self._take_leadership()

    def pass_time(self, steady_ms: int, jump_ms: int = 0) -> None:
        """Time passes, and the wall clock may jump besides; then leases expire."""
        self.steady_ms += steady_ms
        self.now_ms += steady_ms + jump_ms
        expired = self.leases.expire(self.now_ms, self.steady_ms)
        assert expired == self.model.expire(self.now_ms, self.steady_ms)

    # What consumers do.

    def poll(
        self, group: str, wanted: int, *, auto_ack: bool = False, consumer: int = 1,
        visibility_ms: int = 1_000, latest: bool = False,
    ) -> None:  # fmt: skip
        if not self.model.is_shared(group):
            start = self.end if latest else self.model.start
            self.leases.working_copy.open_group(group, start)
            known = self.model.groups.get(group)
            wanted_start = start if known is None or known.committed is None else known.committed
            begun = self.leases.describe(self.end, 0, group)[0].start
            assert wanted_start <= begun <= max(wanted_start, self.model.start)
            self.model.open_group(group, start, begun)
            # Where it committed may be gone by now.
            self.trim(self.model.start)
        ready = self.model.ready(group, self.now_ms)
        count = self.leases.ready(group, self.end, self.now_ms, wanted)
        assert count >= min(len(ready), wanted), f"{count} are ready, and really {len(ready)}"
        ask = LeaseRequest(group, consumer, wanted, visibility_ms, auto_ack)
        leased = self.leases.lease(ask, self.end, self.now_ms, self.steady_ms)
        if leased is None:
            assert not ready, f"{len(ready)} messages are ready, and none is given out"
            # Whoever is woken for something and finds nothing would be woken again at once.
            assert self.leases.ready(group, self.end, self.now_ms, wanted) == 0
            return
        assert (leased.lease == 0) == auto_ack
        offsets = offsets_of(leased.pieces)
        assert offsets == sorted(set(offsets)), f"{leased} is out of order"
        if self.is_fair:
            judge_grant(offsets, ready, wanted)
        assert set(offsets) <= {message.offset for message in ready}
        assert len(set(offsets)) == len(offsets) == min(wanted, len(ready))
        for piece in leased.pieces:
            for offset in range(piece.start, piece.end):
                message = self.model.message(group, offset)
                assert piece.failures == message.failures, f"{piece} holds {message}"
                assert not self.is_fair or piece.priority == message.priority
                told = [r.reason for r in leased.reasons if r.start <= offset < r.end]
                assert told == ([message.reason] if message.reason else []), f"{told}: {message}"
        if leased.lease:
            assert (group, leased.lease) not in self.tokens, f"{leased} has a token of another"
            self.tokens.add((group, leased.lease))
            self.grants.append(Grant(group, leased.lease, offsets, consumer))
        self.model.grant(
            group,
            leased.lease,
            offsets,
            consumer=consumer,
            visibility_ms=visibility_ms,
            steady_ms=self.steady_ms,
        )

    def poll_in_vain(self, group: str, error: QuiverError) -> None:
        """While the core takes no proposals: nothing is given, nothing ends, nothing changes."""
        before = self.leases.working_copy.groups.pack()
        self.leases.working_copy.refusal = error
        steady_ms = self.steady_ms + DAY_MS
        acts: list[Callable[[], object]] = [
            lambda: self.leases.lease(
                LeaseRequest(group, 1, 5, 1_000), self.end, self.now_ms, self.steady_ms
            ),
            lambda: self.leases.expire(self.now_ms, steady_ms),
            lambda: self.leases.working_copy.open_group("never seen", 0),
        ]
        for act in acts:
            with suppress(type(error), InvalidRequest):
                act()
                raise AssertionError("it was done, and cannot be proposed")
        self.leases.working_copy.refusal = None
        assert self.leases.working_copy.groups.pack() == before

    def forge(self, how: str, group: str, lease: int, consumer: int, offsets: list[int]) -> None:
        """Somebody settles with a number, or in the name of a consumer, that is not theirs."""
        if not self.model.is_shared(group):
            return
        before, parts = self.leases.working_copy.groups.pack(), _intervals(offsets)
        if how == "ack":
            lost = self.leases.acknowledge(group, lease, parts, consumer)
        elif how == "fail":
            lost = self.leases.fail(group, lease, parts, None, self.now_ms, consumer)
        elif how == "reject":
            lost = self.leases.reject(group, lease, parts, "bad", self.now_ms, consumer)
        else:
            lost = self.leases.release(group, lease, parts, consumer)
        assert sorted(offsets_of(lost)) == sorted(set(offsets)), f"{lease} is forged, and counts"
        assert not self.leases.extend(group, lease, 1_000, self.steady_ms, consumer)
        assert self.leases.working_copy.groups.pack() == before

    def acknowledge(self, grant: Grant, offsets: list[int] | None) -> None:
        if not self.model.is_shared(grant.group):
            return
        lost = self.leases.acknowledge(
            grant.group, grant.lease, _intervals(offsets), grant.consumer
        )
        self.model.acknowledge(grant.group, grant.lease, offsets, set(offsets_of(lost)))

    def settle(self, how: str, grant: Grant, offsets: list[int] | None, delay_ms: int | None):
        """Fail, reject or release."""
        group, lease, spoken_of = grant.group, grant.lease, _intervals(offsets)
        if not self.model.is_shared(group):
            return
        if how == "fail":
            reason = "" if delay_ms is None else f"no {lease % 3}"
            lost = self.leases.fail(
                group, lease, spoken_of, delay_ms, self.now_ms, grant.consumer, reason
            )
            expected = self.model.return_failed(
                group, lease, offsets, delay_ms, self.now_ms, reason
            )
        elif how == "reject":
            lost = self.leases.reject(group, lease, spoken_of, "bad", self.now_ms, grant.consumer)
            expected = self.model.reject(group, lease, offsets)
        else:
            lost = self.leases.release(group, lease, spoken_of, grant.consumer)
            expected = self.model.release(group, lease, offsets)
        start = self.model.groups[group].start
        assert {at for at in offsets_of(lost) if start <= at < self.end} == expected

    def extend(self, grant: Grant, visibility_ms: int) -> None:
        if self.model.is_shared(grant.group):
            known = self.leases.extend(grant.group, grant.lease, visibility_ms, self.steady_ms)
            expected = self.model.extend(grant.group, grant.lease, visibility_ms, self.steady_ms)
            assert known == expected

    def release_consumer(self, group: str, consumer: int) -> None:
        if self.model.is_shared(group):
            given = self.leases.release_consumer(group, consumer)
            assert given == self.model.release_consumer(group, consumer)

    # What administrators and the leader itself do.

    def seek(self, group: str, offset: int) -> None:
        offset = max(offset, self.model.start)
        self.leases.seek(group, offset)
        self.model.seek(group, offset)

    def drop(self, group: str) -> None:
        self.leases.working_copy.drop(group)
        self.model.groups.pop(group, None)

    def forget(self, group: str) -> None:
        if not self.model.is_shared(group):
            return
        if self.leases.expire_group(group, self.now_ms):
            assert not self.model.is_under_way(group)
            self.model.forget(group)

    def trim(self, start: int) -> None:
        while not self.leases.working_copy.trim(start):
            continue
        self.model.trim(start)

    def cancel(self, offsets: list[int]) -> None:
        offsets = [offset for offset in offsets if offset >= self.model.start]
        count = self.leases.cancel(_intervals(offsets) or [], self.now_ms)
        expected = self.model.cancel(offsets, self.now_ms)
        assert count == expected, f"{count} of {offsets} are cancelled, not {expected}"

    def revive(self, group: str, redrive: int, count: int) -> None:
        """The last dead letters of a group are brought back, and all that retention has deleted
        is refused; the same redrive again changes nothing."""
        if not self.model.is_shared(group):
            return
        # A leader that is asked has told its groups what is deleted.
        self.trim(self.model.start)
        start = max(self.model.start, self.model.groups[group].start)
        dead = self.model.dead(group)[-count:]
        pieces = [Piece(m.offset, m.offset + 1, m.priority, 0) for m in dead]
        below = [Piece(start - 1, start, 0, 0)] if start else []
        self._revive_dying(group, redrive, pieces)
        gone = self.leases.dead_letters.revive(group, redrive, below + pieces, self.model.start)
        assert gone == [(piece.start, piece.end) for piece in below]
        self.model.revive(group, redrive, dead)

    def _revive_dying(self, group: str, redrive: int, pieces: list[Piece]) -> None:
        """With one that is still on its way to the dead letters none is brought back."""
        dying = [m for m in self.model.messages(group) if m.state is State.DYING]
        if dying and redrive not in self.model.groups[group].revivals:
            first, start = dying[0], self.model.start
            early = Piece(first.offset, first.offset + 1, first.priority, 0)
            try:
                self.leases.dead_letters.revive(group, redrive, [*pieces, early], start)
            except Overloaded:
                return
            raise AssertionError(f"{first.offset} was brought back before its record had ended")

    def settle_letters(self, low: int, high: int, *, purged: bool) -> None:
        """As if the partition were one of a dead-letter topic."""
        if self.model.cancelled:
            # Nobody delays or cancels dead letters.
            return
        start, chosen = self.model.start, [(low, high)] if low < high else []
        if purged:
            self._purge_redrives(low, high)
            count = self.leases.dead_letters.purge(start, self.end, chosen)
        else:
            count = self.leases.dead_letters.redrive(start, self.end, chosen, self.now_ms)
        state = State.DONE if purged else State.DYING
        offsets = list(range(max(low, start), high))
        assert count == self.model.settle_letters(REDRIVE_GROUP, offsets, state)

    def _purge_redrives(self, low: int, high: int) -> None:
        """Records that wait to be redriven go as a whole, or stay."""
        for group, record in self._redrives():
            if low <= record.start and record.end <= high:
                assert self.leases.dead_letters.purge(0, 0, [(record.start, record.end)]) == (
                    record.end - record.start
                )
                offsets = list(range(record.start, record.end))
                self.model.bury(group, offsets, redriven=True)

    def _redrives(self) -> list[tuple[str, DyingMessages]]:
        found = self.leases.working_copy.groups.by_name.get(REDRIVE_GROUP)
        records = [] if found is None else list(found.dying.values())
        return [(REDRIVE_GROUP, record) for record in records if record.redrive]

    def claim(self, group: str, epoch: int) -> None:
        known = self.model.groups.get(group)
        try:
            committed = self.leases.working_copy.claim(group, epoch)
        except Fenced:
            assert known is not None
            assert epoch < known.claimed
            return
        assert known is None or epoch >= known.claimed
        assert committed == (known.committed if known else None)
        self.model.claim(group, epoch)

    def commit_offset(self, group: str, offset: int, epoch: int) -> None:
        known = self.model.groups.get(group)
        try:
            self.leases.working_copy.commit(group, offset, epoch)
        except (Fenced, InvalidRequest):
            assert epoch != (known.claimed if known else 0)
            return
        assert not epoch or (known is not None and epoch == known.claimed)
        self.model.commit(group, offset)

    def finish(self) -> None:
        """All is delivered that ever will be, and nothing else; then all is done."""
        self.lose_leadership(len(self.entries))
        self.pass_time(0, 10 * DAY_MS)
        self.pass_time(DAY_MS, 0)
        for _ in range(MAX_DELIVERIES):
            self.pass_time(DAY_MS)
            self.pass_time(DAY_MS)
            for group in [name for name in self.model.groups if self.model.is_shared(name)]:
                if group != REDRIVE_GROUP:
                    self.poll(group, 10_000)
        self.pass_time(DAY_MS)
        self.commit(len(self.entries) + 1)
        for _ in range(ROUNDS_MAX):
            self.move_dead_letters(stored=10_000, buried=10_000)
            self.commit(len(self.entries) + 1)
        assert not self.leases.dead_letters.dying()
        self.check()
        for group, known in self.model.groups.items():
            if known.is_shared and group != REDRIVE_GROUP:
                ended = {State.DONE, State.LOST}
                left = [m for m in self.model.messages(group) if m.state not in ended]
                assert not left, f"{left[:3]} of {group}"

    def move_dead_letters(self, *, stored: int, buried: int) -> None:
        """Some records reach the topic of dead letters, and of those some are told to have."""
        for group, record in self.leases.dead_letters.dying()[:stored]:
            graveyard = self.graveyards.setdefault(group, DeadLetters())
            offsets = list(range(record.start, record.end))
            if not graveyard.store(
                self.leases.dead_letters.dead_epoch(group), record.number, offsets
            ):
                self.leases.dead_letters.restart_numbers(group)
                return
            for message in (self.model.message(group, at) for at in offsets):
                if not record.redrive and message.state is State.DYING and not record.is_stale:
                    assert record.reason == message.story, f"{record} of {message}"
            if buried > 0:
                buried -= 1
                self.leases.dead_letters.bury(group, record.number)
                dying = set(self.model.dying(group))
                moved = [at for at in offsets if at in dying]
                self.model.bury(group, moved, redriven=record.redrive)

    def check(self) -> None:
        """What holds after every step."""
        self.partition.validate()
        checkpoint = self.partition.checkpoint()
        assert checkpoint == self.follower.checkpoint()
        assert len(checkpoint) <= self.partition.size_bytes + FIXED_BYTES
        self.leases.working_copy.groups.validate(self.partition.priority_index)
        shown = {stats.group: stats for stats in self.leases.describe(self.end, self.now_ms)}
        assert shown.keys() == self.model.groups.keys()
        for name, group in self.model.groups.items():
            self._check_group(name, group, shown[name])
        self._check_alarm()

    def _check_alarm(self) -> None:
        """It rings in time for what is known at the lease manager, and not for nothing."""
        known: list[int] = []
        # It may ring for a delayed message that nobody wants any more.
        dues = (one.due_ms for one in self.partition.priority_index.delayed)
        possible = [due_ms - self.now_ms for due_ms in dues if due_ms > self.now_ms]
        for name, group in self.model.groups.items():
            leases = {lease: content.ends_ms for lease, content in group.leases.items()}
            for message in self.model.messages(name) if group.is_shared else ():
                if message.state is State.LEASED:
                    known.append(leases[message.lease] - self.steady_ms)
                elif message.state is State.WAITING and message.due_ms > self.now_ms:
                    known.append(message.due_ms - self.now_ms)
        alarm_ms = self.leases.alarm_ms(self.now_ms, self.steady_ms)
        assert not known or alarm_ms is not None
        if alarm_ms is not None:
            assert min(known + possible) <= alarm_ms <= min([*known, alarm_ms])

    def _check_group(self, name, group, stats) -> None:
        assert (stats.is_shared, stats.committed) == (group.is_shared, group.committed)
        if not group.is_shared:
            return
        counts = self.model.counts(name, self.now_ms)
        held: dict[int, int] = {}
        for lease, known in group.leases.items():
            count = len(self.model.held(name, lease))
            if count:
                held[known.consumer] = held.get(known.consumer, 0) + count
        expected = stats._replace(
            start=group.start,
            waiting=counts["READY"],
            in_flight=counts["LEASED"],
            delayed=counts["DELAYED"],
            done=counts["DONE"] - group.dead,
            dead=group.dead + counts["DYING"],
            lost=counts["LOST"],
            redelivered=group.redelivered,
            consumers=held,
        )
        if name == REDRIVE_GROUP and self.model.cancelled:
            return
        if name == REDRIVE_GROUP:
            # Nobody polls it, and dead letters are not delayed.
            expected = expected._replace(waiting=stats.waiting, delayed=stats.delayed)
        assert stats == expected, f"{stats} instead of {expected}"
        # What was cancelled is passed when it is next looked at.
        floor = self.model.floor(name)
        assert stats.floor == floor or (self.model.cancelled and stats.floor < floor)


def _intervals(offsets: list[int] | None) -> list[tuple[int, int]] | None:
    return None if offsets is None else [(offset, offset + 1) for offset in offsets]
