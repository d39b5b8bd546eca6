"""Measures all systems side by side, and prints goals and tables, or writes them into the pages.

    python -m benchmarks.compare [--quick] [--rounds 5] [--seconds 0.5] [--systems QuiverMQ,...]
                                 [--nodes 1,3] [--fsync no,yes] [--sizes 100,1000,10000]
                                 [--batches 1,10,100,1000,10000] [--works produce,consume,...]
    python -m benchmarks.compare --write                 # measure, and rewrite the pages
    python -m benchmarks.compare --read FILE [--write]   # no measuring: an earlier run

Servers of others are started here, on loopback; a system that is not installed is left out, and
named. Run it on a machine that does nothing else.
"""

import argparse
import datetime as dt
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.compare.figures import Run
from benchmarks.compare.pages import RESULTS_FILE, ROOT, goals_table, results_region, rewrite
from benchmarks.compare.rounds import KINDS, WORKS, Plan, run

QUICK = Plan(
    nodes=(1,), sizes=(100,), batches=(1, 10, 1_000, 10_000), rounds=1, seconds=0.1, laps=40,
    warm_up=0.1, groups=20,
)  # fmt: skip


PLANNED = (
    "systems", "nodes", "fsync", "sizes", "batches", "works", "rounds", "seconds", "laps",
)  # fmt: skip
"""Arguments that change a plan."""


def plan_of(options: argparse.Namespace) -> Plan:
    """What the arguments ask for; those that are left out are as in the plan."""
    plan = QUICK if options.quick else Plan()
    asked: dict[str, object] = {
        name: value for name in PLANNED if (value := getattr(options, name)) is not None
    }
    return replace(plan, **asked)  # type: ignore[arg-type]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


def durabilities(text: str) -> tuple[bool, ...]:
    return tuple(each == "yes" for each in chosen({"no", "yes"}, text, "no, yes"))


def names(text: str) -> tuple[str, ...]:
    return chosen(set(KINDS), text, ", ".join(KINDS))


def works(text: str) -> tuple[str, ...]:
    return chosen(set(WORKS), text, ", ".join(WORKS))


def chosen(known: set[str], text: str, described: str) -> tuple[str, ...]:
    """Some of those that are known."""
    found = tuple(each.strip() for each in text.split(","))
    if strangers := set(found) - known:
        raise argparse.ArgumentTypeError(f"{', '.join(strangers)}: write some of {described}")
    return found


def describe(plan: Plan, seconds: float, load: float) -> dict[str, str]:
    """Where and when it was measured, and how."""
    return {
        "date": f"{dt.datetime.now(dt.UTC):%-d %B %Y}",
        "commit": commit(),
        "machine": machine(),
        "how": (
            f"Rounds: {plan.rounds}, of which the medians; {plan.seconds:g} s a measurement, "
            f"{plan.laps} single messages; it took {seconds / 60:.0f} minutes; load average when "
            f"it began: {load:.1f}."
        ),
    }


def commit() -> str:
    """With a sign if the sources are not as committed."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True
        ).stdout.strip()

    is_changed = bool(git("status", "--porcelain", "--", "src", "benchmarks/compare/*.py"))
    return (git("rev-parse", "--short", "HEAD") or "unknown") + " with changes" * is_changed


def machine() -> str:
    """Its processors, memory and Python."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, {platform.system()} "
        f"{platform.release().partition('-')[0]}, Python {platform.python_version()}"
    )


def measured(plan: Plan) -> Run:
    load, began = os.getloadavg()[0], time.monotonic()
    found = run(plan)
    found.about = describe(plan, time.monotonic() - began, load)
    return found


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="benchmarks.compare", description=(__doc__ or "").splitlines()[0]
    )
    arguments.add_argument("--quick", action="store_true", help="everything once, in a minute")
    arguments.add_argument("--rounds", type=int)
    arguments.add_argument("--seconds", type=float, help="of one measurement")
    arguments.add_argument("--laps", type=int, help="single messages of a round")
    arguments.add_argument("--systems", type=names, help=", ".join(KINDS))
    arguments.add_argument("--nodes", type=numbers)
    arguments.add_argument("--fsync", type=durabilities, help="before acknowledging: no,yes")
    arguments.add_argument("--sizes", type=numbers, help="of messages, in bytes")
    arguments.add_argument("--batches", type=numbers)
    arguments.add_argument("--works", type=works, help=", ".join(WORKS))
    arguments.add_argument("--read", type=Path, help="the figures of an earlier run")
    arguments.add_argument("--save", type=Path, help="a file for the figures")
    arguments.add_argument("--write", action="store_true", help="rewrite RESULTS.md and README.md")
    return arguments


def main(argv: list[str] | None = None) -> None:
    options = parser().parse_args(argv)
    found = Run.load(options.read) if options.read else measured(plan_of(options))
    if options.save:
        found.save(options.save)
    if options.write:
        found.save(ROOT / RESULTS_FILE)
        # As it is read again: the file rounds.
        rewrite(Run.load(ROOT / RESULTS_FILE))
        print(goals_table(found))
    else:
        print(results_region(found))
    if not found.figures:
        sys.exit("nothing was measured")


if __name__ == "__main__":
    main()
