"""Make what later releases are tested against, from the tree as it is, once for each release.

    python -m tests.upgrades.release [--to FOLDER]

Builds the wheel, and fills a data directory with a broker that runs from that wheel. Both go to
`tests/upgrades/releases/`, named by the version, and are never made again.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import quivermq
from quivermq.testing import Cluster
from tests.upgrades import golden
from tests.upgrades.releases import FOLDER, release_of, unpacked_package

ROOT = Path(__file__).parents[2]
DATA_BYTES_MAX = 300_000


def build_wheel(to: Path) -> Path:
    to.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(to)],
        cwd=ROOT,
        check=True,
    )
    return to / f"quivermq-{quivermq.__version__}-py3-none-any.whl"


def build_data(wheel: Path, to: Path) -> Path:
    """A data directory that the release itself wrote, packed."""
    with tempfile.TemporaryDirectory(prefix="quiver-release-") as temporary:
        folder = Path(temporary) / "cluster"
        folder.mkdir()
        cluster = Cluster(1, data_dir=folder, settings=golden.SETTINGS)
        cluster.nodes[1].code = unpacked_package(wheel, Path(temporary) / "package")
        with cluster:
            golden.fill(cluster, folder)
        logs = golden.logs_of(folder)
        sealed = [name for name in logs if name.startswith("orders/0/") and ".seg" in name]
        assert len(sealed) > 2, logs
        assert len([name for name in logs if ".ckpt" in name and "orders/0/" in name]) > 2, logs
        archive = to / f"quivermq-{release_of(wheel)}-data.tar.xz"
        with tarfile.open(archive, "w:xz", preset=9) as files:
            files.add(folder / golden.EXPECTED, golden.EXPECTED, filter=_plain)
            files.add(folder / "node-1" / "data", "node-1/data", filter=_plain)
    size = archive.stat().st_size
    assert size < DATA_BYTES_MAX, f"{archive} has {size:,} bytes"
    return archive


def _plain(file: tarfile.TarInfo) -> tarfile.TarInfo:
    """Whoever made it, and when, is nobody's business."""
    file.uid = file.gid = file.mtime = 0
    file.uname = file.gname = ""
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=FOLDER)
    to = parser.parse_args().to
    wheel = build_wheel(to)
    for made in (wheel, build_data(wheel, to)):
        sys.stdout.write(f"{made}: {made.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
