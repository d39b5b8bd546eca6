"""The outside oracle and our own scenarios, and the runner itself."""

from pathlib import Path

import pytest

from tests.raft.scenario_grammar import parse, structural
from tests.raft.scenarios import GIVEN, OWN, first_mismatch, main, rewrite, scenario_files

OWN_COMMANDS = {"crash", "restart", "partition", "heal", "read-index", "report-snapshot"}

given_files = scenario_files(GIVEN) if GIVEN.is_dir() else []


@pytest.mark.skipif(
    not GIVEN.is_dir(),
    reason=f"THE OUTSIDE ORACLE IS ABSENT: {GIVEN} does not exist, conformance is NOT checked",
)
def test_the_outside_oracle_is_there() -> None:
    assert len(given_files) >= 30


@pytest.mark.parametrize("path", given_files, ids=lambda path: path.stem)
def test_the_given_scenario_holds(path: Path) -> None:
    assert not (mismatch := first_mismatch(path)), "\n" + mismatch


@pytest.mark.parametrize("path", scenario_files(OWN), ids=lambda path: path.stem)
def test_our_own_scenario_holds(path: Path) -> None:
    assert not (mismatch := first_mismatch(path)), "\n" + mismatch


def test_our_own_scenarios_use_every_command_of_ours() -> None:
    used = {directive.command for path in scenario_files(OWN) for directive in parse(path)}
    assert used >= OWN_COMMANDS


def write(folder: Path, text: str) -> Path:
    path = folder / "s.txt"
    path.write_text(text)
    return path


def test_a_mismatch_is_shown_as_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "vote cfg=(1) votes=(y)\n----\nVoteLost\n")
    assert main([str(path)]) == 1
    printed = capsys.readouterr().out
    assert "-VoteLost" in printed
    assert "+VoteWon" in printed
    assert printed.splitlines()[-1] == "0 passed, 1 failed"


def test_an_unknown_command_fails_its_file_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "dance 1\n----\nok\n")
    (tmp_path / "t.txt").write_text("vote\n----\nVoteWon\n")
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "unknown command 'dance'" in printed
    assert printed.splitlines()[-1] == "1 passed, 1 failed"


def test_a_file_that_is_no_scenario_fails_without_breaking_the_runner(tmp_path: Path) -> None:
    assert "has no ----" in first_mismatch(write(tmp_path, "vote cfg=(1)\n"))
    assert "KeyError" in first_mismatch(write(tmp_path, "campaign 1\n----\nok\n"))
    assert "cannot be read" in first_mismatch(tmp_path / "absent.txt")


def test_log_lines_do_not_count() -> None:
    assert structural("INFO 1 became leader\n  DEBUG x\nreal\n") == "real"
    assert structural("INFO only") == "ok"
    assert structural("ok") == "ok"


def test_output_with_blank_lines_stands_between_doubled_separators(tmp_path: Path) -> None:
    path = write(tmp_path, "vote\n----\n----\na\n\nb\n----\n----\n\nvote\n----\nVoteWon\n")
    first, second = parse(path)
    assert first.expected == "a\n\nb"
    assert second.expected == "VoteWon"


def test_only_our_own_files_are_rewritten(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not ours"):
        rewrite(write(tmp_path, "vote\n----\nVoteLost\n"))
