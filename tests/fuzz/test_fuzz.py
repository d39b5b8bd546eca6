"""A short, seeded part of `python -m tests.fuzz`, and every input that was ever a bug."""

from itertools import islice
from pathlib import Path

import pytest

from quivermq.errors import Corrupt
from tests.fuzz.__main__ import FOUND, inputs, trouble
from tests.fuzz.targets import TARGETS, Target

INPUTS = 400


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_more_than_raise_our_error(name: str) -> None:
    target = TARGETS[name]
    for data in islice(inputs(target, seed=7), INPUTS):
        assert not (found := trouble(target, data)), f"{found}\n{data!r}"


# A file of one log is damage in another.
@pytest.mark.parametrize("name", sorted(TARGETS.keys() - {"log"}))
def test_samples_are_understood(name: str) -> None:
    target = TARGETS[name]
    for sample in target.samples():
        target.read(sample)


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.bin")), ids=lambda path: path.name)
def test_what_was_a_bug_is_none_any_more(path: Path) -> None:
    target = TARGETS[path.name.rpartition("-")[0]]
    assert not (found := trouble(target, path.read_bytes())), found


def test_a_bug_is_found() -> None:
    def read(data: bytes) -> None:
        if data.startswith(b"sample"):
            return
        raise Corrupt("no sample") if data else IndexError("empty")

    target = Target(lambda: [b"sample"], read)
    assert not trouble(target, b"sample")
    assert not trouble(target, b"other")
    assert "IndexError" in trouble(target, b"")
    assert any(trouble(target, data) for data in islice(inputs(target, seed=1), 5_000))
