"""Run seeds of the simulation.

python -m quivermq.testing --seeds 1000     over all cores, with a progress bar
python -m quivermq.testing --seed 17        replays one seed, byte for byte

The first seed that fails ends it. It is run again and again with fewer faults and users, and the
smallest run that still fails is told; `--whole` leaves that out. With `--all` all seeds are run,
and those that fail are told as they are; Ctrl-C ends it, and sums up what was run.
"""

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context

from rich.console import Console
from rich.progress import Progress

from quivermq.testing.simulation import (
    Outcome,
    run_last_seed,
    run_seed,
    shrink,
    speaks_http,
)

MS_PER_HOUR = 3_600_000
CONSOLE = Console(soft_wrap=True, highlight=False, markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m quivermq.testing", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--jobs", type=int, default=None, help="processes; as many as cores")
    parser.add_argument("--whole", action="store_true", help="do not shrink a seed that fails")
    parser.add_argument("--all", action="store_true", help="go on after a seed that fails")
    parser.add_argument("--log", action="store_true", help="show the logs of all brokers")
    options = parser.parse_args(arguments)
    if options.log:
        logging.basicConfig(level=logging.INFO)
    else:
        logging.disable()
    if options.seed is not None:
        return replay(options.seed, is_whole=options.whole)
    seeds = range(options.first, options.first + options.seeds)
    if options.all:
        return run_all(seeds, options.jobs)
    return run_many(seeds, options.jobs, is_whole=options.whole)


def replay(seed: int, *, is_whole: bool) -> int:
    """One seed with its story; the digest tells whether two replays were the same run."""
    outcome = run_seed(seed)
    if outcome.failure:
        tell_failure(outcome, is_whole=is_whole)
    else:
        print_line(f"seed {seed} passed")
    return print_run(outcome)


def tell_failure(outcome: Outcome, *, is_whole: bool) -> None:
    """Tell the story of a failure, of the smallest run that has it."""
    print_line(f"seed {outcome.seed} failed: {outcome.failure}")
    print_line(f"replay: python -m quivermq.testing --seed {outcome.seed}")
    if not is_whole:
        smallest, left_out = shrink(outcome)
        faults = ", ".join(sorted(left_out.faults)) or "no fault"
        print_line(
            f"\nit also fails without {faults}, and without {len(left_out.users)} of "
            f"{outcome.users} users: {smallest.failure}"
        )


def run_many(seeds: range, jobs: int | None, *, is_whole: bool) -> int:
    """Run seeds over all cores with a progress bar, and sum up; stops at the first that fails."""
    started = time.monotonic()
    outcomes: list[Outcome] = []
    found = outcomes_of(seeds, jobs)
    for outcome in found:
        outcomes.append(outcome)
        if outcome.failure:
            found.close()
            tell_failure(outcome, is_whole=is_whole)
            return 1
    print_sum(outcomes, time.monotonic() - started)
    return 0


def run_all(seeds: range, jobs: int | None) -> int:
    """The same, but go on after seeds that fail."""
    started = time.monotonic()
    passed: list[Outcome] = []
    failed: list[Outcome] = []
    # A run of hours that is stopped has shown something all the same.
    with suppress(KeyboardInterrupt):
        for outcome in outcomes_of(seeds, jobs):
            (failed if outcome.failure else passed).append(outcome)
            if outcome.failure:
                tell_failure(outcome, is_whole=True)
    print_sum(passed, time.monotonic() - started)
    if failed:
        print_line(f"{len(failed)} failed: {', '.join(str(outcome.seed) for outcome in failed)}")
    return 1 if failed else 0


def outcomes_of(seeds: range, jobs: int | None) -> Generator[Outcome, None, None]:
    """The outcomes of seeds in their order, each from a process of its own. Closing it ends them
    all."""
    if any(map(speaks_http, seeds)):
        # Once, and not in each process: it takes longer than a seed.
        import_module("quivermq.transports.http")
    pool = get_context("fork").Pool(jobs, maxtasksperchild=1)
    with pool, Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for outcome in pool.imap(run_last_seed, seeds):
            progress.advance(task)
            yield outcome


def print_sum(outcomes: Sequence[Outcome], seconds: float) -> None:
    """Print how much was simulated by runs that passed."""
    hours = sum(outcome.virtual_ms for outcome in outcomes) / MS_PER_HOUR
    print_line(
        f"{len(outcomes)} seeds passed: {hours:.1f} simulated hours, "
        f"{hours / (seconds / 60):.1f} per real minute"
    )
    print_counts(outcomes)


def print_run(outcome: Outcome) -> int:
    """Print the digest and the counts of one run; returns the exit status."""
    print_line(
        f"{outcome.virtual_ms / 1000:.1f} virtual seconds, {outcome.events:,} events, "
        f"digest {outcome.digest}"
    )
    print_counts([outcome])
    return 1 if outcome.failure else 0


def print_counts(outcomes: Sequence[Outcome]) -> None:
    """Print what was counted: runs in which little happened prove nothing."""
    for name in ("faults", "counts"):
        total: Counter[str] = Counter()
        for outcome in outcomes:
            total.update(getattr(outcome, name))
        shown = ", ".join(f"{what} {number:,}" for what, number in sorted(total.items()))
        print_line(f"{name}: {sum(total.values()):,} ({shown})")
    if most_calls := max([outcome.most_calls for outcome in outcomes], default=0):
        print_line(f"most calls of a callback: {most_calls:,}")


def print_line(text: str) -> None:
    CONSOLE.print(text)


if __name__ == "__main__":
    sys.exit(main())
