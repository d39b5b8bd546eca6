"""The releases that the current code has to live with: their packages and what they stored.

    releases/quivermq-0.2.0-py3-none-any.whl     the package
    releases/quivermq-0.2.0-data.tar.xz          a data directory, and what is in it

Both are made once, by `python -m tests.upgrades.release` on the commit of the release.
"""

import tarfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parent / "releases"


def packages() -> list[Path]:
    """The wheels, the earliest release first."""
    return sorted(FOLDER.glob("*.whl"), key=lambda wheel: _numbers(release_of(wheel)))


def data_archives() -> list[Path]:
    return sorted(FOLDER.glob("*-data.tar.xz"), key=lambda file: _numbers(release_of(file)))


def release_of(file: Path) -> str:
    return file.name.split("-")[1]


def _numbers(release: str) -> list[int]:
    return [int(number) for number in release.split(".")]


def unpacked_package(wheel: Path, folder: Path) -> Path:
    """The package as a folder for `PYTHONPATH`: it is pure Python."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def unpacked_data(archive: Path, folder: Path) -> Path:
    """The folder of a `Cluster` of one broker."""
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder
