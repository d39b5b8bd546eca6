"""The bugs that were found: each has a story, and planted bugs that bring it back and are caught.

001-a-flipped-bit-in-the-list-of-logs.toml    story and planted, names of tests/mutants
python -m tests.mutants --only "NAME"         shows that the bug is caught today
"""

import re
import tomllib
from pathlib import Path

import pytest

from tests.mutants.planting import load

STORY_LINES_MAX = 5
PIECES = sorted(Path(__file__).parent.glob("*.toml"))


def test_pieces_are_numbered_from_one_without_a_gap() -> None:
    assert [int(piece.stem[:3]) for piece in PIECES] == list(range(1, len(PIECES) + 1))


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.stem)
def test_a_piece_has_a_short_story_and_planted_bugs_that_exist(piece: Path) -> None:
    assert re.fullmatch(r"\d{3}(-[a-z0-9]+)+", piece.stem)
    found = tomllib.loads(piece.read_text())
    assert set(found) == {"story", "planted"}
    assert 1 <= len(found["story"].strip().splitlines()) <= STORY_LINES_MAX
    assert found["planted"]
    assert set(found["planted"]) <= {mutant.name for mutant in load()}
