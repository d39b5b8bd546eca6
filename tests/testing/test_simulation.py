"""Whole brokers from seeds; `make sim` runs many more.

Each in a process of its own: what killed brokers leave behind ends with it.
"""

import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from quivermq.testing.__main__ import print_counts
from quivermq.testing.simulation import Outcome
from quivermq.testing.simulation.faults import FAULTS, GATEWAY_FAULTS

FIRST, SEEDS = 10, 2
"""Three brokers that sync later, with users and HTTP; five with gateways."""
REPLAYED = 590
"""One broker with gateways, users and HTTP."""
SEEN = ("steps by HTTP", "calls of guests that were refused", "users of gateways")
"""What only some seeds have."""

KILLED = """
from quivermq.testing import Simulation, Violation
from quivermq.testing.__main__ import main

def fail_if_killed(simulation):
    if simulation.world.story.faults["kill"]:
        raise Violation("I0: planted")

run_for = Simulation._run_for
Simulation._check = fail_if_killed
Simulation._heal = Simulation._drain = lambda simulation: None
# A few seconds suffice for a kill, and every step of the shrinking runs them again.
Simulation._run_for = lambda simulation, ms: run_for(simulation, ms if ms < 1000 else ms // 5)
raise SystemExit(main(["--seeds", "20"]))
"""
IMPORTED = """
import sys

import quivermq.transports.http
from quivermq.testing.__main__ import main

raise SystemExit(main(["--seed", sys.argv[1]]))
"""
"""As in a process of many seeds, which imports it once for all of them."""
FEWER = """
from quivermq.testing.simulation import LeftOut, run_seed
from quivermq.testing.simulation.faults import FAULTS

fewer = run_seed(1, LeftOut(frozenset(fault.__name__ for fault in FAULTS)))
assert not fewer.failure, fewer.failure
print(dict(fewer.faults), fewer.digest)
"""


def simulate(*arguments: str, expected: int = 0, **variables: str) -> str:
    """What a process of the simulator prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


def count(shown: str, name: str) -> int:
    found = re.search(rf"{name} ([\d,]+)", shown)
    return int(found[1].replace(",", "")) if found else 0


def test_brokers_keep_their_promises_and_recover() -> None:
    seeds = ("--first", str(FIRST), "--seeds", str(SEEDS))
    shown = simulate("-m", "quivermq.testing", "--whole", "--jobs", "1", *seeds)
    assert f"{SEEDS} seeds passed" in shown
    assert count(shown, "messages acknowledged") > 100 * SEEDS, "too little was stored"
    assert count(shown, "calls judged as linearizable") > 50 * SEEDS
    assert count(shown, "faults:") > 4 * SEEDS, "too calm to show anything"
    assert all(count(shown, name) > 5 for name in SEEN), shown


def test_every_kind_of_fault_has_a_name_of_its_own_and_a_pace() -> None:
    every = FAULTS | GATEWAY_FAULTS
    assert len({fault.__name__ for fault in every}) == len(FAULTS) + len(GATEWAY_FAULTS)
    assert all(pace_ms > 0 for pace_ms in every.values())


def test_a_seed_is_the_same_run_in_every_process_and_another_is_not() -> None:
    """Also where texts hash otherwise, objects lie elsewhere, and modules were imported before:
    every byte on the network."""
    shown = {
        simulate("-m", "quivermq.testing", "--seed", str(REPLAYED), PYTHONHASHSEED="1"),
        simulate("-c", IMPORTED, str(REPLAYED), PYTHONHASHSEED="2"),
    }
    (only,) = shown
    other = simulate("-c", FEWER)
    assert other.startswith("{} ")
    assert len({re.findall(r"[0-9a-f]{32}", run)[0] for run in (only, other)}) == 2


def test_a_failure_is_shrunk_and_tells_its_story() -> None:
    shown = simulate("-c", KILLED, expected=1)
    assert re.search(r"seed \d+ failed: Violation: I0: planted", shown)
    left_out = shown.partition("it also fails without ")[2].partition(", and without")[0]
    assert "kill" not in left_out.split(", ")
    assert shown.rpartition("struck: ")[2].startswith("{'kill': ")


def test_counts_of_seeds_are_added_up_and_of_callbacks_the_longest_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_counts(
        [
            Outcome(seed, 1, 1, "", Counter(kill=2), Counter(acks=3), most_calls=calls)
            for seed, calls in ((9, 70), (19, 50), (20, 0))
        ]
    )
    told = ["faults: 6 (kill 6)", "counts: 9 (acks 9)", "most calls of a callback: 70"]
    assert capsys.readouterr().out.splitlines() == told
