"""The share of each priority, and what a poll costs however much waits."""

from collections import Counter
from random import Random

import pytest

from quivermq.batches import Frame, FrameKind, Index
from quivermq.queue import LeaseManager, LeaseRequest, Partition, groups_command
from quivermq.queue.selection import Candidates
from tests.queue.lease_stage import START_MS, data_frame

LEVELS = range(8)
DELIVERIES = 2_800


class Queue:
    """A partition with one group that polls and acknowledges."""

    def __init__(self) -> None:
        self.partition = Partition()
        self.leases = LeaseManager(self.partition, 0, Random(7))
        self.leases.working_copy.open_group("g", 0)

    def apply(self, frame: Frame) -> None:
        partition = self.partition
        index = Index(partition.applied_index + 1)
        partition.apply(
            frame.stamped(
                term=1, index=index, base_offset=partition.next_offset, timestamp_ms=START_MS
            )
        )

    def put(self, count: int, priority: int) -> None:
        self.apply(data_frame(count, priority))

    def poll(self, wanted: int) -> Counter[int]:
        """How many messages of which level."""
        ask = LeaseRequest("g", 1, wanted, 1_000)
        leased = self.leases.lease(ask, self.partition.next_offset, START_MS, 0)
        assert leased is not None
        self.leases.acknowledge("g", leased.lease, None)
        body = groups_command(self.leases.working_copy.take_operations())
        self.apply(Frame.of(FrameKind.COMMAND, body))
        shares: Counter[int] = Counter()
        for piece in leased.pieces:
            shares[piece.priority] += piece.end - piece.start
        return shares


def shares_of(levels: range | tuple[int, ...], wanted: int) -> dict[int, float]:
    """What each level gets while all of them always have more than is asked for."""
    queue = Queue()
    shares: Counter[int] = Counter()
    for level in levels:
        queue.put(DELIVERIES + wanted, level)
    while shares.total() < DELIVERIES:
        given = queue.poll(wanted)
        assert given.total() == wanted
        shares += given
    return {level: shares[level] / shares.total() for level in levels}


@pytest.mark.parametrize("wanted", [1, 2, 3, 7, 52, 100])
def test_no_level_starves_and_the_highest_has_most_at_any_size_of_polls(wanted: int) -> None:
    shares = shares_of(LEVELS, wanted)
    assert min(shares.values()) >= 0.02, shares
    assert shares[7] >= 0.60, shares


@pytest.mark.parametrize("wanted", [1, 3, 20, 100])
def test_the_reserve_is_shared_evenly_by_waiting_polls(wanted: int) -> None:
    shares = shares_of((0, 2, 5, 6), wanted)
    for level in (0, 2, 5):
        assert shares[level] == pytest.approx(0.25 / 3, abs=0.01), shares
    assert shares_of((4,), wanted) == {4: 1.0}


@pytest.mark.parametrize("wanted", [1, 2, 3, 7, 100])
def test_a_single_urgent_message_is_not_kept_waiting(wanted: int) -> None:
    queue = Queue()
    for level in LEVELS[:-1]:
        queue.put(1_000, level)
    for _ in range(5):
        queue.poll(wanted)
    queue.put(1, 7)
    # At most one poll may have been due for the reserve.
    assert (queue.poll(wanted) + queue.poll(wanted))[7] == 1


def test_levels_that_have_less_than_their_share_leave_it_to_the_others() -> None:
    queue = Queue()
    queue.put(2, 0)
    queue.put(500, 7)
    assert queue.poll(100) == {0: 2, 7: 98}


def states_with(backlog: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much is kept and looked at for one poll with so many messages waiting."""
    looks = 0
    look = Candidates.has

    def counted(candidates: Candidates, level: int) -> bool:
        nonlocal looks
        looks += 1
        return look(candidates, level)

    monkeypatch.setattr(Candidates, "has", counted)
    queue = Queue()
    for _ in range(8):
        for level in LEVELS:
            queue.put(backlog // 64, level)
    kept = []
    for _ in range(10):
        queue.poll(100)
        kept.append(len(queue.partition.groups.pack()) + queue.partition.priority_index.size)
    monkeypatch.setattr(Candidates, "has", look)
    return [looks, *kept]


def test_what_is_kept_and_looked_at_does_not_grow_with_what_waits(monkeypatch) -> None:
    small = states_with(1_000 * 64, monkeypatch)
    assert states_with(10_000_000 * 64, monkeypatch) == small
