"""Which columns are taken and where rows go: without Spark, without brokers."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from quivermq.client import partition_of
from quivermq.errors import InvalidRequest
from quivermq.spark.sink.columns import MessageColumns
from quivermq.spark.sink.destinations import Destination, Dispatcher

PARTITIONS = {"one": 1, "three": 3}


ENTRY = StructType().add("key", StringType()).add("value", BinaryType())
TYPES: dict[str, DataType] = {
    "STRING": StringType(),
    "BINARY": BinaryType(),
    "TINYINT": ByteType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "DOUBLE": DoubleType(),
    "TIMESTAMP": TimestampType(),
    "MAP": MapType(StringType(), BinaryType()),
    "MAP_OF_INT": MapType(IntegerType(), BinaryType()),
    "ENTRIES": ArrayType(ENTRY),
    "STRINGS": ArrayType(StringType()),
    "OTHER_ENTRIES": ArrayType(StructType().add("k", StringType()).add("v", BinaryType())),
}


def schema(text: str) -> StructType:
    """Spark reads such text only where it runs."""
    made = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        made = made.add(name, TYPES[kind])
    return made


def dispatched(
    ddl: str, columns: dict[str, Any], topic: str | None = "three"
) -> list[tuple[Destination, Any]]:
    dispatcher = Dispatcher(MessageColumns.of(schema(ddl), topic), PARTITIONS.__getitem__)
    return list(dispatcher.dispatch(pa.record_batch(columns)))


def rows(found: list[tuple[Destination, Any]]) -> list[tuple[str, int, int, bytes]]:
    """What went where: topic, partition, priority, value."""
    return [(*place, value) for place, part in found for value in part.column("value").to_pylist()]


def test_keys_decide_the_partition_and_rows_of_one_place_keep_their_order() -> None:
    keys = [b"%d" % (n % 5) for n in range(50)]
    values = [f"{n}" for n in range(50)]
    found = dispatched("value STRING, key BINARY", {"value": values, "key": keys})
    assert len(found) == len({place for place, _ in found})
    rows_of = zip(keys, values, strict=True)
    expected = [("three", partition_of(key, 3), 0, value.encode()) for key, value in rows_of]
    expected.sort(key=lambda row: row[1])
    assert rows(found) == expected


def test_a_given_partition_goes_before_the_key_and_topics_and_priorities_are_told_apart() -> None:
    found = dispatched(
        "topic STRING, value STRING, key STRING, partition INT, priority TINYINT",
        {
            "topic": ["one", None, None, None, "one"],
            "value": ["a", "b", "c", "d", "e"],
            "key": [None, "k", "k", None, None],
            "partition": pa.array([None, None, 2, 1, None], pa.int32()),
            "priority": pa.array([None, 1, 1, 7, 3], pa.int8()),
        },
    )
    places = {row[3]: row[:3] for row in rows(found)}
    assert places == {
        b"a": ("one", 0, 0),
        b"b": ("three", partition_of(b"k", 3), 1),
        b"c": ("three", 2, 1),
        b"d": ("three", 1, 7),
        b"e": ("one", 0, 3),
    }


def test_rows_without_a_key_take_turns_by_the_megabyte() -> None:
    columns = MessageColumns.of(schema("value BINARY"), "three")
    dispatcher = Dispatcher(columns, PARTITIONS.__getitem__)
    batch = pa.record_batch({"value": [b"x" * 600_000]})
    turns = [place.partition for _ in range(12) for place, _ in dispatcher.dispatch(batch)]
    assert {turns.count(partition) for partition in range(3)} == {4}
    assert all(turns[n] == turns[n + 1] for n in range(0, 12, 2))


def test_all_parts_of_a_message_are_written() -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    kinds = pa.map_(pa.string(), pa.binary())
    for headers in (
        pa.array([[("a", b"1"), ("b", b"2")], None, []], kinds),
        pa.array([[{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], None, []]),
    ):
        kind = "MAP" if headers.type == kinds else "ENTRIES"
        ((_, part),) = dispatched(
            f"Value STRING, headers {kind}, timestamp TIMESTAMP, noise DOUBLE",
            {
                "Value": ["a", "b", "c"],
                "headers": headers,
                "timestamp": pa.array([moment] * 3, pa.timestamp("us", tz="Etc/UTC")),
                "noise": [0.5] * 3,
            },
            "one",
        )
        assert part.schema.names == ["value", "headers", "timestamp"]
        assert part.column("headers").to_pylist() == [
            [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}],
            None,
            [],
        ]
        assert part.column("timestamp").to_pylist() == [moment] * 3


def test_rows_as_the_source_yields_them_go_where_the_option_says() -> None:
    found = dispatched(
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT",
        {"key": [None], "value": [b"a"], "topic": ["elsewhere"], "partition": [9], "offset": [7]},
        "one",
    )
    assert rows(found) == [("one", 0, 0, b"a")]


@pytest.mark.parametrize(
    ("ddl", "topic", "says"),
    [
        ("value BIGINT", "t", "'value' must be binary or string, not bigint: cast it"),
        ("text STRING", "t", "a column 'value'.*The columns are: text. Try to_json"),
        ("value STRING", None, "set the option 'topic'"),
        ("value STRING, VALUE STRING", "t", "'value' is there twice"),
        ("value STRING, headers MAP_OF_INT", "t", "'headers' must be array<struct"),
        ("value STRING, headers STRINGS", "t", "'headers' must be array<struct"),
        ("value STRING, headers OTHER_ENTRIES", "t", "'headers' must be"),
        ("value STRING, timestamp STRING", "t", "'timestamp' must be timestamp, not string"),
        ("value STRING, partition STRING", "t", "'partition' must be int"),
        ("value STRING, topic INT", "t", "'topic' must be string"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_before_the_job(
    ddl: str, topic: str | None, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        MessageColumns.of(schema(ddl), topic)


@pytest.mark.parametrize(
    ("ddl", "columns", "says"),
    [
        ("value STRING", {"value": ["a", None]}, r"row 1 of task 0 has no value \(NULL\)"),
        (
            "value STRING, topic STRING",
            {"value": ["a", "b"], "topic": ["one", None]},
            r"row 1 of task 0 names no topic",
        ),
        (
            "value STRING, topic STRING, priority INT",
            {"value": ["a"], "topic": ["one"], "priority": [8]},
            "a priority is 0 to 7; a row has 8",
        ),
        (
            "value STRING, topic STRING, partition INT",
            {"value": ["a", "b"], "topic": ["three"] * 2, "partition": [0, 3]},
            "'three' has the partitions 0 to 2; a row wants 3",
        ),
        (
            "value STRING, topic STRING, partition INT",
            {"value": ["a", "b"], "topic": ["three"] * 2, "partition": [0, -2]},
            "a row wants -2",
        ),
    ],
)
def test_a_row_that_cannot_be_written_is_named(
    ddl: str, columns: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        dispatched(ddl, columns, None if "topic" in columns else "one")
