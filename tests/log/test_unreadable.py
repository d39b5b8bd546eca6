"""A disk that cannot read what it stored: each block of each file, and each single read.

What cannot be read is damage: reported, mended from peers, never cut and never served as something
else. What can be read is served.
"""

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from quivermq.batches import Frame, Index
from quivermq.errors import Corrupt, StorageFailed
from quivermq.log import Log, LogSettings
from quivermq.log.disk import Unreadable
from quivermq.testing.simulated_disk import BLOCK_BYTES, Faults, SimulatedDisk
from tests.log.entries import LOG_ID
from tests.log.logs import FOLDER, all_entries, fill, segment_paths

BLOCKS = LogSettings(
    segment_bytes=5 * BLOCK_BYTES, allocation_bytes_min=BLOCK_BYTES, open_segments_max=1
)


def filled() -> tuple[SimulatedDisk, Log, list[Frame]]:
    """Three segments of several blocks each, with a checkpoint beside the second."""
    disk = SimulatedDisk(Random(1))
    log = Log.create(disk, FOLDER, LOG_ID, BLOCKS)
    kept: list[Frame] = []
    while len(log.segment_starts) < 3:
        kept += fill(log, 1, of=3, body=b"e" * 700)
    kept += fill(log, 3, of=2, body=b"e" * 700)
    log.save_checkpoint(log.segment_starts[1], b"s" * BLOCK_BYTES)
    return disk, log, kept


