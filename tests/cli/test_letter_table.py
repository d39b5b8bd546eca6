"""The table of dead letters: which columns are cut in a narrow terminal."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq import DeadLetter
from quivermq.cli.letter_table import _divide, format_died, print_letters


def letter(key: bytes | None = b"customer", at: str = "") -> DeadLetter:
    return DeadLetter(
        partition=12, offset=1_000_000, topic="orders", group="billing", reason="no stock " * 20,
        deliveries=5, original_partition=12, original_offset=2_000_000, key=key,
        value=b"\x1b[31mvalue" * 50, headers={}, timestamp=0, died=at,
    )  # fmt: skip


@pytest.mark.parametrize("columns", [90, 120, 250])
def test_positions_are_never_cut(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_letters([letter()])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= columns
    for whole in ("12/1000000", "12/2000000", "billing", "no st"):
        assert whole in shown


def test_without_keys_there_is_no_key_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    print_letters([letter(key=None)])
    assert "key" not in capsys.readouterr().out


def test_a_letter_of_today_shows_the_time_and_an_older_one_the_day() -> None:
    today = datetime.now().astimezone().replace(hour=9, minute=5, second=7)
    assert format_died(letter(at=str(int(today.timestamp() * 1000)))) == "09:05:07"
    assert format_died(letter(at="0")).startswith(("01-01 ", "12-31 "))
    assert format_died(letter(at="lately")) == "lately"


@given(st.integers(0, 300), st.lists(st.integers(0, 500), min_size=1, max_size=5))
def test_columns_get_the_width_they_want_or_an_equal_share(spare: int, wanted: list[int]) -> None:
    widths = _divide(spare, wanted)
    asked = [max(6, each) for each in wanted]
    assert all(width <= most for width, most in zip(widths, asked, strict=True))
    assert sum(widths) <= max(spare, 6 * len(wanted))
    if sum(asked) <= spare:
        assert widths == asked
