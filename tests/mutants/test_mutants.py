"""The planted bugs are well kept, and a few of them are tried; `make mutants` tries all."""

from pathlib import Path

import pytest

from tests.mutants.planting import ROOT, SRC, Mutant, load, run, verdict_of

MUTANTS = load()
TRIED = {
    "votes twice in a term",
    "commit of entries of earlier terms by counting",
    "read answered without a quorum",
    "follower commits past what it matched",
    "snapshot restore drops auto-leave",
    "acknowledges without fsync",
    "transfer is not checked as a whole",
}


def test_there_are_enough_of_them_and_names_are_unique() -> None:
    assert len(MUTANTS) >= 26
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_sources_and_names_tests_that_exist(mutant: Mutant) -> None:
    assert mutant.occurrences() == 1
    for catcher in mutant.caught_by:
        if not catcher.startswith(("brokers:", "cluster:", "scenario:", "storm:")):
            file, _, name = catcher.partition("::")
            text = (ROOT / "tests" / mutant.room / file).read_text()
            assert f"def {name}(" in text if name else text


def test_the_copy_is_what_gets_tested() -> None:
    where = run(["-c", "import quivermq.raft; print(quivermq.raft.__file__)"], SRC)
    assert Path(where.stdout.strip()).is_relative_to(SRC)


@pytest.mark.parametrize("name", sorted(TRIED))
def test_a_planted_bug_is_caught(name: str) -> None:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    settlement = verdict_of(mutant)
    assert settlement.is_caught, settlement
