"""Ranges and vectors of offsets: nothing lost, nothing twice, however they are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from quivermq.errors import BrokenInvariant, InvalidRequest
from quivermq.spark.source.offsets import Section, from_json, to_json
from quivermq.spark.source.ranges import TopicRange, cap_rows, range_of, split
from quivermq.spark.source.stream_reader import ranges_between

RANGES = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**6)), max_size=8).map(
    lambda pairs: [
        TopicRange("a", "id", number, start, start + rows)
        for number, (start, rows) in enumerate(pairs)
    ]
)


@given(RANGES, st.none() | st.integers(1, 40), st.none() | st.integers(10**5, 10**6))
def test_a_split_holds_every_message_once(
    ranges: list[TopicRange], partitions_min: int | None, rows_max: int | None
) -> None:
    parts = split(ranges, partitions_min, rows_max)
    for whole in ranges:
        mine = [part for part in parts if part.partition == whole.partition]
        assert sum(part.rows for part in mine) == whole.rows
        assert all(left.stop == right.start for left, right in pairwise(mine))
        assert not mine or (mine[0].start, mine[-1].stop) == (whole.start, whole.stop)
    total = sum(each.rows for each in ranges)
    assert len(parts) >= min(total, partitions_min or 0)
    assert all(0 < part.rows <= (rows_max or total) for part in parts)


@given(RANGES, st.integers(1, 10**6))
def test_a_row_limit_is_used_up_and_shared_by_size(ranges: list[TopicRange], rows_max: int) -> None:
    total = sum(each.rows for each in ranges)
    parts = cap_rows(ranges, rows_max)
    assert sum(part.rows for part in parts) == min(total, rows_max)
    for part, whole in zip(parts, ranges, strict=True):
        assert part.start == whole.start
        assert part.stop <= whole.stop
        assert abs(part.rows - whole.rows * min(1, rows_max / max(total, 1))) <= 1


def test_a_small_range_beside_a_huge_one_does_not_starve() -> None:
    small, huge = TopicRange("a", "", 0, 0, 1), TopicRange("a", "", 1, 0, 10**9)
    assert [part.rows for part in cap_rows([small, huge], 10)] == [1, 9]


VECTORS = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.builds(
        Section,
        id=st.text("0123456789abcdef", max_size=8),
        ends=st.dictionaries(st.integers(0, 1000), st.integers(0, 1 << 62), max_size=4),
        began=st.dictionaries(st.integers(0, 1000), st.integers(0, 1 << 62), max_size=4),
    ),
    max_size=4,
)


@given(VECTORS)
def test_a_vector_survives_a_checkpoint(vector: dict[str, Section]) -> None:
    assert from_json(to_json(vector)) == vector


def test_the_same_vector_is_the_same_text() -> None:
    one = {"b": Section("x", {10: 1, 2: 5}), "a": Section("y", {0: 3}, {0: 2})}
    other = {"a": Section("y", {0: 3}, {0: 2}), "b": Section("x", {2: 5, 10: 1})}
    text = '{"a": {"0": 3, "began": {"0": 2}, "id": "y"}, "b": {"10": 1, "2": 5, "id": "x"}}'
    assert str(to_json(one)) == str(to_json(other)) == text.replace('"', "'")


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": 1},
        {"a": {"0": 1}},
        {"a": {"id": "x", "zero": 1}},
        {"a": {"id": "x", "0": float("inf")}},
    ],
)
def test_a_checkpoint_of_another_source_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="did not write"):
        from_json(wrong)


def test_a_batch_reads_the_messages_between_two_vectors() -> None:
    before = {"a": Section("x", {0: 5, 1: 7}), "gone": Section("z", {0: 9})}
    after = {
        "a": Section("x", {0: 8, 1: 7, 2: 4}, {2: 1}),
        "fresh": Section("y", {0: 3}, {0: 3}),
    }
    ranges = [(each.topic, each.partition, each.start, each.stop) for each in
              ranges_between(before, after) if each.rows]  # fmt: skip
    assert ranges == [("a", 0, 5, 8), ("a", 2, 1, 4)]


def test_a_topic_that_was_created_again_begins_where_the_vector_says() -> None:
    before = {"a": Section("x", {0: 50})}
    after = {"a": Section("y", {0: 8}, {0: 2})}
    (only,) = ranges_between(before, after)
    assert (only.topic_id, only.start, only.stop) == ("y", 2, 8)


def test_only_the_empty_task_of_spark_reads_nothing() -> None:
    assert range_of(InputPartition(None)) is None
    whole = TopicRange("orders", "id", 0, 0, 5)
    assert range_of(whole) is whole
    with pytest.raises(BrokenInvariant, match="two releases"):
        range_of(InputPartition(7))
