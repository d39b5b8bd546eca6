"""Fuzz what reads bytes and texts from outside: `python -m tests.fuzz --minutes 10`.

A bug is an input that raises anything but our errors, or takes longer than a second. It is kept in
tests/fuzz/found, where tests read it again.
"""

import argparse
import hashlib
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS, Target

FOUND = Path(__file__).parent / "found"
SECONDS_MAX = 1.0
KEPT_MAX = 500


def inputs(target: Target, seed: int) -> Iterator[bytes]:
    """Endless: samples, samples that were changed, and changes of those."""
    dice = Random(seed)
    kept = target.samples()
    yield from list(kept)
    while True:
        data = mutated(dice.choice(kept), kept, dice)
        yield data
        # Some changes lead to others; without samples nothing is right any more.
        if len(kept) < KEPT_MAX and dice.random() < 0.05:
            kept.append(data)


def trouble(target: Target, data: bytes) -> str:
    """What is wrong with how a target takes this; empty if nothing is."""
    began = time.process_time()
    try:
        target.read(data)
    except target.errors:
        pass
    except Exception:
        return traceback.format_exc()
    took = time.process_time() - began
    return f"it took {took:.1f} s" if took > SECONDS_MAX else ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--only", action="append", choices=list(TARGETS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    failed = False
    for name in options.only or TARGETS:
        target, count, end = TARGETS[name], 0, time.monotonic() + options.minutes * 60
        for data in inputs(target, options.seed):
            count += 1
            if found := trouble(target, data):
                path = FOUND / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
                path.write_bytes(data)
                print(f"{path.name}: {found}")
                failed = True
                break
            if time.monotonic() > end:
                break
        print(f"{name:<14} {count:>12,} inputs", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
