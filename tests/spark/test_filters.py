"""Filters that are taken from Spark: exactly, or not at all."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from quivermq.batches import DEFAULT_LIMITS, encode_batch
from quivermq.client import ReadChunk
from quivermq.spark.source.filters import push_filters
from quivermq.spark.source.ranges import TopicRange

RANGES = [TopicRange(topic, "", number, 10, 20) for topic in ("ax", "b") for number in range(3)]
TOPIC, PARTITION, OFFSET, TIME = ("topic",), ("partition",), ("offset",), ("timestamp",)


@pytest.mark.parametrize(
    ("taken", "left"),
    [
        (EqualTo(PARTITION, 1), ["ax/1", "b/1"]),
        (EqualNullSafe(PARTITION, 1), ["ax/1", "b/1"]),
        (In(PARTITION, (0, 2)), ["ax/0", "ax/2", "b/0", "b/2"]),
        (Not(In(PARTITION, (0, 2))), ["ax/1", "b/1"]),
        (GreaterThan(PARTITION, 1), ["ax/2", "b/2"]),
        (GreaterThanOrEqual(PARTITION, 2), ["ax/2", "b/2"]),
        (LessThan(PARTITION, 1), ["ax/0", "b/0"]),
        (LessThanOrEqual(PARTITION, 0), ["ax/0", "b/0"]),
        (EqualTo(TOPIC, "b"), ["b/0", "b/1", "b/2"]),
        (Not(EqualTo(TOPIC, "b")), ["ax/0", "ax/1", "ax/2"]),
        (StringStartsWith(TOPIC, "a"), ["ax/0", "ax/1", "ax/2"]),
        (StringEndsWith(TOPIC, "x"), ["ax/0", "ax/1", "ax/2"]),
        (StringContains(TOPIC, "b"), ["b/0", "b/1", "b/2"]),
    ],
)
def test_topics_and_partitions_are_chosen(taken: Filter, left: list[str]) -> None:
    found, rest = push_filters([taken, IsNotNull(PARTITION)])
    assert not rest
    assert [f"{each.topic}/{each.partition}" for each in found.narrow(RANGES)] == left


def test_offsets_are_bounded() -> None:
    found, rest = push_filters([GreaterThan(OFFSET, 11), LessThanOrEqual(OFFSET, 15)])
    assert not rest
    assert {(each.start, each.stop) for each in found.narrow(RANGES)} == {(12, 16)}
    found, _ = push_filters(
        [EqualTo(OFFSET, 12), GreaterThanOrEqual(OFFSET, 5), LessThan(OFFSET, 99)]
    )
    assert {(each.start, each.stop) for each in found.narrow(RANGES)} == {(12, 13)}
    found, _ = push_filters([LessThan(OFFSET, 3)])
    assert all(each.rows <= 0 for each in found.narrow(RANGES))


@pytest.mark.parametrize(
    "other",
    [
        EqualTo(PARTITION, None),
        Not(In(PARTITION, (1, None))),
        In(PARTITION, ()),
        In(OFFSET, (1, 2)),
        Not(EqualTo(OFFSET, 1)),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), "x"),
        GreaterThan(TOPIC, "a"),
        IsNull(PARTITION),
        IsNotNull(("key",)),
        GreaterThan(TIME, datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_filters_that_are_not_exact_are_left_to_spark(other: Filter) -> None:
    found, rest = push_filters([other])
    assert rest == [other]
    assert found.narrow(RANGES) == RANGES


def test_stored_batches_outside_the_times_are_skipped_unless_messages_have_their_own() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def piece(at: datetime, *, own: bool = False) -> ReadChunk:
        at_ms = int(at.timestamp() * 1000)
        frame = encode_batch([b"x"], timestamps=[at_ms] if own else None)
        stamped = frame.stamped(term=1, index=1, base_offset=0, timestamp_ms=at_ms)
        return ReadChunk(stamped, 0, 1, DEFAULT_LIMITS)

    found, rest = push_filters([GreaterThanOrEqual(TIME, noon), LessThan(TIME, noon)])
    assert len(rest) == 2
    tick = timedelta(milliseconds=1)
    times = found.times
    assert times.may_hold(piece(noon))
    assert not times.may_hold(piece(noon - tick))
    assert not times.may_hold(piece(noon + tick))
    assert times.may_hold(piece(noon + tick, own=True))