def blocks() -> list[tuple[int, int]]:
    """Every block of every file that holds something, by the numbers of file and block."""
    disk, _, _ = filled()
    return [
        (number, block)
        for number, path in enumerate(disk.paths())
        for block in range(-(-len(disk.content(path)) // BLOCK_BYTES))
        if disk.content(path)[block * BLOCK_BYTES :][:BLOCK_BYTES].strip(b"\0")
    ]


def check(log: Log, kept: list[Frame]) -> list[Index]:
    """Read every entry on its own: it is itself, or known to be damaged. Returns the damaged."""
    lost = []
    for frame in kept:
        index = frame.header.index
        if index >= log.edge.next_index:
            assert any(damage.last_index is None for damage in log.damage), f"{index} was cut"
            lost.append(index)
            continue
        try:
            assert log.read(index, end=Index(index + 1)) == [frame]
        except Corrupt:
            assert any(damage.covers(index) for damage in log.damage)
            lost.append(index)
    return lost


def mend(log: Log, kept: list[Frame]) -> None:
    """What a replica does with entries of its peers."""
    for _ in range(9):
        if not log.damage:
            return
        path = log.damage[0].path
        given = {
            index
            for damage in log.damage
            if damage.path == path and damage.last_index is not None
            for index in range(damage.first_index, damage.last_index + 1)
        }
        try:
            log.repair([kept[index - 1] for index in sorted(given)])
        except Corrupt:
            # More was damaged than was known; now it is.
            continue
    raise AssertionError(f"it is never mended: {log.damage}")


def restarted(disk: SimulatedDisk, _: Log) -> Log:
    disk.kill()
    return Log.open(disk, FOLDER, BLOCKS)


@pytest.mark.parametrize("opened", [restarted, lambda _, log: log], ids=["restarted", "running"])
def test_whichever_block_is_lost_the_rest_is_served_and_the_block_is_mended(
    opened: Callable[[SimulatedDisk, Log], Log],
) -> None:
    ended, mended = 0, 0
    for number, block in blocks():
        disk, log, kept = filled()
        path = disk.paths()[number]
        where = f"block {block} of {path}"
        disk.lose_block(path, block)
        log = opened(disk, log)
        lost = check(log, kept)
        entries_per_block = 8
        assert len(lost) <= 2 * entries_per_block, where
        if any(damage.last_index is None for damage in log.damage):
            # The very end: whether anything was promised there, nobody knows.
            assert path == segment_paths(disk)[-1], where
            with pytest.raises(Corrupt):
                fill(log, 1)
            ended += 1
            continue
        mended += bool(log.damage)
        mend(log, kept)
        assert all_entries(log) == kept, where
        log = restarted(disk, log)
        kept += fill(log, 3)
        log = restarted(disk, log)
        assert all_entries(log) == kept, where
        assert log.damage == [], where
    assert mended
    assert ended <= 1


def test_a_block_of_the_state_is_read_from_the_other_copy_and_written_anew() -> None:
    for block in (0, 1):
        disk, log, kept = filled()
        log.save_vote(7, 3)
        disk.lose_block(f"{FOLDER}/state", block)
        log = restarted(disk, log)
        assert (log.term, log.vote) == (7, 3)
        disk.lose_block(f"{FOLDER}/state", 1 - block)
        log = restarted(disk, log)
        assert (log.term, log.vote, all_entries(log)) == (7, 3, kept)


def test_an_end_that_cannot_be_read_is_not_taken_for_a_torn_write() -> None:
    """Nothing is cut, though no mark proves that it was durable: it may have been."""
    disk, log, kept = filled()
    path = segment_paths(disk)[-1]
    end = log._active.end
    content = disk.content(path)
    disk.replace_content(path, content[: end - 120] + bytes(len(content) - end + 120))
    disk.lose_block(path, (end - 130) // BLOCK_BYTES)
    log = restarted(disk, log)
    assert log.damage[-1].last_index is None
    assert check(log, kept)
    assert disk.content(path)[: end - 120] == content[: end - 120]


def test_an_end_that_cannot_be_read_is_unknown_whatever_stands_behind_it() -> None:
    """Neither a mark nor the record of the last sync tells what was there."""
    disk, log, kept = filled()
    path = segment_paths(disk)[-1]
    end = log._active.end
    content = disk.content(path)
    garbage = b"\x55" * (len(content) - end + 120)
    disk.replace_content(path, content[: end - 120] + garbage)
    for synced in [each for each in disk.paths() if "synced" in each]:
        disk.replace_content(synced, b"")
    disk.lose_block(path, (end - 130) // BLOCK_BYTES)
    log = restarted(disk, log)
    assert log.damage[-1].last_index is None
    assert check(log, kept)
    assert disk.content(path)[: end - 120] == content[: end - 120]


def test_a_file_that_cannot_be_opened_is_damaged_as_a_whole() -> None:
    disk, log, kept = filled()
    first = log.segment_starts[0]
    log.read(log.segment_starts[1])
    disk.faults.fail_operation, disk.faults.failure = disk.operations, _unreadable
    with pytest.raises(Corrupt, match="cannot open"):
        log.read(first)
    disk.faults = Faults()
    (damage,) = log.damage
    assert (damage.first_index, damage.last_index) == (first, log.segment_starts[1] - 1)
    mend(log, kept)
    assert all_entries(log) == kept


def _unreadable(text: str) -> BaseException:
    return Unreadable(text)


def test_whichever_read_fails_nothing_else_is_served_and_nothing_is_lost() -> None:
    """The k-th read of an opening and of a reading of all entries fails, for every k."""
    disk, log, kept = filled()
    before = disk.reads
    check(restarted(disk, log), kept)
    total = disk.reads - before
    assert total > 50
    for k in range(total):
        disk, log, kept = filled()
        disk.faults.fail_read = disk.reads + k
        # Otherwise it does not start: nobody is served.
        with suppress(Corrupt, StorageFailed):
            check(restarted(disk, log), kept)
        disk.faults = Faults()
        log = restarted(disk, log)
        assert (all_entries(log), log.damage) == (kept, []), f"read {k}"


def test_a_checkpoint_that_cannot_be_read_is_damaged_and_the_log_keeps_what_it_replaces() -> None:
    disk, log, kept = filled()
    start = log.segment_starts[1]
    (path,) = [path for path in disk.paths() if path.endswith(".ckpt")]
    disk.lose_block(path, 1)
    with pytest.raises(Corrupt, match="Input/output error"):
        log.load_checkpoint(start)
    with pytest.raises(Corrupt):
        log.drop_before(start)
    assert all_entries(log) == kept


def test_a_checkpoint_whose_content_changed_is_not_given() -> None:
    disk, log, _ = filled()
    (path,) = [path for path in disk.paths() if path.endswith(".ckpt")]
    disk.flip_bit(path, 8 * 2000)
    with pytest.raises(Corrupt, match="content fails its checksum"):
        log.load_checkpoint(log.segment_starts[1])
