"""Mutants as data: reading them, planting one in a copy of the sources, running what must fail."""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
GIVEN = ROOT.parent / "shared" / "etcd-raft-testdata"
FAILED = 1  # what pytest, the scenario runner and the cluster exit with when a check fails


@dataclass(frozen=True)
class Mutant:
    """One planted bug: where, what, and who must notice."""

    room: str
    name: str
    file: str
    find: str
    replace: str
    caught_by: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The file, relative to the folder of sources."""
        return Path("quivermq") / self.room / self.file

    def occurrences(self) -> int:
        return (SRC / self.path).read_text().count(self.find)

    def commands(self) -> list[list[str]]:
        return [command_of(self.room, catcher) for catcher in self.caught_by]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    word: str
    detail: str = ""

    @property
    def is_caught(self) -> bool:
        return self.word == "caught"


def load() -> list[Mutant]:
    """Every mutant, room by room; a room is a file of this folder."""
    return [
        Mutant(path.stem, **{**entry, "caught_by": tuple(entry["caught_by"])})
        for path in sorted(Path(__file__).parent.glob("*.toml"))
        for entry in tomllib.loads(path.read_text())["mutant"]
    ]


def command_of(room: str, catcher: str) -> list[str]:
    """The command line of one catcher."""
    kind, _, rest = catcher.partition(":")
    if kind == "brokers":
        return ["-m", "quivermq.testing", "--whole", *seeds_of(rest)]
    if kind == "storm":
        return ["-m", "tests.log.storm", "--seeds", rest]
    if kind == "cluster":
        return ["-m", f"tests.{room}.cluster", "--seeds", rest]
    if kind == "scenario":
        own = rest.startswith("own/")
        folder = ROOT / "tests" / room / "scenarios" if own else GIVEN
        return ["-m", f"tests.{room}.scenarios", str(folder / rest.removeprefix("own/"))]
    return ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{room}/{catcher}"]


def seeds_of(text: str) -> list[str]:
    """The options for the first so many seeds, or for those from one to another, as in `4-7`."""
    first, dash, last = text.partition("-")
    if not dash:
        return ["--seeds", text]
    return ["--seeds", str(int(last) - int(first) + 1), "--first", first]


def verdict_of(mutant: Mutant) -> Verdict:
    """Plant the mutant and run all that must fail with it."""
    count = mutant.occurrences()
    if count != 1:
        return Verdict("rotten", f"its text occurs {count} times")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SRC, copy)
        plant(mutant, copy)
        for catcher, command in zip(mutant.caught_by, mutant.commands(), strict=True):
            finished = run(command, copy)
            # A run of seeds that could not even begin would exit alike, and show nothing.
            is_run_of_seeds = catcher.startswith(("brokers:", "storm:"))
            failed_itself = "replay: " in finished.stdout or not is_run_of_seeds
            if finished.returncode != FAILED or not failed_itself:
                last = (finished.stdout + finished.stderr).strip().split("\n")[-1]
                return Verdict("SURVIVED", f"{catcher} exits {finished.returncode}: {last}")
    return Verdict("caught", f"by {len(mutant.caught_by)}")


def plant(mutant: Mutant, sources: Path) -> None:
    """Put a bug into a copy of the sources. The bytecode of the other modules is of use: without
    it each process of a test would compile the whole package."""
    target = sources / mutant.path
    target.write_text(target.read_text().replace(mutant.find, mutant.replace))
    Path(cache_from_source(str(target))).unlink(missing_ok=True)


def run(command: list[str], sources: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with `sources` in front of the installed package."""
    environment = os.environ | {"PYTHONPATH": str(sources)}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
