"""Conditions of a query that spare reading: on topic, partition, offset and timestamp.

What is taken from Spark is trusted: it is not checked again there. So only what is exact is taken.
Times are not: a message may carry its producer's own time, so one that is stored before a moment
may be of a later one. A stored batch whose messages have no times of their own is skipped if its
time is outside, and the condition is left to Spark as well.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from quivermq.batches import Flag
from quivermq.client import Piece
from quivermq.spark.source.ranges import TopicRange

_OWN_TIMES: Final = int(Flag.TIMESTAMP)
_FIRST_DAY: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL: Final = {"value", "topic", "partition", "offset", "timestamp", "priority"}
_OFFSET_MAX: Final = 1 << 63
_COMPARISONS: Final = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Microseconds since 1970, both inclusive."""

    first: float = float("-inf")
    last: float = float("inf")

    def may_hold(self, piece: Piece) -> bool:
        """False if every message of the piece is outside."""
        header = piece.frame.header
        if header.flags & _OWN_TIMES:
            return True
        return self.first <= header.timestamp_ms * 1000 <= self.last


ALWAYS: Final = TimeBounds()


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """What was taken from Spark."""

    checks: tuple[Filter, ...] = ()
    """On topic and partition."""
    first: int = 0
    stop: int = _OFFSET_MAX
    """Offsets."""
    times: TimeBounds = field(default=ALWAYS)

    def narrow(self, ranges: Iterable[TopicRange]) -> list[TopicRange]:
        """What is left of these ranges."""
        return [
            replace(each, start=max(each.start, self.first), stop=min(each.stop, self.stop))
            for each in ranges
            if all(_holds(check, each) for check in self.checks)
        ]


def push_filters(filters: Iterable[Filter]) -> tuple[PushedFilters, list[Filter]]:
    """What the filters spare, and those that Spark has to apply itself."""
    found = PushedFilters()
    left: list[Filter] = []
    for each in filters:
        taken = _push(found, each)
        if taken is not None:
            found = taken
            continue
        left.append(each)
        found = replace(found, times=_narrow_times(found.times, each))
    return found, left


def _push(found: PushedFilters, each: Filter) -> PushedFilters | None:
    """The narrowing with this filter too; None if it cannot be taken exactly."""
    inner = each.child if isinstance(each, Not) else each
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in _NEVER_NULL:
        return None
    column = path[0]
    if isinstance(each, IsNotNull):
        return found
    if column == "offset":
        return _push_offset(found, each)
    if column == "partition" and _is_check(inner, int, _COMPARISONS):
        return replace(found, checks=(*found.checks, each))
    if column == "topic" and _is_check(
        inner, str, (EqualTo, StringStartsWith, StringEndsWith, StringContains)
    ):
        return replace(found, checks=(*found.checks, each))
    return None


def _is_check(each: Filter, kind: type, kinds: tuple[type[Filter], ...]) -> bool:
    """A comparison with known values; with null it would be neither true nor false."""
    if isinstance(each, In):
        return bool(each.value) and all(type(value) is kind for value in each.value)
    return isinstance(each, (*kinds, EqualNullSafe)) and type(getattr(each, "value", None)) is kind


def _holds(check: Filter, each: TopicRange) -> bool:
    if isinstance(check, Not):
        return not _holds(check.child, each)
    (column,) = check.attribute  # type: ignore[attr-defined]
    known: Any = getattr(each, column)
    value: Any = check.value  # type: ignore[attr-defined]
    match check:
        case EqualTo() | EqualNullSafe():
            return bool(known == value)
        case In():
            return known in value
        case GreaterThan():
            return bool(known > value)
        case GreaterThanOrEqual():
            return bool(known >= value)
        case LessThan():
            return bool(known < value)
        case LessThanOrEqual():
            return bool(known <= value)
        case StringStartsWith():
            return bool(known.startswith(value))
        case StringEndsWith():
            return bool(known.endswith(value))
    return value in known


def _push_offset(found: PushedFilters, each: Filter) -> PushedFilters | None:
    value = getattr(each, "value", None)
    if type(value) is not int:
        return None
    match each:
        case EqualTo() | EqualNullSafe():
            return replace(found, first=max(found.first, value), stop=min(found.stop, value + 1))
        case GreaterThan():
            return replace(found, first=max(found.first, value + 1))
        case GreaterThanOrEqual():
            return replace(found, first=max(found.first, value))
        case LessThan():
            return replace(found, stop=min(found.stop, value))
        case LessThanOrEqual():
            return replace(found, stop=min(found.stop, value + 1))
    return None


def _narrow_times(times: TimeBounds, each: Filter) -> TimeBounds:
    """The times that this filter leaves open."""
    if getattr(each, "attribute", None) != ("timestamp",):
        return times
    value = getattr(each, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return times
    at = (value - _FIRST_DAY) // timedelta(microseconds=1)
    match each:
        case EqualTo() | EqualNullSafe():
            return TimeBounds(max(times.first, at), min(times.last, at))
        case GreaterThan() | GreaterThanOrEqual():
            return TimeBounds(max(times.first, at), times.last)
        case LessThan() | LessThanOrEqual():
            return TimeBounds(times.first, min(times.last, at))
    return times
