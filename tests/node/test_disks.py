"""A disk that syncs later: no write waits for it, in whichever segment."""

import errno
import os
from pathlib import Path

import pytest

from quivermq.batches import Frame, encode_batch
from quivermq.errors import StorageFailed
from quivermq.log import Log, LogSettings, RealDisk
from quivermq.node.counters import Histogram
from quivermq.node.disks import DeferredFile, DeferredSyncDisk

SMALL = LogSettings(segment_bytes=4096, allocation_bytes_min=4096)


def syncs_of(histogram: Histogram) -> int:
    return sum(histogram.counts)


def append(log: Log, count: int) -> None:
    for _ in range(count):
        edge = log.edge
        frame: Frame = encode_batch([b"x" * 100]).stamped(
            term=1, index=edge.next_index, base_offset=edge.next_offset, timestamp_ms=1
        )
        log.append([frame])
        log.sync()


def test_a_segment_that_was_opened_is_not_synced_by_writes(tmp_path: Path) -> None:
    syncs = Histogram()
    log = Log.create(DeferredSyncDisk(RealDisk(tmp_path), syncs), "log/t/0", bytes(16))
    before = syncs_of(syncs)
    append(log, 5)
    assert syncs_of(syncs) == before


def test_a_segment_that_was_begun_is_synced_when_it_is_made_and_not_by_writes(
    tmp_path: Path,
) -> None:
    syncs = Histogram()
    log = Log.create(DeferredSyncDisk(RealDisk(tmp_path), syncs), "log/t/0", bytes(16), SMALL)
    append(log, 3)
    before = syncs_of(syncs)
    log.roll()
    made = syncs_of(syncs)
    assert made > before
    append(log, 5)
    assert syncs_of(syncs) == made


def test_what_was_written_is_synced_on_demand_once(tmp_path: Path) -> None:
    syncs = Histogram()
    disk = DeferredSyncDisk(RealDisk(tmp_path), syncs)
    log = Log.create(disk, "log/t/0", bytes(16), SMALL)
    append(log, 3)
    log.roll()
    append(log, 3)
    before = syncs_of(syncs)
    disk.sync_now()
    # The segment that was sealed, and the one behind it.
    assert syncs_of(syncs) == before + 2
    disk.sync_now()
    assert syncs_of(syncs) == before + 2


def test_a_sync_that_failed_later_fences_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "no disk")

    disk = DeferredSyncDisk(RealDisk(tmp_path), Histogram())
    log = Log.create(disk, "log/t/0", bytes(16))
    append(log, 3)
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StorageFailed, match="no disk"):
        disk.sync_now()
    monkeypatch.undo()
    with pytest.raises(StorageFailed, match="earlier sync failed"):
        append(log, 1)


def test_votes_and_checkpoints_never_wait(tmp_path: Path) -> None:
    syncs = Histogram()
    disk = DeferredSyncDisk(RealDisk(tmp_path), syncs)
    for number, name in enumerate(("state", "00000000000000000001.ckpt"), 1):
        file = disk.create(name)
        file.write(0, [b"x"])
        file.sync()
        assert syncs_of(syncs) == number


def test_a_sync_ends_while_others_go_on_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Votes and checkpoints wait behind it. What is written meanwhile is for the next time."""
    disk = DeferredSyncDisk(RealDisk(tmp_path), Histogram())
    logs = [Log.create(disk, f"log/t/{number}", bytes(16), SMALL) for number in range(3)]
    for log in logs:
        append(log, 1)
    synced = []
    sync = DeferredFile.sync_now

    def busy(file: DeferredFile) -> None:
        synced.append(file)
        assert len(synced) < 10, "it never ends"
        for log in logs:
            append(log, 1)
        sync(file)

    monkeypatch.setattr(DeferredFile, "sync_now", busy)
    disk.sync_now()
    assert len(set(synced)) == len(synced) == 3
    assert len(disk.unsynced()) == 3, "what came meanwhile would never be synced"


def test_a_sync_that_fails_keeps_no_other_file_from_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DeferredSyncDisk(RealDisk(tmp_path), Histogram())
    logs = [Log.create(disk, f"log/t/{number}", bytes(16), SMALL) for number in range(3)]
    for log in logs:
        append(log, 1)
    done = []

    def fail_first(descriptor: int) -> None:
        done.append(descriptor)
        if len(done) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail_first)
    with pytest.raises(StorageFailed):
        disk.sync_now()
    assert (len(done), disk.unsynced()) == (3, [])
