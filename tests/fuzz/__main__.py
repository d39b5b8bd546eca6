"""Fuzz what reads bytes and texts from outside: `python -m tests.fuzz --minutes 10`.

A bug is an input that raises anything but our errors, takes longer than a second of processor
time, or asks for more than 100 MB. It is kept in tests/fuzz/found, where tests read it again.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator
from random import Random

from tests.fuzz import corpus, guided
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target, trouble
from tests.fuzz.targets import TARGETS

KEPT_MAX = 500
SEALED_SHARE = 0.5


def inputs(target: Target, seed: int, kept: list[bytes] | None = None) -> Iterator[bytes]:
    """Endless: samples, samples that were changed, and changes of those. Of half of them the
    checksums are made right."""
    dice = Random(seed)
    samples = target.samples()
    yield from samples
    known = samples + (kept or [])
    while True:
        data = mutated(dice.choice(known), known, dice)
        if dice.random() < SEALED_SHARE:
            data = target.seal(data)
        yield data
        # Some changes lead to others; without samples nothing is right any more.
        if len(known) < KEPT_MAX and dice.random() < 0.05:
            known.append(data)


def fuzz(name: str, seconds: float, seed: int) -> bool:
    """Fuzz one target without a guide; whether no bug was found."""
    target, count = TARGETS[name], 0
    for sample in target.samples():
        target.read(sample)
    began, busy = time.monotonic(), time.process_time()
    for data in inputs(target, seed, corpus.load(name)):
        count += 1
        if found := trouble(target, data):
            print(f"{corpus.keep_found(name, data).name}: {found}")
            break
        if time.monotonic() > began + seconds:
            break
    took = (time.monotonic() - began, time.process_time() - busy)
    _tell(name, count, took, is_bad=bool(found))
    return not found


def fuzz_guided(name: str, seconds: float, seed: int, *, is_kept: bool) -> bool:
    """Fuzz one target guided by coverage; whether no bug was found."""
    began, busy = time.monotonic(), os.times()
    outcome = guided.run_guided(name, max(1, round(seconds)), seed)
    after = os.times()
    worked = after.children_user + after.children_system
    took = (time.monotonic() - began, worked - busy.children_user - busy.children_system)
    if outcome.bug is not None:
        print(f"{corpus.keep_found(name, outcome.bug).name}:\n{outcome.log[-5_000:]}")
    # What is made once counts for no input.
    for sample in TARGETS[name].samples():
        TARGETS[name].read(sample)
    few, lines = corpus.reduced(TARGETS[name], outcome.corpus)
    if is_kept:
        corpus.save(name, few)
    covered = f"{outcome.edges:>7,} edges {len(lines):>7,} lines"
    _tell(name, outcome.inputs, took, covered, is_bad=outcome.bug is not None)
    return outcome.bug is None


def _tell(
    name: str, count: int, took: tuple[float, float], covered: str = "", *, is_bad: bool
) -> None:
    """On a busy machine the processor's seconds say more than those of the clock."""
    found = "a bug" if is_bad else "nothing"
    seconds = "{:>6,.0f} s, {:>6,.0f} s of processor".format(*took)
    print(f"{name:<22}{count:>12,} inputs {seconds} {covered}  found: {found}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--only", action="append", choices=list(TARGETS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--guided", action="store_true", help="by coverage; needs atheris")
    parser.add_argument("--keep", action="store_true", help="with --guided: keep new inputs")
    options = parser.parse_args(arguments)
    if options.guided and guided.atheris is None:
        sys.exit(guided.MISSING)
    logging.getLogger("quivermq").addHandler(logging.NullHandler())
    seconds, right = options.minutes * 60, True
    for name in options.only or TARGETS:
        if options.guided:
            right &= fuzz_guided(name, seconds, options.seed, is_kept=options.keep)
        else:
            right &= fuzz(name, seconds, options.seed)
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
