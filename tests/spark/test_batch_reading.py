"""Topics as tables, on a real broker and a real Spark: every message once, as it was stored."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import quivermq

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, servers: str) -> Read:
    def read(**options: Any) -> DataFrame:
        reader = spark.read.format("quiver").option("servers", servers)
        return reader.options(**options).load()

    return read


def test_rows_are_the_messages(client: quivermq.Client, topic: str, read: Read) -> None:
    client.create_topic(topic, partitions=2)
    client.produce(topic, b"alone", partition=0)
    client.produce(topic, b"full", key=b"k", headers={"a": b"1", "b": b""}, priority=3, partition=1)
    when = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    stamped = pa.table(
        {"value": [b"old"], "timestamp": pa.array([when], pa.timestamp("ms", "UTC"))}
    )
    client.produce_many(topic, stamped, partition=1)

    found = read(subscribe=topic, includeHeaders=True).orderBy("partition", "offset").collect()

    stored = [message for number in (0, 1) for message in client.read(topic, number)]
    assert [tuple(row)[:5] for row in found] == [
        (message.key, message.value, topic, message.partition, message.offset) for message in stored
    ]
    assert [row.priority for row in found] == [0, 3, 0]
    assert [row.headers and [tuple(each) for each in row.headers] for row in found] == [
        None,
        [("a", b"1"), ("b", b"")],
        None,
    ]
    # Spark hands out times as naive ones, of the zone of this process.
    seen = [int(row.timestamp.timestamp() * 1000 + 0.5) for row in found]
    assert seen == [message.timestamp for message in stored]


def test_every_message_is_read_once_however_it_is_split(
    client: quivermq.Client, topic: str, read: Read
) -> None:
    client.create_topic(topic, partitions=3)
    client.produce_many(topic, [b"%d" % number for number in range(30_000)], partition=0)
    client.produce_many(topic, [b"%d" % number for number in range(30_000, 30_010)], partition=1)
    for number in range(30_010, 30_030):
        client.produce(topic, b"%d" % number, partition=1)

    table = read(subscribe=topic, minPartitions=7)

    assert table.rdd.getNumPartitions() >= 7
    assert sorted(int(row.value) for row in table.collect()) == list(range(30_030))
    narrow = read(subscribe=topic, columns="offset, partition")
    assert narrow.columns == ["offset", "partition"]
    assert narrow.groupBy("partition").count().orderBy("partition").collect() == [
        (0, 30_000),
        (1, 30),
    ]


def test_offsets_and_patterns_say_what_is_read(
    client: quivermq.Client, topic: str, read: Read
) -> None:
    for name in (f"{topic}.a", f"{topic}.b", f"{topic}.c"):
        client.create_topic(name)
        client.produce_many(name, [b"%d" % number for number in range(10)])

    both = read(subscribePattern=rf"{topic}\.[ab]")
    assert {row.topic: row["count"] for row in both.groupBy("topic").count().collect()} == {
        f"{topic}.a": 10,
        f"{topic}.b": 10,
    }
    part = read(
        subscribe=f"{topic}.a",
        startingOffsets=f'{{"{topic}.a": {{"0": 3}}}}',
        endingOffsets=f'{{"{topic}.a": {{"0": 6}}}}',
    )
    assert [row.offset for row in part.collect()] == [3, 4, 5]
    assert read(subscribePattern="nobody").count() == 0


def test_a_read_error_is_one_line(topic: str, read: Read) -> None:
    with pytest.raises(PySparkException, match=f"there is no topic '{topic}'"):
        read(subscribe=topic).count()
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        read(subscribe=topic, startingOffset="earliest").count()


def test_filters_spare_reading_and_change_nothing(
    spark: SparkSession, client: quivermq.Client, topic: str, read: Read
) -> None:
    client.create_topic(topic, partitions=4)
    for number in range(4):
        client.produce_many(topic, [b"%d" % each for each in range(100)], partition=number)
        time.sleep(0.002)
    with client.read(topic, 1) as reader:
        taken = datetime.fromtimestamp(next(reader).timestamp / 1000, UTC).isoformat()

    def once() -> DataFrame:
        return read(subscribe=topic, filterPushdown=True)

    some = once().filter("partition in (1, 3) and offset >= 90 and value <> '95'")
    assert some.rdd.getNumPartitions() == 2
    assert sorted((row.partition, row.offset) for row in some.collect()) == [
        (number, each) for number in (1, 3) for each in range(90, 100) if each != 95
    ]
    assert once().filter(f"topic = '{topic}' and offset = 7").count() == 4
    assert once().filter(f"timestamp >= '{taken}'").count() == 300
    assert once().filter("partition = 0 or offset = 0").count() == 103

    # Without the option a DataFrame may be used as often as one likes.
    often = read(subscribe=topic)
    assert often.filter("offset = 7").count() == 4
    assert often.filter("partition = 0 or offset = 0").count() == 103
    assert often.count() == 400

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert once().filter("partition = 1 and offset >= 90").count() == 10
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
