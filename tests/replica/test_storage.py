"""Disk work of a replica: done in order, and with no more fsyncs than it takes."""

import itertools
from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import Frame, FrameKind, Index, Offset
from quivermq.errors import StorageFailed
from quivermq.log import Log
from quivermq.replica import Persist, SaveCheckpoint, carry_out, carry_out_all, found_log
from quivermq.replica.storage import APPEND_BYTES_MAX, newest_state
from quivermq.testing.simulated_disk import Killed, SimulatedDisk
from tests.replica.group import FOLDER, SMALL, Group

LOG_ID = b"0123456789abcdef"


def new_log(seed: int = 0) -> tuple[SimulatedDisk, Log]:
    disk = SimulatedDisk(Random(seed))
    return disk, found_log(disk, FOLDER, LOG_ID, (1, 2, 3), SMALL)


def entry(index: int, term: int = 1, size: int = 10) -> Frame:
    return Frame.of(FrameKind.COMMAND, b"x" * size).stamped(
        term=term, index=Index(index), base_offset=Offset(0), timestamp_ms=0
    )


def piece(
    number: int, *frames: Frame, term: int = 0, vote: int = 0, commit: int = 0, checkpoint=None
) -> Persist:
    return Persist(number, term, vote, Index(commit), checkpoint, frames)


def in_term(log: Log) -> list[tuple[int, int]]:
    return [(f.header.index, f.header.term) for f in log.frames(log.first_index)]


def test_plain_appends_need_one_fsync_together() -> None:
    disk, log = new_log()
    carry_out(log, piece(1, entry(2)))
    works = [piece(n, entry(n + 1), entry(n + 2), commit=n) for n in (2, 4, 6)] + [piece(8)]
    before = log.edge.next_index
    counted = CountedSyncs(log)
    assert carry_out_all(log, works) == 4
    assert counted.count == 1
    assert log.edge.next_index == before + 6
    assert log.commit_index == 6
    disk.lose_power()
    assert in_term(Log.open(disk, FOLDER, SMALL)) == [(n, 1) for n in range(2, 9)]


class CountedSyncs:
    """Counts how often a log is asked to be durable."""

    def __init__(self, log: Log) -> None:
        self.count = 0
        sync = log.sync

        def counting(commit_index: Index = Index(0)) -> None:
            self.count += 1
            sync(commit_index)

        log.sync = counting


def test_votes_cuts_and_checkpoints_are_not_joined_to_what_comes_before_them() -> None:
    _, log = new_log()
    works = [
        piece(1, entry(2), entry(3), entry(4), commit=2),
        piece(2, entry(5)),
        piece(3, entry(4, term=2), term=2, vote=3, commit=2),
        piece(4, entry(5, term=2), commit=4),
        SaveCheckpoint(Index(2), newest_state(log).snapshot()),
        piece(5, entry(6, term=2)),
        piece(6, entry(7, term=3), term=3, vote=1),
    ]
    counted = CountedSyncs(log)
    assert carry_out_all(log, works) == len(works)
    assert counted.count == 4
    assert in_term(log) == [(2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 3)]
    assert (log.term, log.vote, log.commit_index) == (3, 1, 4)


def test_a_conflicting_piece_is_not_joined_to_the_one_before_also_without_a_new_term() -> None:
    _, log = new_log()
    works = [
        piece(1, entry(2), entry(3)),
        piece(2, entry(3, term=2), commit=2),
        piece(3, entry(4, term=2)),
    ]
    counted = CountedSyncs(log)
    assert carry_out_all(log, works) == 3
    assert counted.count == 2
    assert in_term(log) == [(2, 1), (3, 2), (4, 2)]


def test_all_that_is_carried_out_survives_the_loss_of_power() -> None:
    for seed in range(20):
        disk, log = new_log(seed)
        carry_out(log, piece(1, entry(2), entry(3)))
        carry_out(log, piece(2, term=3, vote=2))
        disk.lose_power()
        found = Log.open(disk, FOLDER, SMALL)
        assert in_term(found) == [(2, 1), (3, 1)]
        assert (found.term, found.vote) == (3, 2)


