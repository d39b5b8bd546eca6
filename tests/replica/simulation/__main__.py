"""Run seeds of the simulation.

python -m tests.replica.simulation --seeds 1000     over all cores, with a progress bar
python -m tests.replica.simulation --seed 17        replays one seed, event for event
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from rich.console import Console
from rich.progress import Progress

from tests.replica.simulation import Outcome, run_seed

MS_PER_HOUR = 3_600_000
CONSOLE = Console(soft_wrap=True, highlight=False, markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replica.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay this one")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return replay(options.seed)
    return run_many(range(options.first, options.first + options.seeds))


def replay(seed: int) -> int:
    """One seed with its story; the digest tells whether two replays were the same run."""
    outcome = run_seed(seed)
    print_line(outcome.failure or f"seed {seed} passed")
    print_line(
        f"{outcome.virtual_ms / 1000:.1f} virtual seconds, {outcome.events:,} events, "
        f"digest {outcome.digest}"
    )
    print_counts([outcome])
    return 1 if outcome.failure else 0


def run_many(seeds: range) -> int:
    """Seeds over all cores; stops at the first that fails."""
    started = time.monotonic()
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor() as pool, Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for outcome in pool.map(run_seed, seeds, chunksize=4):
            progress.advance(task)
            outcomes.append(outcome)
            if outcome.failure:
                pool.shutdown(cancel_futures=True)
                progress.stop()
                print_line(f"seed {outcome.seed} failed: {outcome.failure}")
                print_line(f"replay: python -m tests.replica.simulation --seed {outcome.seed}")
                return 1
    minutes = (time.monotonic() - started) / 60
    hours = sum(outcome.virtual_ms for outcome in outcomes) / MS_PER_HOUR
    print_line(
        f"{len(outcomes)} seeds passed: {hours:.1f} simulated hours, "
        f"{hours / minutes:.1f} per real minute"
    )
    print_counts(outcomes)
    return 0


def print_counts(outcomes: Sequence[Outcome]) -> None:
    """Print what was counted: runs in which little happened prove nothing."""
    for name in ("faults", "counts"):
        total: Counter[str] = Counter()
        for outcome in outcomes:
            total.update(getattr(outcome, name))
        shown = ", ".join(f"{what} {number:,}" for what, number in sorted(total.items()))
        print_line(f"{name}: {sum(total.values()):,} ({shown})")


def print_line(text: str) -> None:
    CONSOLE.print(text)


if __name__ == "__main__":
    sys.exit(main())
