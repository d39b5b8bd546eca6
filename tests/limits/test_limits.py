"""Limits, much smaller than they are: filled, led by another, started again from disk.

`python -m tests.limits` does the same at the real values.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from quivermq.queue import lease_manager
from tests.limits import delays, leasing
from tests.limits.__main__ import main
from tests.limits.registry import SCENARIOS, WITHOUT, limits_in_code, limits_of
from tests.limits.stage import LIMIT_S, Stage, run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_full_state_is_bounded_led_by_another_and_restored(name: str) -> None:
    outcome = run(SCENARIOS[name], 0.004)
    assert outcome.longest_s < LIMIT_S, outcome


def test_every_limit_has_a_scenario_or_a_reason_for_having_none() -> None:
    filled = [limit for one in SCENARIOS.values() for limit in one.limits]
    named = Counter([*filled, *(limit for limits in WITHOUT.values() for limit in limits)])
    found = set(limits_in_code())
    assert len(found) > 100
    assert sorted(found - named.keys()) == [], "new limits: fill them, or say why not"
    assert sorted(named.keys() - found) == [], "these are gone"
    assert [limit for limit, times in named.items() if times > 1] == []


def test_tests_that_reasons_name_exist() -> None:
    paths = [path for reason in WITHOUT for path in re.findall(r"tests/\S+\.py", reason)]
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_limits_are_found_by_their_names() -> None:
    source = (
        "A_MAX: Final = 1\n_B_MAX = 2\nMAXIMAL = 3\nITEMS_MAX_EACH = 4\n"
        "class C:\n    d_max: int = 5\n    e: int = 6\ndef f():\n    G_MAX = 7\n"
    )
    assert list(limits_of(source)) == ["A_MAX", "_B_MAX", "ITEMS_MAX_EACH", "d_max"]


def test_a_limit_that_does_not_hold_is_noticed() -> None:
    # Set back before the stage sets back what it changed.
    with Stage(0.004) as stage, pytest.MonkeyPatch.context() as patch:
        leases = leasing.Leases(stage)
        leases.fill()
        patch.setattr(lease_manager, "LEASES_MAX", 10**6)
        with pytest.raises(pytest.fail.Exception):
            leases.is_full()
    with Stage(0.004) as stage, pytest.MonkeyPatch.context() as patch:
        due = delays.Due(stage)
        due.fill()
        patch.setattr(lease_manager, "DUE_MAX", 10**6)
        with pytest.raises(AssertionError):
            due.is_full()
    assert lease_manager.LEASES_MAX == 100_000
    assert lease_manager.DUE_MAX == 10_000


def test_a_call_that_takes_too_long_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.limits.__main__.LIMIT_S", 0.0)
    assert main(["--only", "due", "--scale", "0.004"]) == 1
    assert "at once: due: " in capsys.readouterr().out
