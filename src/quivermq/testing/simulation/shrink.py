"""Makes a failing seed easier to read: leaves out faults and users while it still fails."""

from collections.abc import Iterator
from dataclasses import replace

from quivermq.testing.simulation.faults import FAULTS, GATEWAY_FAULTS
from quivermq.testing.simulation.simulation import LeftOut, Outcome, run_seed


def shrink(failed: Outcome) -> tuple[Outcome, LeftOut]:
    """The smallest run that was found of a seed that failed, and what it leaves out."""
    smallest, left_out = failed, LeftOut()
    for more in _candidates(failed):
        tried = LeftOut(left_out.faults | more.faults, left_out.users | more.users)
        outcome = run_seed(failed.seed, tried)
        if kind_of(outcome.failure) == kind_of(failed.failure):
            smallest, left_out = outcome, tried
    return smallest, left_out


def _candidates(failed: Outcome) -> Iterator[LeftOut]:
    struck = {name.replace(" ", "_").replace("-", "_") for name in failed.faults}
    names = [fault.__name__ for fault in FAULTS | GATEWAY_FAULTS if fault.__name__ in struck]
    nothing = LeftOut()
    # Half of them at once, if none of those is needed.
    for half in (names[: len(names) // 2], names[len(names) // 2 :]):
        yield replace(nothing, faults=frozenset(half))
    for name in names:
        yield replace(nothing, faults=frozenset({name}))
    for number in range(failed.users):
        yield replace(nothing, users=frozenset({number}))


def kind_of(failure: str) -> str:
    """The error and the guarantee that it names, without where and when."""
    return ":".join(failure.split("\n", 1)[0].split(":")[:2])
