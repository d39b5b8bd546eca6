"""Times in JSON and in logs: ISO 8601 in UTC with milliseconds, `2025-01-31T12:00:00.000Z`.

Only the `timestamp` of a message, and what is called so by its unit (`created_ms`), is a number:
milliseconds since 1970.
"""

from datetime import UTC, datetime


def format_moment(moment: datetime | int) -> str:
    """A time, or milliseconds since 1970."""
    if isinstance(moment, datetime):
        moment = round(moment.timestamp() * 1000)
    return (
        datetime.fromtimestamp(moment // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        + f"{moment % 1000:03d}Z"
    )


def format_written(moment: str) -> str:
    """The same of milliseconds that are text; other text stays as it is."""
    try:
        return format_moment(int(moment)) if moment.isdecimal() else moment
    except (ValueError, OverflowError, OSError):
        return moment
