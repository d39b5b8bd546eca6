"""`quiver doctor`: checks the cluster and this machine, and says how to fix what is wrong."""

import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from quivermq.cli.cluster_checks import check_cluster
from quivermq.cli.options import DEFAULT_SERVERS, AsJson, Servers, timeout_option
from quivermq.cli.output import count, print_json, print_line, show_status, stdout_console
from quivermq.cluster_findings import CheckResult, Level
from quivermq.quantities import format_size

app = typer.Typer(add_completion=False)

_SYNCS: Final = 50
_SYNC_BYTES: Final = 4096
# A disk that is faster than this loses data: it answers before anything is stored.
_SYNC_SECONDS_MIN: Final = 10e-6
_SYNC_SECONDS_MAX: Final = 0.02
_FREE_SHARE_MIN: Final = 0.1
_FREE_BYTES_MIN: Final = 1 << 30
_FILES_MIN: Final = 4096
_STYLES: Final[dict[Level, str]] = {"ok": "green", "warn": "yellow", "bad": "bold red"}


@app.command()
def doctor(
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also check the disk of this data directory."),
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Annotated[float, timeout_option("3s")] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Check the cluster, and say how to fix what is wrong.

    Asks every broker of the cluster, not only those in --servers. The exit
    code is 1 if anything is bad; 0 if there are only warnings.
    """
    with show_status("asking the brokers", quiet=as_json):
        checked = [*check_cluster(servers, timeout), *_check_process()]
        if data_dir is not None:
            checked += _check_disk(data_dir)
    if as_json:
        print_json([asdict(result) for result in checked])
    else:
        for result in checked:
            _print(result)
        _print_summary(checked)
    if any(result.level == "bad" for result in checked):
        raise typer.Exit(1)


def _print(result: CheckResult) -> None:
    line = Text.assemble((f"{result.level:<5}", _STYLES[result.level]), result.text)
    stdout_console().print(line, soft_wrap=True)
    if result.advice:
        print_line(f"     → {result.advice}", "dim" if result.level == "ok" else "")


def _print_summary(checked: list[CheckResult]) -> None:
    bad = sum(result.level == "bad" for result in checked)
    warned = sum(result.level == "warn" for result in checked)
    if bad:
        print_line(f"{count(bad, 'problem')} to fix, {count(warned, 'warning')}", "bold red")
    elif warned:
        print_line(f"no problems, {count(warned, 'warning')}", "yellow")
    else:
        print_line("all is well", "green")


def _check_process() -> Iterator[CheckResult]:
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


def _check_disk(data_dir: Path) -> Iterator[CheckResult]:
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
    from quivermq.log import THIS_SYSTEM  # noqa: PLC0415 - other commands need no log

    block = os.urandom(_SYNC_BYTES)
    with tempfile.NamedTemporaryFile(dir=data_dir, prefix=".doctor-") as file:
        descriptor = file.fileno()
        THIS_SYSTEM.allocate(descriptor, 0, _SYNCS * _SYNC_BYTES)
        os.fsync(descriptor)
        for number in range(_SYNCS):
            os.pwrite(descriptor, block, number * _SYNC_BYTES)
            began = time.perf_counter()
            THIS_SYSTEM.sync(descriptor)
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
