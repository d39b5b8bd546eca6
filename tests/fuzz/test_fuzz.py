"""A short, seeded part of `python -m tests.fuzz`, and every input that was ever a bug."""

from functools import cache
from itertools import islice
from pathlib import Path

import pytest

from quivermq.batches import Frame, encode_batch
from quivermq.errors import Corrupt
from tests.fuzz import corpus, guided
from tests.fuzz.__main__ import inputs, main
from tests.fuzz.corpus import FOUND
from tests.fuzz.seals import seal_frames
from tests.fuzz.target import MEMORY_BYTES_MAX, Target, trouble
from tests.fuzz.targets import TARGETS

INPUTS = 400


@cache
def ready(name: str) -> Target:
    """A target of which everything is there that is made once in a process: a broker and its
    threads, which would not fit into the memory of one input."""
    target = TARGETS[name]
    for sample in target.samples():
        target.read(sample)
    return target


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_more_than_raise_our_error(name: str) -> None:
    target = ready(name)
    for sample in target.samples():
        assert target.seal(sample) == sample
    for data in islice(inputs(target, seed=7), INPUTS):
        assert not (found := trouble(target, data)), f"{found}\n{data!r}"


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_that_reached_the_most_lines_are_no_bugs(name: str) -> None:
    for data in corpus.load(name):
        assert not (found := trouble(ready(name), data)), f"{found}\n{data!r}"


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.bin")), ids=lambda path: path.name)
def test_what_was_a_bug_is_none_any_more(path: Path) -> None:
    target = ready(path.name.rpartition("-")[0])
    assert not (found := trouble(target, path.read_bytes())), found


def test_kept_inputs_stay_small() -> None:
    kept = [*FOUND.glob("*.bin"), *corpus.CORPUS.glob("*.zip")]
    assert sum(path.stat().st_size for path in kept) < 500_000
    assert {path.stem for path in corpus.CORPUS.glob("*.zip")} == set(TARGETS)


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


def test_an_input_that_never_ends_is_a_bug() -> None:
    def read(_: bytes) -> None:
        while True:
            pass

    assert "Stalled" in trouble(Target(list, read), b"")


@pytest.mark.parametrize("is_translated", [False, True])
def test_an_input_that_asks_for_much_memory_is_a_bug(is_translated: bool) -> None:
    def read(data: bytes) -> None:
        try:
            bytearray(MEMORY_BYTES_MAX * len(data))
        except MemoryError as error:
            if is_translated:
                raise Corrupt("too large") from error
            raise

    target = Target(list, read)
    assert "MemoryError" in trouble(target, b"12")
    assert not trouble(target, b"")


def test_a_changed_frame_with_right_checksums_gets_behind_them() -> None:
    changed = bytearray(bytes(encode_batch([b"one"])))
    changed[30] ^= 1
    with pytest.raises(Corrupt, match="checksum"):
        Frame.parse(changed)
    assert Frame.parse(seal_frames(bytes(changed))).header != encode_batch([b"one"]).header


def test_few_inputs_reach_the_lines_of_many() -> None:
    target = TARGETS["frame"]
    sample, noise = target.samples()[0], [b"noise", b"other noise", b"more"]
    few, lines = corpus.reduced(target, [sample, *noise])
    assert sample in few
    assert len(few) == 2
    assert lines > corpus.lines_of(target, sample)


def test_a_corpus_that_is_saved_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "CORPUS", tmp_path)
    corpus.save("frame", [b"one", b"two"])
    assert corpus.load("frame") == [b"one", b"two"]
    assert corpus.load("batch") == []


def test_the_guide_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guided, "atheris", None)
    with pytest.raises(SystemExit, match="pip install --group fuzz"):
        main(["--guided"])
