"""Whole clusters from seeds; `make sim` runs many more."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from quivermq.testing import Violation
from tests.replica.simulation import Simulation, run_seed
from tests.replica.simulation.__main__ import main
from tests.replica.simulation.faults import FAULTS

BLOCKS, SEEDS_PER_BLOCK = 4, 10
REPLAYED = 7


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_cluster_keeps_its_promises_and_recovers(block: int) -> None:
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        outcome = run_seed(seed)
        assert not outcome.failure, outcome.failure
        counts += outcome.counts
        faults += outcome.faults
    assert counts["acks"] > 40 * SEEDS_PER_BLOCK, "too little was stored to show anything"
    assert faults.total() > 10 * SEEDS_PER_BLOCK, "the seeds were too calm to show anything"
    assert counts["sleeps"] > 3 * SEEDS_PER_BLOCK, "hardly any replica slept"
    assert counts["messages acked"] > 20 * SEEDS_PER_BLOCK, "hardly anything was consumed"
    assert counts["dead letters"], "no message became a dead letter"


def test_every_kind_of_fault_has_a_name_of_its_own_and_a_pace() -> None:
    assert len({fault.__name__ for fault in FAULTS}) == len(FAULTS)
    assert all(pace_ms > 0 for pace_ms in FAULTS.values())


def test_a_seed_is_the_same_run_in_every_process() -> None:
    command = [sys.executable, "-m", "tests.replica.simulation", "--seed", str(REPLAYED)]
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
    assert Simulation(REPLAYED).run().digest.encode() in only


def test_other_seeds_are_other_runs() -> None:
    assert run_seed(1).digest != run_seed(2).digest


def test_a_failure_tells_its_story_and_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise Violation("I0: planted")

    monkeypatch.setattr(Simulation, "_check_end", fail)
    assert main(["--seed", "3"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("Violation: I0: planted\nseed 3, ")
    assert "healing" in shown
    assert "digest" in shown


def test_many_seeds_end_with_a_summary_of_faults_and_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "4", "--first", "20"]) == 0
    shown = capsys.readouterr().out
    assert "4 seeds passed" in shown
    assert "simulated hours" in shown
    assert "acks" in shown
