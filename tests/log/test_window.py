"""Reading through a window: the same bytes, whatever the window's edges cut through."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.log import window
from quivermq.log.window import Window, erase, first_data, occurrences, overwrite
from quivermq.testing.simulated_disk import SimulatedDisk


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of a few bytes, so that small files have many edges."""
    monkeypatch.setattr(window, "WINDOW_BYTES", 16)


def file_of(content: bytes):
    disk = SimulatedDisk(Random(0))
    file = disk.create("f")
    file.write(0, [content])
    return file


def test_views_show_the_file_and_end_where_it_ends() -> None:
    content = bytes(range(100))
    seen = Window(file_of(content), 100)
    for at, size in ((0, 5), (3, 10), (14, 4), (60, 40), (95, 20), (2, 3), (100, 1), (120, 5)):
        assert bytes(seen.view(at, size)) == content[at : at + size]


@given(st.binary(max_size=90), st.integers(0, 90))
def test_the_first_data_is_the_first_byte_that_is_not_zero(noise: bytes, at: int) -> None:
    content = bytes(byte & 1 and byte for byte in noise)
    expected = next((n for n in range(at, len(content)) if content[n]), None)
    assert first_data(file_of(content), at, len(content)) == expected


@given(st.binary(max_size=40), st.integers(0, 10))
def test_a_pattern_is_found_across_the_windows_edges(noise: bytes, at: int) -> None:
    content = b"ab" * 3 + noise + b"\0" * 20 + b"ab" + noise + b"ab"
    expected = [n for n in range(at, len(content)) if content[n : n + 2] == b"ab"]
    assert list(dict.fromkeys(occurrences(file_of(content), b"ab", at, len(content)))) == expected


@pytest.mark.parametrize("wipe", [erase, overwrite])
def test_wiping_leaves_zeros_between_its_bounds_and_nothing_else_changed(wipe) -> None:
    content = bytes(range(1, 101))
    file = file_of(content)
    wipe(file, 30, 90)
    assert file.read(0, 100) == content[:30] + bytes(60) + content[90:]
