"""The command line of soaks."""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final, cast

from rich.console import Console

from quivermq.testing.cluster import Cluster, HostLinks, Namespaces, Wiring, why_not
from quivermq.testing.cluster.faults import Links
from quivermq.testing.soak.record import SoakRecord
from quivermq.testing.soak.report import tell_report
from quivermq.testing.soak.spark_load import SparkLoad
from quivermq.testing.soak.torture import Soak

SETTINGS: Final = {"tick_ms": 50, "segment_bytes": 1 << 20}
ROUND_S: Final = 60.0
_CLIENTS: Final = "clients"
_JOINING_MAX: Final = 24
RECORD: Final = "record.json"
BROKERS: Final = "brokers"
PROXIES: Final = "proxies"
CONSOLE = Console(soft_wrap=True, highlight=False, markup=False)


@contextmanager
def running_cluster(
    record: SoakRecord, folder: Path, release: Path | None
) -> Iterator[tuple[Cluster, Links]]:
    """A cluster whose links can be cut: on hosts of their own if there can be any."""
    nodes, disks = record.nodes, record.disks
    if record.links == PROXIES:
        with _of_release(
            Cluster(nodes, folder, SETTINGS, proxied=True, disks=disks), release
        ) as cluster:
            yield cluster, cast("Wiring", cluster.wiring)
        return
    names = [f"node-{number}" for number in range(1, nodes + _JOINING_MAX + 1)]
    hosts = Namespaces([*names, _CLIENTS])
    with (
        hosts,
        hosts.entered(_CLIENTS),
        _of_release(Cluster(nodes, folder, SETTINGS, hosts=hosts, disks=disks), release) as cluster,
    ):
        yield cluster, HostLinks(hosts, cluster.nodes, _CLIENTS)


def _of_release(cluster: Cluster, release: Path | None) -> Cluster:
    """Have the brokers start with the package of another release."""
    for node in cluster.nodes.values():
        node.code = release
    return cluster


def soak(
    seconds: float,
    record: SoakRecord,
    folder: Path,
    round_s: float = ROUND_S,
    *,
    release: Path | None = None,
    with_spark: bool = False,
) -> None:
    """Run rounds until the time is over; raises what a judge finds, and saves the record. With
    another release, whose package is in a folder, the first round upgrades to this one."""
    began = time.monotonic()

    def tell(what: str) -> None:
        CONSOLE.print(f"{time.monotonic() - began:8.1f} s  {what}")

    try:
        with running_cluster(record, folder / BROKERS, release) as (cluster, links):
            run = Soak(cluster, links, record, folder, tell)
            run.faults.release = release
            if with_spark:
                run.spark = SparkLoad(cluster, folder / "spark")
            run.run(seconds, round_s)
    except BaseException as error:
        record.failure = f"{type(error).__name__}: {error}"
        raise
    finally:
        record.save(folder / RECORD)


def _unpack(wheel: Path, folder: Path) -> Path:
    """The package as a folder for `PYTHONPATH`: it is pure Python."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder.absolute()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return found.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m quivermq.testing.soak",
        description="Strike real brokers with a random mix of faults, and judge what users saw.",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long")
    parser.add_argument("--nodes", type=int, default=0, help="brokers; 3 or 5 by default")
    parser.add_argument("--seed", type=int, default=None, help="of the faults; random by default")
    parser.add_argument("--proxies", action="store_true", help="no network namespaces")
    parser.add_argument("--disks", default="fuse", choices=["fuse", "shim", ""], help="that fail")
    parser.add_argument("--release", type=Path, help="a wheel; the first round upgrades from it")
    parser.add_argument("--spark", action="store_true", help="with a Spark stream and an archive")
    parser.add_argument("--folder", type=Path, help="for the record, and what a judge refused")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    nodes = options.nodes or Random(seed).choice((3, 3, 5))
    reason = "" if options.proxies else why_not()
    if reason:
        CONSOLE.print(f"links are proxies: {reason}")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="quiver-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    links = PROXIES if options.proxies or reason else "namespaces"
    record = SoakRecord(nodes, seed, links, options.disks, _commit())
    CONSOLE.print(f"seed {seed}, {nodes} brokers, {links}; record in {folder}")
    release = _unpack(options.release, folder / "release") if options.release else None
    soak(options.minutes * 60, record, folder, release=release, with_spark=options.spark)
    shutil.rmtree(folder / BROKERS)
    CONSOLE.print(tell_report(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
