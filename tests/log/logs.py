"""Logs for tests: on a simulated disk, small enough that every byte of them can be tried."""

from collections.abc import Iterator
from random import Random

from quivermq.batches import Frame, Index
from quivermq.log import Log, LogSettings, Report, Verification
from quivermq.testing.simulated_disk import SimulatedDisk
from tests.log.entries import LOG_ID, entries

FOLDER = "log/orders/0"
SMALL = LogSettings(segment_bytes=2048, allocation_bytes_min=512, allocation_bytes_step=512)


def new_log(settings: LogSettings = SMALL, seed: int = 0) -> tuple[SimulatedDisk, Log]:
    """An empty log on a disk of its own."""
    disk = SimulatedDisk(Random(seed))
    return disk, Log.create(disk, FOLDER, LOG_ID, settings)


def fill(
    log: Log, groups: int, *, of: int = 2, body: bytes = b"x" * 60, time_ms: int = 1000
) -> list[Frame]:
    """Append and sync so many groups of entries; returns the entries."""
    written: list[Frame] = []
    for number in range(groups):
        group = entries(log.edge, of, body=body, at_ms=time_ms + number)
        log.append(group)
        log.sync(Index(log.edge.next_index - 1))
        written += group
    return written


def all_entries(log: Log) -> list[Frame]:
    return list(log.frames(log.first_index))


def reopened(disk: SimulatedDisk, settings: LogSettings = SMALL) -> Log:
    """The log as a new process finds it."""
    disk.kill()
    return Log.open(disk, FOLDER, settings)


def live_and_reopened(disk: SimulatedDisk, log: Log) -> Iterator[Log]:
    """The log as it is, and then, one after the other, as a new process finds it."""
    yield log
    yield reopened(disk)


def verified(disk: SimulatedDisk, settings: LogSettings = SMALL) -> Report:
    return Verification(disk, FOLDER, settings).run()


def segment_paths(disk: SimulatedDisk) -> list[str]:
    return [path for path in disk.paths() if path.endswith(".seg")]
