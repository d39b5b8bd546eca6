"""`python -m tests.limits`: every limit at its real value, a line each."""

import argparse
import sys

from tests.limits.registry import SCENARIOS
from tests.limits.stage import LIMIT_S, run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.limits", description=__doc__)
    parser.add_argument("--only", choices=sorted(SCENARIOS), help="one of them")
    parser.add_argument("--scale", type=float, default=1.0, help="1: the real sizes")
    chosen = parser.parse_args(arguments)
    slow = []
    for name in [chosen.only] if chosen.only else SCENARIOS:
        outcome = run(SCENARIOS[name], chosen.scale)
        print(outcome, flush=True)
        if outcome.longest_s > LIMIT_S:
            slow.append(f"{name}: {outcome.longest}")
    if slow:
        print(f"more than {1000 * LIMIT_S:.0f} ms at once: {', '.join(slow)}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
