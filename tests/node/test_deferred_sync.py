"""A disk that syncs later: no write waits for it, in whichever segment."""

import errno
import os
from pathlib import Path

import pytest

from quivermq.batches import Frame, encode_batch
from quivermq.errors import StorageFailed
from quivermq.log import Log, LogSettings
from quivermq.node.deferred_sync import DeferredSyncDisk
from quivermq.node.figures import Histogram

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
    log = Log.create(DeferredSyncDisk(tmp_path, syncs), "log/t/0", bytes(16))
    before = syncs_of(syncs)
    append(log, 5)
    assert syncs_of(syncs) == before


def test_a_segment_that_was_begun_is_synced_when_it_is_made_and_not_by_writes(
    tmp_path: Path,
) -> None:
    syncs = Histogram()
    log = Log.create(DeferredSyncDisk(tmp_path, syncs), "log/t/0", bytes(16), SMALL)
    append(log, 3)
    before = syncs_of(syncs)
    log.roll()
    made = syncs_of(syncs)
    assert made > before
    append(log, 5)
    assert syncs_of(syncs) == made


def test_what_was_written_is_synced_on_demand_once(tmp_path: Path) -> None:
    syncs = Histogram()
    disk = DeferredSyncDisk(tmp_path, syncs)
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

    disk = DeferredSyncDisk(tmp_path, Histogram())
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
    disk = DeferredSyncDisk(tmp_path, syncs)
    for number, name in enumerate(("state", "00000000000000000001.ckpt"), 1):
        file = disk.create(name)
        file.write(0, [b"x"])
        file.sync()
        assert syncs_of(syncs) == number
