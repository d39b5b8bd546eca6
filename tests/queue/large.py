"""States of the real sizes: what a leader, a new one and a starting broker do with them.

`python -m tests.queue.large` builds a partition with a million delayed messages and ten groups, one
with ten thousand groups, and one group at its limits. Whatever runs on the event loop is timed, in
CPU time; more than 200 ms at once is a failure. A full collection of Python's garbage collector,
which may come at any moment and stops everything, is timed apart, and is no failure.
"""

import argparse
import gc
import sys
from collections.abc import Callable
from random import Random
from time import thread_time
from typing import TypeVar

from quivermq.batches import Frame, FrameKind, Header, Index
from quivermq.queue import LeaseManager, LeaseRequest, Partition, groups_command

LIMIT_S = 0.2
NOW_MS = 1_750_000_000_000
HOUR_MS = 3_600_000
T = TypeVar("T")


class Large:
    """A partition and its leader, each step of which is timed."""

    def __init__(self) -> None:
        self.partition = Partition(Index(1), 1)
        self.slow: list[str] = []
        self.leases = self._leases()

    def _leases(self) -> LeaseManager:
        return LeaseManager(self.partition, 0, Random(7))

    def timed(self, what: str, act: Callable[[], T], *, on_loop: bool = True) -> T:
        gc.disable()
        began = thread_time()
        result = act()
        took = thread_time() - began
        gc.enable()
        note = "" if on_loop else "  (in a thread)"
        if on_loop and took > LIMIT_S:
            self.slow.append(what)
            note = "  TOO LONG"
        print(f"{what:.<60} {1000 * took:8.1f} ms{note}")
        return result

    def apply(self, kind: FrameKind, body: bytes = b"", count: int = 0, due_ms: int = 0) -> None:
        partition = self.partition
        header = Header(
            kind, body_bytes=len(body), term=1, index=Index(partition.applied_index + 1),
            base_offset=partition.next_offset, timestamp_ms=NOW_MS, count=count,
            not_before_ms=due_ms, priority=partition.next_offset % 8,
        )  # fmt: skip
        partition.apply(Frame(header, body))

    def commit(self) -> None:
        for operation in self.leases.working_copy.take_operations():
            self.apply(FrameKind.COMMAND, groups_command([operation]))

    def poll(self, group: str, now_ms: int = NOW_MS, most: int = 1000) -> int:
        leased = self.leases.lease(LeaseRequest(group, 1, most, HOUR_MS), self.end, now_ms, 0)
        return leased.lease if leased else 0

    @property
    def end(self) -> int:
        return self.partition.next_offset

    def hand_over(self, group: str, now_ms: int = NOW_MS) -> None:
        """Another leader, a checkpoint, a start: what all of them do with what there is."""
        self.commit()
        snapshot = self.timed("snapshot", self.partition.snapshot)
        packed = self.timed("pack", snapshot.pack, on_loop=False)
        print(f"{'checkpoint':.<60} {len(packed) / 2**20:8.1f} MiB")
        self.timed("restore", lambda: Partition.restore(packed), on_loop=False)
        self.leases = self.timed("new leader", self._leases)
        self.timed("first poll", lambda: self.poll(group, now_ms))
        self.timed("next poll", lambda: self.poll(group, now_ms))
        rounds = 0
        while self.leases.alarm_ms(now_ms, 0) == 0 and rounds < 10_000:
            rounds += 1
            began = thread_time()
            self.leases.expire(now_ms, 0)
            if thread_time() - began > LIMIT_S:
                self.timed("alarm", lambda: self.leases.expire(now_ms, 0))
        print(f"{'turns until all is timed and taken over':.<60} {rounds:8d}")
        self.timed("begin again", lambda: self.leases.begin_again([], 0))
        self.timed("poll after it", lambda: self.poll(group, now_ms))
        self.timed("alarm_ms", lambda: self.leases.alarm_ms(now_ms, 0))
        self.timed("describe one", lambda: self.leases.describe(self.end, now_ms, group))
        self.commit()


