"""Run seeds of the simulation.

python -m tests.replica.simulation --seeds 1000     over all cores, with a progress bar
python -m tests.replica.simulation --seed 17        replays one seed, event for event
"""

import argparse
import sys
from collections.abc import Sequence

from quivermq.testing.__main__ import print_line, print_run, run_over_cores
from tests.replica.simulation import Outcome, run_seed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replica.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay this one")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return replay(options.seed)
    seeds = range(options.first, options.first + options.seeds)
    return run_over_cores(run_seed, seeds, None, tell_failure)


def replay(seed: int) -> int:
    """One seed with its story; the digest tells whether two replays were the same run."""
    outcome = run_seed(seed)
    print_line(outcome.failure or f"seed {seed} passed")
    return print_run(outcome)


def tell_failure(outcome: Outcome) -> None:
    print_line(f"seed {outcome.seed} failed: {outcome.failure}")
    print_line(f"replay: python -m tests.replica.simulation --seed {outcome.seed}")


if __name__ == "__main__":
    sys.exit(main())
