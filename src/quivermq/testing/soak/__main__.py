"""The command line of soaks."""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final, cast

from rich.console import Console

from quivermq.testing.cluster import Cluster, HostLinks, Namespaces, Wiring, why_not
from quivermq.testing.cluster.faults import Links
from quivermq.testing.soak.report import tell_report
from quivermq.testing.soak.torture import Record, Soak

SETTINGS: Final = {"tick_ms": 50, "segment_bytes": 1 << 20}
ROUND_S: Final = 60.0
_CLIENTS: Final = "clients"
_JOINING_MAX: Final = 24
RECORD: Final = "record.json"
CONSOLE = Console(soft_wrap=True, highlight=False, markup=False)


@contextmanager
def running_cluster(nodes: int, disks: str, *, proxied: bool) -> Iterator[tuple[Cluster, Links]]:
    """A cluster whose links can be cut: on hosts of their own if there can be any."""
    if proxied:
        with Cluster(nodes, settings=SETTINGS, proxied=True, disks=disks) as cluster:
            yield cluster, cast("Wiring", cluster.wiring)
        return
    names = [f"node-{number}" for number in range(1, nodes + _JOINING_MAX + 1)]
    hosts = Namespaces([*names, _CLIENTS])
    with (
        hosts,
        hosts.entered(_CLIENTS),
        Cluster(nodes, settings=SETTINGS, hosts=hosts, disks=disks) as cluster,
    ):
        yield cluster, HostLinks(hosts, cluster.nodes, _CLIENTS)


def soak(
    seconds: float,
    record: Record,
    folder: Path,
    round_s: float = ROUND_S,
) -> None:
    """Run rounds until the time is over; raises what a judge finds, and saves the record."""
    began = time.monotonic()

    def tell(what: str) -> None:
        CONSOLE.print(f"{time.monotonic() - began:8.1f} s  {what}")

    try:
        with running_cluster(
            record.nodes, record.disks, proxied=record.links == "proxies"
        ) as (cluster, links):  # fmt: skip
            Soak(cluster, links, record, folder, tell).run(seconds, round_s)
    except BaseException as error:
        record.failure = f"{type(error).__name__}: {error}"
        raise
    finally:
        record.save(folder / RECORD)


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
    parser.add_argument("--folder", type=Path, help="for the record, and what a judge refused")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    nodes = options.nodes or Random(seed).choice((3, 3, 5))
    reason = "" if options.proxies else why_not()
    if reason:
        CONSOLE.print(f"links are proxies: {reason}")
    folder = options.folder or Path(tempfile.mkdtemp(prefix="quiver-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    links = "proxies" if options.proxies or reason else "namespaces"
    record = Record(nodes, seed, links, options.disks, _commit())
    CONSOLE.print(f"seed {seed}, {nodes} brokers, {links}; record in {folder}")
    soak(options.minutes * 60, record, folder)
    CONSOLE.print(tell_report(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
