"""A partition with a lease manager, whose operations are committed when a test says so."""

from random import Random

from quivermq.batches import Frame, FrameKind, Index, Origin, encode_batch
from quivermq.queue import (
    GrantedLease,
    GroupStats,
    LeaseManager,
    LeaseRequest,
    Partition,
    TopicSettings,
    groups_command,
    settings_command,
)

VISIBILITY_MS = 30_000


class Rig:
    """Time stands still unless it is moved."""

    def __init__(self, settings: TopicSettings | None = None) -> None:
        self.now_ms = 1_000_000
        self.term = 1
        self.dice = Random(7)
        self.partition = Partition()
        self.entry(Frame.of(FrameKind.NOOP))
        if settings is not None:
            self.entry(Frame.of(FrameKind.COMMAND, settings_command(settings)))
        self.leases = LeaseManager(self.partition, self.now_ms, self.dice)

    @property
    def end(self) -> int:
        return self.partition.next_offset

    def entry(self, frame: Frame) -> None:
        """Commit an entry."""
        self.partition.apply(
            frame.stamped(
                term=self.term,
                index=Index(self.partition.applied_index + 1),
                base_offset=self.partition.next_offset,
                timestamp_ms=max(self.now_ms, self.partition.timestamp_ms),
            )
        )

    def put(self, count: int = 1, priority: int = 0, delay_ms: int = 0) -> int:
        """Store a batch; returns its first offset."""
        at = self.end
        not_before_ms = self.now_ms + delay_ms if delay_ms else 0
        origin = Origin(priority=priority, not_before_ms=not_before_ms)
        self.entry(encode_batch([b"x"] * count, origin=origin))
        return at

    def commit(self) -> None:
        """Commit what was said at the lease manager."""
        operations = self.leases.working_copy.take_operations()
        if operations:
            self.entry(Frame.of(FrameKind.COMMAND, groups_command(operations)))
        self.partition.validate()

    def change_leader(self) -> None:
        """What is not committed is lost; somebody else serves."""
        self.term += 1
        self.entry(Frame.of(FrameKind.NOOP))
        self.leases = LeaseManager(self.partition, self.now_ms, self.dice)

    def restart(self) -> None:
        """Every replica starts anew from a checkpoint."""
        before = self.partition.checkpoint()
        self.partition = Partition.restore(before)
        assert self.partition.checkpoint() == before
        self.change_leader()

    def poll(
        self,
        most: int = 100,
        group: str = "g",
        consumer: int = 1,
        visibility_ms: int = VISIBILITY_MS,
        *,
        auto_ack: bool = False,
        start: int = 0,
    ) -> GrantedLease | None:
        self.leases.working_copy.open_group(group, start)
        ask = LeaseRequest(group, consumer, most, visibility_ms, auto_ack)
        return self.leases.lease(ask, self.end, self.now_ms, self.now_ms)

    def offsets(self, leased: GrantedLease | None) -> list[int]:
        pieces = leased.pieces if leased else []
        return [offset for piece in pieces for offset in range(piece.start, piece.end)]

    def polled(self, most: int = 100, group: str = "g") -> list[int]:
        """The offsets of a poll."""
        return self.offsets(self.poll(most, group))

    def take(self, most: int = 100, group: str = "g") -> GrantedLease:
        """A poll that must bring something."""
        leased = self.poll(most, group)
        assert leased is not None
        return leased

    def later(self, milliseconds: int) -> int:
        """Time passes, and leases end; returns how many messages they held."""
        self.now_ms += milliseconds
        return self.leases.expire(self.now_ms, self.now_ms)

    def stats(self, group: str = "g") -> GroupStats:
        (found,) = self.leases.describe(self.end, self.now_ms, group)
        known = (found.waiting, found.in_flight, found.delayed, found.done, found.dead, found.lost)
        assert sum(known) == self.end - found.start, "every message is counted once"
        assert min(known) >= 0
        return found
