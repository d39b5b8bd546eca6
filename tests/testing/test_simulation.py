"""Whole brokers from seeds; `make sim` runs many more."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from quivermq.testing import Simulation, Violation, run_seed
from quivermq.testing.__main__ import main
from quivermq.testing.simulation import LeftOut
from quivermq.testing.simulation.faults import FAULTS

BLOCKS, SEEDS_PER_BLOCK = 4, 3
REPLAYED = 1


@pytest.mark.parametrize("block", range(BLOCKS))
def test_brokers_keep_their_promises_and_recover(block: int) -> None:
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        outcome = run_seed(seed)
        assert not outcome.failure, outcome.failure
        counts += outcome.counts
        faults += outcome.faults
    assert counts["messages acknowledged"] > 100 * SEEDS_PER_BLOCK, "too little was stored"
    assert counts["calls judged as linearizable"] > 50 * SEEDS_PER_BLOCK, "too little was judged"
    assert faults.total() > 4 * SEEDS_PER_BLOCK, "the seeds were too calm to show anything"


def test_every_kind_of_fault_has_a_name_of_its_own_and_a_pace() -> None:
    assert len({fault.__name__ for fault in FAULTS}) == len(FAULTS)
    assert all(pace_ms > 0 for pace_ms in FAULTS.values())


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Also where texts hash otherwise, and objects lie elsewhere: every byte on the network."""
    command = [sys.executable, "-m", "quivermq.testing", "--seed", str(REPLAYED)]
    shown = {
        subprocess.run(
            command,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    (only,) = shown
    assert run_seed(REPLAYED).digest.encode() in only


def test_other_seeds_and_fewer_faults_are_other_runs() -> None:
    whole = run_seed(REPLAYED)
    fewer = run_seed(REPLAYED, LeftOut(frozenset(fault.__name__ for fault in FAULTS)))
    assert whole.faults
    assert not fewer.faults
    assert len({whole.digest, fewer.digest, run_seed(2).digest}) == 3


def test_a_failure_is_shrunk_and_tells_its_story(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_if_killed(simulation: Simulation) -> None:
        if simulation.world.story.faults["power loss of all"]:
            raise Violation("I0: planted")

    monkeypatch.setattr(Simulation, "_check", fail_if_killed)
    seed = next(seed for seed in range(1, 40) if run_seed(seed).faults["power loss of all"])
    assert main(["--seed", str(seed)]) == 1
    shown = capsys.readouterr().out
    assert f"seed {seed} failed: Violation: I0: planted" in shown
    left_out = shown.partition("it also fails without ")[2].partition(", and without")[0]
    assert "power_loss_of_all" not in left_out
    assert shown.rpartition("struck: ")[2].startswith("{'power loss of all'")


def test_many_seeds_end_with_a_summary_of_faults_and_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "2", "--first", "1"]) == 0
    shown = capsys.readouterr().out
    assert "2 seeds passed" in shown
    assert "simulated hours" in shown
    assert "messages acknowledged" in shown
