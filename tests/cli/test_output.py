"""Tables, lines and errors that commands print."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.cli.output import (
    count,
    numbers,
    print_error,
    print_line,
    print_table,
    printable,
    table,
)


@given(st.binary())
def test_bytes_of_a_user_never_reach_the_terminal_as_control_codes(data: bytes) -> None:
    line = printable(data)
    assert all(letter.isprintable() for letter in line)


def test_text_is_shown_as_it_is_and_cut_with_an_ellipsis() -> None:
    assert printable("grüße".encode()) == "grüße"
    assert printable(b"\x1b[31mred\n") == "\\x1b[31mred\\n"
    assert printable(b"\xff") == "\\xff"
    assert printable(b"0123456789", 5) == "0123…"


def test_markup_in_a_users_text_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("[bold]topic[/] [/nonsense]")
    print_error("no [such] thing")
    printed = capsys.readouterr()
    assert printed.out == "[bold]topic[/] [/nonsense]\n"
    assert printed.err == "error: no [such] thing\n"


def test_an_error_of_many_lines_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("first\n  second " + "x" * 300)
    assert capsys.readouterr().err == f"error: first second {'x' * 300}\n"


def test_a_wide_table_is_not_cut_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    made = table("name", "count>")
    made.add_row("n" * 120, "7")
    print_table(made)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert any(line.split() == ["n" * 120, "7"] for line in lines)


def test_counts_and_lists_are_formatted() -> None:
    assert count(1, "topic") == "1 topic"
    assert count(1_000, "topic") == "1,000 topics"
    assert numbers([1, 2]) == "1, 2"
    assert numbers([]) == "-"
