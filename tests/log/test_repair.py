"""Putting back what a peer gave: the same segment as before, or no change at all."""

import pytest

from quivermq.batches import Index
from quivermq.errors import BrokenInvariant, Corrupt, StorageFull
from quivermq.log import Log
from quivermq.testing.simulated_disk import Faults, Killed
from tests.log.entries import entry
from tests.log.logs import (
    FOLDER,
    SMALL,
    all_entries,
    fill,
    new_log,
    reopened,
    segment_paths,
    verified,
)


def damaged_log(which: int, how: str):
    """A log with one damaged segment, and the entries that it lost."""
    disk, log = new_log()
    kept = fill(log, 30)
    path = segment_paths(disk)[which]
    if how == "missing":
        disk.lose_file(path)
    else:
        first = log.segment_starts[which]
        segment, _ = log._segment_holding(first)
        disk.flip_bit(path, 8 * (segment.index.positions[1] + 10))
    log = reopened(disk)
    if not log.damage:
        with pytest.raises(Corrupt):
            all_entries(log)
    lost = [frame for frame in kept if any(d.covers(frame.header.index) for d in log.damage)]
    return disk, log, kept, lost


CASES = [(0, "missing"), (2, "missing"), (0, "flipped"), (2, "flipped"), (-1, "flipped")]


@pytest.mark.parametrize(("which", "how"), CASES)
def test_a_repaired_log_is_as_if_nothing_had_happened(which: int, how: str) -> None:
    disk, log, kept, lost = damaged_log(which, how)
    log.repair(lost)
    assert log.damage == []
    assert all_entries(log) == kept
    more = fill(log, 5)
    log = reopened(disk)
    assert (all_entries(log), log.damage, log.notes) == (kept + more, [], [])
    assert verified(disk).findings == []


@pytest.mark.parametrize("which", [0, 2])
def test_a_repair_that_meets_further_damage_tells_of_it_so_that_the_next_one_succeeds(
    which: int,
) -> None:
    disk, log, kept, lost = damaged_log(which, "flipped")
    segment, _ = log._segment_holding(log.segment_starts[which])
    disk.flip_bit(segment_paths(disk)[which], 8 * (segment.index.positions[2] + 10))
    with pytest.raises(Corrupt):
        log.repair(lost)
    assert len(log.damage) == 2
    log.repair([f for f in kept if any(d.covers(f.header.index) for d in log.damage)])
    assert log.damage == []
    assert all_entries(log) == kept


@pytest.mark.parametrize(("which", "how"), CASES)
def test_a_crash_at_any_step_of_a_repair_leaves_the_damage_or_mends_it(
    which: int, how: str
) -> None:
    for stop in range(40):
        disk, log, kept, lost = damaged_log(which, how)
        disk.faults.fail_operation, disk.faults.failure = disk.operations + stop, Killed
        try:
            log.repair(lost)
        except Killed:
            pass
        else:
            return
        disk.faults = Faults()
        disk.lose_power()
        log = Log.open(disk, FOLDER, SMALL)
        good = [f for f in kept if not any(d.covers(f.header.index) for d in log.damage)]
        for frame in good:
            try:
                assert log.read(frame.header.index, bytes_max=1) == [frame]
            except Corrupt:
                assert frame in lost
    pytest.fail("the repair took more than 40 operations")


@pytest.mark.parametrize(("which", "how"), CASES)
def test_a_full_disk_refuses_a_repair_that_works_again_with_space(which: int, how: str) -> None:
    disk, log, kept, lost = damaged_log(which, how)
    disk.faults.capacity_bytes = sum(len(disk.content(path)) for path in disk.paths()) + 200
    with pytest.raises(StorageFull):
        log.repair(lost)
    disk.faults = Faults()
    log.repair(lost)
    assert all_entries(log) == kept
    assert reopened(disk).commit_index == log.commit_index


def test_entries_that_were_never_here_are_refused() -> None:
    _, log, _, lost = damaged_log(2, "flipped")
    (original,) = lost
    header = original.header
    forged = entry(
        log.edge_before(header.index), body=b"z" * len(original.body), at_ms=header.timestamp_ms
    )
    assert forged.header.index == header.index
    with pytest.raises(Corrupt, match="another one stood here"):
        log.repair([forged])
    assert log.damage
    log.repair(lost)
    assert log.damage == []


def test_missing_neighbours_are_repaired_one_by_one() -> None:
    disk, log = new_log()
    kept = fill(log, 30)
    starts, paths = log.segment_starts, segment_paths(disk)
    for start in starts[1:]:
        log.save_checkpoint(start, b"state")
    for path in paths[:4]:
        disk.lose_file(path)
    log = reopened(disk)
    assert [damage.path for damage in log.damage] == paths[:4]
    for _ in range(4):
        log.repair([f for f in kept if log.damage[0].covers(f.header.index)])
    assert (all_entries(log), log.segment_starts) == (kept, starts)
    assert verified(disk).findings == []


def test_part_of_what_is_missing_is_not_enough() -> None:
    _, log, _, lost = damaged_log(2, "missing")
    with pytest.raises(Corrupt, match="was not given"):
        log.repair(lost[:-1])
    assert log.damage


def test_a_log_that_is_not_damaged_has_nothing_to_repair() -> None:
    _, log = new_log()
    kept = fill(log, 3)
    with pytest.raises(BrokenInvariant, match="nothing to repair"):
        log.repair(kept)
    with pytest.raises(BrokenInvariant):
        log.repair([])
    assert log.read(Index(1), bytes_max=1) == kept[:1]
