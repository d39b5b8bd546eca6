"""Filter pushdown: conditions on topic, partition, offset and timestamp that narrow a read.

Spark does not apply a filter that the reader takes, so only exact filters are taken. Times are not
exact: a message may carry its producer's own time, which may be later than that of its batch. A
stored batch without such times is skipped if its time is outside, and Spark applies the filter too.
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
from quivermq.client import ReadChunk
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

    def may_hold(self, piece: ReadChunk) -> bool:
        """False if every message of the piece is outside these times."""
        header = piece.frame.header
        if header.flags & _OWN_TIMES:
            return True
        return self.first <= header.timestamp_ms * 1000 <= self.last


ALWAYS: Final = TimeBounds()


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The filters that the reader takes from Spark."""

    checks: tuple[Filter, ...] = ()
    """On topic and partition."""
    first: int = 0
    stop: int = _OFFSET_MAX
    """Offsets."""
    times: TimeBounds = field(default=ALWAYS)

    def narrow(self, ranges: Iterable[TopicRange]) -> list[TopicRange]:
        """Narrow ranges to the messages that may match."""
        return [
            replace(each, start=max(each.start, self.first), stop=min(each.stop, self.stop))
            for each in ranges
            if all(_holds(check, each) for check in self.checks)
        ]


def push_filters(filters: Iterable[Filter]) -> tuple[PushedFilters, list[Filter]]:
    """Split filters into those that the reader takes and those that Spark must apply."""
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
    """Add a filter; None if it cannot be taken exactly."""
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
    """Whether this compares with values that are not null."""
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
    """Narrow times by a filter on the timestamp."""
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
