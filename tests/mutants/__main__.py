"""Plant each bug in a copy of the sources and see that its tests notice.

    python -m tests.mutants                 all of them
    python -m tests.mutants --only NAME     one

A mutant that survives is a hole in the tests; one whose text is not found has rotted.
"""

import argparse
import sys
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

from tests.mutants.planting import SRC, Mutant, Verdict, load, verdict_of


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=cpu_count())
    chosen = parser.parse_args(arguments)
    mutants = [m for m in load() if not chosen.only or m.name in chosen.only]
    if not mutants:
        parser.error(f"no mutant is called {chosen.only}")
    compile_dir(SRC, quiet=1)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        settlements = list(pool.map(judged, mutants))
    survived = [settlement for settlement in settlements if not settlement.is_caught]
    print(f"{len(settlements) - len(survived)} caught, {len(survived)} survived")
    return 1 if survived else 0


def judged(mutant: Mutant) -> Verdict:
    """Try one mutant and print its row of the table."""
    settlement = verdict_of(mutant)
    print(
        f"{settlement.word:<9} {mutant.file:<15} {mutant.name:<52} {settlement.detail}", flush=True
    )
    return settlement


if __name__ == "__main__":
    sys.exit(main())
