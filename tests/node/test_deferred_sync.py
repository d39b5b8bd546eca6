"""Disks that sync later: segments only, and all of them when it is time."""

from pathlib import Path

from quivermq.node.deferred_sync import DeferredSyncDisk, UnsyncedDisk
from quivermq.node.figures import Histogram


def counted(tmp_path: Path) -> tuple[DeferredSyncDisk, Histogram]:
    syncs = Histogram()
    return DeferredSyncDisk(tmp_path, syncs), syncs


def test_segments_are_synced_when_it_is_time_and_each_once(tmp_path: Path) -> None:
    disk, syncs = counted(tmp_path)
    files = [disk.create(f"{number}.seg") for number in range(3)]
    for file in files * 5:
        file.write(0, [b"x"])
        file.sync()
    assert sum(syncs.counts) == 0
    disk.sync_now()
    assert sum(syncs.counts) == 3
    disk.sync_now()
    assert sum(syncs.counts) == 3


def test_votes_and_checkpoints_never_wait(tmp_path: Path) -> None:
    disk, syncs = counted(tmp_path)
    for name in ("state", "00000000000000000001.ckpt"):
        file = disk.create(name)
        file.write(0, [b"x"])
        file.sync()
    assert sum(syncs.counts) == 2


def test_what_is_forgotten_is_left_to_the_system(tmp_path: Path) -> None:
    disk, syncs = counted(tmp_path)
    file = disk.create("1.seg")
    file.sync()
    disk.forget()
    disk.sync_now()
    assert sum(syncs.counts) == 0


def test_a_file_reads_back_what_was_written_before_any_sync(tmp_path: Path) -> None:
    for disk in (counted(tmp_path)[0], UnsyncedDisk(tmp_path)):
        file = disk.create("1.seg")
        file.allocate(100)
        file.write(10, [b"abc", b"def"])
        file.sync()
        assert file.read(10, 6) == b"abcdef"
        assert disk.open("1.seg").size() == 100