def test_no_replaced_entry_counts_as_committed_wherever_the_process_dies() -> None:
    for moment in itertools.count():
        disk, log = new_log(moment)
        carry_out(log, piece(1, entry(2), entry(3), commit=2))
        disk.faults.failure = Killed
        disk.faults.fail_operation = disk.operations + moment
        replacement = piece(2, entry(3, term=2), entry(4, term=2), term=2, commit=4)
        try:
            carry_out(log, replacement)
        except Killed:
            disk.lose_power()
            found = Log.open(disk, FOLDER, SMALL)
            committed = [place for place in in_term(found) if place[0] <= found.commit_index]
            assert (3, 1) not in committed
        else:
            break
    assert moment > 3, "it died nowhere"


def test_joined_appends_are_bounded() -> None:
    disk = SimulatedDisk(Random(0))
    log = found_log(disk, FOLDER, LOG_ID, (1, 2, 3))
    size = APPEND_BYTES_MAX // 3
    counted = CountedSyncs(log)
    works = [piece(n, entry(n + 1, size=size)) for n in range(1, 6)]
    assert carry_out_all(log, works) == 5
    assert counted.count == 3


def test_a_full_disk_tells_how_much_was_done_and_the_rest_may_be_tried_again() -> None:
    disk, log = new_log()
    works = [piece(n, entry(n + 1, size=900), commit=n - 1) for n in range(1, 6)]
    used = sum(len(disk.content(path)) for path in disk.paths())
    disk.faults.capacity_bytes = used + 4000
    done = carry_out_all(log, works)
    assert 0 < done < 5
    assert carry_out_all(log, works[done:]) == 0
    assert [index for index, _ in in_term(log)] == list(range(2, 2 + done))
    disk.faults.capacity_bytes = None
    assert carry_out_all(log, works[done:]) == 5 - done
    assert [index for index, _ in in_term(log)] == list(range(2, 7))
    disk.lose_power()
    assert len(in_term(Log.open(disk, FOLDER, SMALL))) == 5


def test_any_other_failure_is_raised() -> None:
    disk, log = new_log()
    carry_out(log, piece(1, entry(2)))
    disk.faults.fail_operation = disk.operations + 1
    disk.faults.failure = StorageFailed
    with pytest.raises(StorageFailed):
        carry_out_all(log, [piece(2, entry(3)), piece(3, entry(4))])


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3), st.booleans()), max_size=12),
    st.lists(st.integers(1, 4), min_size=12, max_size=12),
)
def test_joined_pieces_leave_what_single_pieces_leave(plan, sizes: list[int]) -> None:
    """Each piece of the plan: how far behind the end it begins, how many entries, a new term."""
    (_, one), (_, other) = new_log(), new_log()
    works: list[Persist] = []
    end, term = 2, 1
    for number, (back, count, is_new_term) in enumerate(plan, 1):
        start = max(2, end + min(back, 0))
        is_conflict = start < end and count > 0
        term += is_new_term or is_conflict
        frames = [entry(start + n, term) for n in range(count)]
        works.append(piece(number, *frames, term=term * is_new_term))
        end = start + count if count else end
    for work in works:
        carry_out(one, work)
    left = list(works)
    for size in sizes:
        done = carry_out_all(other, left[:size])
        assert done == min(size, len(left))
        left = left[done:]
    assert not left
    assert in_term(one) == in_term(other)
    assert (one.term, one.edge) == (other.term, other.edge)


def test_a_commit_index_alone_is_no_disk_work_and_a_vote_is_saved_once() -> None:
    group = Group(3)
    leader = group.leader()
    works: list[Persist] = []
    for node in group.nodes.values():
        node.work = Recorded(works)
    for _ in range(5):
        group.produce(leader)
    group.tick(5)
    assert len(works) == 15, "one piece a batch and replica"
    assert all(work.frames and not work.term for work in works)
    assert all(node.log.commit_index >= 5 for node in group.nodes.values())


class Recorded(deque):
    """A queue of disk work that remembers what went through it."""

    def __init__(self, seen: list) -> None:
        super().__init__()
        self.seen = seen

    def append(self, work) -> None:
        self.seen.append(work)
        super().append(work)
