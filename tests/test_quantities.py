"""Parsing and formatting durations and sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.quantities import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("1.5s", 1.5),
        ("500ms", 0.5),
        ("5m", 300.0),
        ("1h30m", 5_400.0),
        (" 1h 30m ", 5_400.0),
        ("7d", 604_800.0),
        ("2W", 1_209_600.0),
        ("1 hour 30 minutes", 5_400.0),
        ("2 weeks", 1_209_600.0),
        ("0", 0.0),
    ],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_a_number_alone_has_the_unit_of_the_caller_or_is_refused() -> None:
    assert parse_duration("250", bare="ms") == 0.25
    assert parse_duration("2m", bare="ms") == 120.0
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration("250", bare=None)


def test_a_very_long_text_is_cut_in_messages() -> None:
    with pytest.raises(ValueError, match="x…") as caught:
        parse_duration("x" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "text", ["", "h", "7x", "-1s", "1h30", "5 fortnights", "1,5s", "s1", "nan", "inf", "٣s"]
)
def test_a_wrong_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="write 500ms, 30s"):
        parse_duration(text)


@given(st.integers(0, 10**13))
def test_a_formatted_duration_parses_back_to_the_millisecond(milliseconds: int) -> None:
    text = format_duration(milliseconds / 1000)
    assert round(parse_duration(text) * 1000) == milliseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512),
        ("512B", 512),
        ("64KiB", 65_536),
        ("64kib", 65_536),
        ("10GB", 10_000_000_000),
        ("10G", 10_000_000_000),
        ("1.5 TB", 1_500_000_000_000),
        ("2MiB", 2_097_152),
        ("9007199254740993", 9_007_199_254_740_993),
    ],
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "10XB", "-1", "1e3", "10 iB", "ten", "1..5MB"])
def test_a_wrong_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="write 512, 64KiB"):
        parse_size(text)


@pytest.mark.parametrize("parse", [parse_size, parse_duration])
def test_too_large_values_are_refused(parse: object) -> None:
    with pytest.raises(ValueError, match="too much"):
        parse("9" * 30)  # type: ignore[operator]


@given(st.integers(0, 10**18))
def test_a_formatted_size_is_short_and_close(size: int) -> None:
    text = format_size(size)
    assert len(text) <= len("1000000 PB")
    assert abs(parse_size(text) - size) <= size * 0.006


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (1_536, "1.54 kB"), (10_000_000_000, "10 GB")],
)
def test_sizes_are_formatted(size: int, text: str) -> None:
    assert format_size(size) == text