def delayed(messages: int, groups: int) -> list[str]:
    """Delayed messages in any order of due times, and groups that have come by."""
    print(f"-- {messages:,} delayed messages, {groups} groups")
    large, dice = Large(), Random(3)
    for _ in range(messages):
        large.apply(FrameKind.DATA, b"", 1, NOW_MS + 1 + dice.randrange(24 * HOUR_MS))
    for number in range(groups):
        large.leases.working_copy.open_group(f"g{number}", 0)
        large.poll(f"g{number}")
    large.hand_over("g0")
    large.timed("list_delayed", lambda: large.leases.delayed(NOW_MS, 0, 10_000))
    large.timed("delayed_total", lambda: large.leases.delayed_total(NOW_MS))
    parts = [(at, at + 1) for at in range(0, 4_000, 2)]
    large.timed("cancel 2,000 messages", lambda: large.leases.cancel(parts, NOW_MS))
    large.timed("apply that", large.commit)
    half = NOW_MS + 12 * HOUR_MS
    large.timed("poll when half is due", lambda: large.poll("g1", half))
    large.hand_over("g1", half)
    large.leases.working_copy.trim(messages // 2)
    large.timed("apply a trim of half", large.commit)
    return large.slow


def many_groups(groups: int) -> list[str]:
    print(f"-- {groups:,} groups")
    large = Large()
    large.apply(FrameKind.DATA, b"", 100_000)
    for number in range(groups):
        large.leases.working_copy.open_group(f"pod-{number:08x}-consumer", 0)
        large.poll(f"pod-{number:08x}-consumer", most=10)
        if number % 100 == 0:
            large.commit()
    large.hand_over("pod-00000007-consumer")
    known, priority_index = large.partition.groups, large.partition.priority_index
    large.timed("first_fresh", lambda: known.first_fresh(priority_index))
    large.timed("taken_by_all", known.taken_by_all)
    while not large.timed("trim, a portion", lambda: large.leases.working_copy.trim(50_000)):
        large.timed("apply that", large.commit)
    large.timed("apply that", large.commit)
    began = thread_time()
    gc.collect()
    print(f"{'a full garbage collection':.<60} {1000 * (thread_time() - began):8.1f} ms")
    return large.slow


def full_group(leases: int) -> list[str]:
    """One group with as many leases as it may have, and acks that are scattered."""
    print(f"-- one group with {leases:,} leases")
    large = Large()
    for _ in range(leases // 100):
        large.apply(FrameKind.DATA, b"", 1000)
    large.leases.working_copy.open_group("g", 0)
    held = []
    while len(held) < leases:
        held.append(large.poll("g", most=10))
        if len(held) % 500 == 0:
            large.commit()
    large.hand_over("g")
    large.apply(FrameKind.DATA, b"", 200_000)
    large.leases.release_consumer("g", 1)
    large.commit()
    big = large.leases.lease(LeaseRequest("g", 2, 200_000, HOUR_MS), large.end, NOW_MS, 0)
    assert big is not None
    low, high = big.pieces[-1].start, big.pieces[-1].end
    parts = [(at, at + 1) for at in range(low, high, 2)][:2_000]
    large.timed("settle 2,000 intervals", lambda: large.leases.acknowledge("g", big.lease, parts))
    large.timed("apply that", large.commit)
    large.timed("leases that end", lambda: large.leases.expire(NOW_MS, 2 * HOUR_MS))
    large.timed("apply that", large.commit)
    return large.slow


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.queue.large", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="1: the real sizes")
    scale = parser.parse_args(arguments).scale
    slow = delayed(int(1_000_000 * scale), 10)
    slow += many_groups(int(10_000 * scale))
    slow += full_group(int(100_000 * scale) - 10)
    if slow:
        print(f"too long: {', '.join(slow)}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
