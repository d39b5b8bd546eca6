"""Times as text."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from quivermq.moments import format_moment, format_written


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_794_819_008_600, "2026-11-16T08:50:08.600Z"),
        (datetime(2025, 1, 31, 12, tzinfo=UTC), "2025-01-31T12:00:00.000Z"),
        (
            datetime(2025, 1, 31, 12, 0, 0, 999_000, tzinfo=timezone(timedelta(hours=2))),
            "2025-01-31T10:00:00.999Z",
        ),
    ],
)
def test_every_time_has_the_same_form(moment: datetime | int, text: str) -> None:
    assert format_moment(moment) == text
    assert datetime.fromisoformat(text).tzinfo is not None


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("1794819008600", "2026-11-16T08:50:08.600Z"),
        ("", ""),
        ("yesterday", "yesterday"),
        ("9" * 30, "9" * 30),
    ],
)
def test_what_others_wrote_is_a_time_or_stays(written: str, text: str) -> None:
    assert format_written(written) == text
