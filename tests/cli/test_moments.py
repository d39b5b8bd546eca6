"""Times on the command line."""

from datetime import UTC, datetime

import pytest

from quivermq.cli.options import parse_moment

NOW = datetime(2025, 1, 31, 12, 0, tzinfo=UTC)


def test_a_moment_names_its_zone_or_counts_back_from_now() -> None:
    assert parse_moment("2025-01-31T12:00Z", NOW) == NOW
    assert parse_moment("2025-01-31T13:00+01:00", NOW) == NOW
    assert parse_moment("2h", NOW) == datetime(2025, 1, 31, 10, 0, tzinfo=UTC)


def test_a_moment_without_a_zone_is_local() -> None:
    found = parse_moment("2025-01-31T12:00", NOW)
    assert found == datetime(2025, 1, 31, 12, 0).astimezone()


@pytest.mark.parametrize("text", ["yesterday", "2025-13-01", "", "9999999999d"])
def test_a_wrong_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="2h for two hours ago"):
        parse_moment(text, NOW)
