"""Checks of this machine for `quiver doctor`: disk and limits."""

import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from quivermq.cli.cluster_checks import CheckResult
from quivermq.cli.quantities import format_size

_SYNCS: Final = 50
_SYNC_BYTES: Final = 4096
# A disk that is faster than this loses data: it answers before anything is stored.
_SYNC_SECONDS_MIN: Final = 10e-6
_SYNC_SECONDS_MAX: Final = 0.02
_FREE_SHARE_MIN: Final = 0.1
_FREE_BYTES_MIN: Final = 1 << 30
_FILES_MIN: Final = 4096


def check_process() -> Iterator[CheckResult]:
    """Check the limits that a broker started from here would have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _FILES_MIN:
        yield CheckResult(
            "warn",
            "files",
            f"a process may open only {hard:,} files here",
            f"a broker keeps a few open per partition: raise it by ulimit -Hn {16 * _FILES_MIN}",
        )
    else:
        shown = "any number of" if hard == resource.RLIM_INFINITY else f"{hard:,}"
        yield CheckResult("ok", "files", f"a process may open {shown} files here")


def check_disk(data_dir: Path) -> Iterator[CheckResult]:
    """Check free space, and the time that an fsync takes."""
    if not data_dir.is_dir():
        yield CheckResult(
            "bad", "disk", f"{data_dir} is not a folder", "name the broker's data directory"
        )
        return
    usage = shutil.disk_usage(data_dir)
    free = f"{format_size(usage.free)} of {format_size(usage.total)} are free in {data_dir}"
    if usage.free < min(_FREE_BYTES_MIN, usage.total * _FREE_SHARE_MIN):
        yield CheckResult(
            "bad", "space", free, "make space, or keep less: quiver topic alter TOPIC --max-bytes"
        )
    elif usage.free < usage.total * _FREE_SHARE_MIN:
        yield CheckResult("warn", "space", free, "keep less: quiver topic alter TOPIC --max-bytes")
    else:
        yield CheckResult("ok", "space", free)
    try:
        times = sorted(_measure_syncs(data_dir))
    except OSError as error:
        yield CheckResult(
            "bad", "fsync", f"{data_dir} cannot be written: {error}", "check its owner"
        )
        return
    yield _check_sync(statistics.median(times), times[-1])


def _measure_syncs(data_dir: Path) -> Iterator[float]:
    """Time writes as a log makes them: appended to allocated space, then synced."""
    block = os.urandom(_SYNC_BYTES)
    with tempfile.NamedTemporaryFile(dir=data_dir, prefix=".doctor-") as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, _SYNCS * _SYNC_BYTES)
        os.fsync(descriptor)
        for number in range(_SYNCS):
            os.pwrite(descriptor, block, number * _SYNC_BYTES)
            began = time.perf_counter()
            os.fdatasync(descriptor)
            yield time.perf_counter() - began


def _check_sync(median: float, longest: float) -> CheckResult:
    text = f"an fsync takes {median * 1e3:.2f} ms, the longest {longest * 1e3:.2f} ms of {_SYNCS}"
    if median < _SYNC_SECONDS_MIN:
        return CheckResult(
            "warn",
            "fsync",
            text,
            "too fast for a disk: it is memory, or a cache that a power cut would empty",
        )
    if median > _SYNC_SECONDS_MAX:
        return CheckResult(
            "warn", "fsync", text, "every acknowledged write waits for an fsync: use a faster disk"
        )
    return CheckResult("ok", "fsync", text)
