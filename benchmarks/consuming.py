"""Consuming through groups: backlogs, shares of priorities, rate limits.

    python -m benchmarks.consuming [--only backlog,priorities,limits] [--json]

Rates and latencies of groups are in `benchmarks.compare`, beside other systems.
"""

import argparse
import json
import platform
import sys
from dataclasses import asdict
from typing import Any

from rich.console import Console

from benchmarks import backlog, deliveries

PARTS = ("backlog", "priorities", "limits")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true", help="one JSON line for programs")
    arguments.add_argument("--only", default=",".join(PARTS), help="which parts")
    options, _ = arguments.parse_known_args()
    # Arguments go to all benchmarks; parts of others are none of these.
    options.parts = {part for part in options.only.split(",") if part in PARTS}
    console = Console(width=None if sys.stdout.isatty() else 130)
    report: dict[str, Any] = {"benchmark": "consuming", "python": platform.python_version()}
    for part, measure in (
        ("backlog", backlog.measure),
        ("priorities", deliveries.measure_priorities),
        ("limits", deliveries.measure_limits),
    ):
        if part in options.parts:
            found = measure()
            report[part] = asdict(found)
            if not options.json:
                console.print(found.table())
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
