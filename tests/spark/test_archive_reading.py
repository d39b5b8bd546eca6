"""One read over table and log, without gap or overlap."""

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import quivermq
from quivermq.lakehouse import compact
from quivermq.spark.archive.archive import Archive, Payload
from quivermq.spark.archive.loop import ArchiveLoop, CommitPolicy
from quivermq.spark.source.options import ReadOptions
from quivermq.spark.source.planning import fetch_held, plan_tasks
from quivermq.spark.source.ranges import TopicRange
from quivermq.spark.source.task_reader import read_batches
from quivermq.testing import Cluster

SMALL = {"tick_ms": 50, "segment_bytes": 64 << 10, "retention_interval_ms": 50}
Row = tuple[int, int, bytes, bytes]


def read(spark: SparkSession, cluster: Cluster, topic: str, **options: Any) -> DataFrame:
    reader = spark.read.format("quiver").option("servers", cluster.servers)
    return reader.option("subscribe", topic).options(**options).load()


def rows(frame: DataFrame) -> list[Row]:
    found = frame.select("partition", "offset", "key", "value").collect()
    return sorted((r.partition, r.offset, bytes(r.key), bytes(r.value)) for r in found)


class Sender:
    """Fills two partitions and knows what they hold."""

    def __init__(self, client: quivermq.Client, topic: str) -> None:
        self._client, self._topic = client, topic
        self.sent: list[Row] = []

    def send(self, batches: int) -> None:
        for _ in range(batches):
            for number in range(2):
                start = sum(row[0] == number for row in self.sent)
                values = [b"%d/%d " % (number, start + n) + bytes(3_000) for n in range(10)]
                keys = [b"k%d" % (start + n) for n in range(10)]
                self._client.produce_many(self._topic, values, keys=keys, partition=number)
                self.sent += [
                    (number, start + n, key, value)
                    for n, (key, value) in enumerate(zip(keys, values, strict=True))
                ]

    def expected(self) -> list[Row]:
        return sorted(self.sent)


def starts(client: quivermq.Client, topic: str) -> list[int]:
    return [part.start_offset for part in client.topic(topic).partitions]


def test_a_read_spans_table_and_log_in_batch_and_stream_by_offset_and_time(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    with Cluster(nodes=1, settings=SMALL) as cluster, cluster.connect() as client:
        kept = quivermq.Retention(max_messages=30, keep_until_archived=True)
        client.create_topic(topic, partitions=2, retention=kept)
        sender = Sender(client, topic)
        archive = Archive(topic, str(path), {"servers": cluster.servers})
        loop = ArchiveLoop(spark, client, archive, CommitPolicy())
        sender.send(5)
        loop.run_once()
        time.sleep(0.01)
        moment_ms = time.time_ns() // 1_000_000
        time.sleep(0.01)
        sender.send(10)
        loop.run_once()
        cluster.wait_until(
            lambda: all(start > 60 for start in starts(client, topic)), "nothing is dropped"
        )
        sender.send(3)
        both = {"archive": str(path)}
        assert rows(read(spark, cluster, topic, **both)) == sender.expected()
        assert rows(read(spark, cluster, topic, **both, minPartitions=7)) == sender.expected()
        # From the middle of what only the table has, to the middle of what only the log has.
        part = read(
            spark,
            cluster,
            topic,
            **both,
            startingOffsets=f'{{"{topic}": {{"0": 17, "1": 33}}}}',
            endingOffsets=f'{{"{topic}": {{"0": 160, "1": 40}}}}',
        )
        assert rows(part) == [
            row for row in sender.expected() if (17, 33)[row[0]] <= row[1] < (160, 40)[row[0]]
        ]
        late = read(spark, cluster, topic, **both, startingTimestamp=moment_ms)
        assert rows(late) == [row for row in sender.expected() if row[1] >= 50]
        with pytest.raises(PySparkException, match="are lost"):
            read(spark, cluster, topic, startingOffsets=f'{{"{topic}": {{"0": 0}}}}').collect()
        compact(path, kept_hours=0)
        follow(spark, cluster, topic, path, tmp_path / "checkpoint", tmp_path / "copy")
        sender.send(2)
        follow(spark, cluster, topic, path, tmp_path / "checkpoint", tmp_path / "copy")
        assert rows(spark.read.parquet(str(tmp_path / "copy"))) == sender.expected()
        check_overtaken(client, cluster, topic, loop, sender, path)


def follow(
    spark: SparkSession, cluster: Cluster, topic: str, path: Path, checkpoint: Path, copy: Path
) -> None:
    """A stream through all there is."""
    stream = spark.readStream.format("quiver").option("servers", cluster.servers)
    stream = stream.option("subscribe", topic).option("startingOffsets", "earliest")
    stream = stream.option("maxOffsetsPerTrigger", 150).option("archive", str(path))
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(copy))
    )
    assert query.awaitTermination(120)


def check_overtaken(
    client: quivermq.Client,
    cluster: Cluster,
    topic: str,
    loop: ArchiveLoop,
    sender: Sender,
    path: Path,
) -> None:
    """Retention overtakes a task between planning and reading: the table has what is gone."""
    from pyspark.sql.types import (  # noqa: PLC0415
        BinaryType,
        IntegerType,
        LongType,
        StructField,
        StructType,
    )

    schema = StructType(
        [
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
        ]
    )
    given = {"servers": cluster.servers, "subscribe": topic, "archive": str(path)}
    options = ReadOptions.of(given, is_stream=False)
    info = client.topic(topic)
    ranges = [
        TopicRange(topic, info.id, part.partition, 0, part.end_offset) for part in info.partitions
    ]
    tasks = plan_tasks(options, ranges, fetch_held(client, options, [topic]))
    wanted = sender.expected()
    before = starts(client, topic)
    sender.send(10)
    loop.run_once()
    cluster.wait_until(
        lambda: min(starts(client, topic)) > max(before) + 50, "nothing more is dropped"
    )
    found = [
        tuple(row.values())
        for task in tasks
        for batch in read_batches(task, options, schema)  # type: ignore[arg-type]
        for row in batch.to_pylist()
    ]
    assert sorted(found) == wanted


def test_tables_that_are_no_archive_of_the_topic_are_refused(
    spark: SparkSession, client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic)
    client.produce(topic, b'{"id": 1}')
    reader = spark.read.format("quiver").option("servers", servers).option("subscribe", topic)
    with pytest.raises(PySparkException, match="there is no table in"):
        reader.option("archive", str(tmp_path / "none")).load().collect()
    payload = Payload("id BIGINT", str(tmp_path / "bad"))
    archive = Archive(topic, str(tmp_path / "json"), {"servers": servers}, payload=payload)
    ArchiveLoop(spark, client, archive, CommitPolicy()).run_once()
    with pytest.raises(PySparkException, match="lacks the columns value"):
        reader.option("archive", str(tmp_path / "json")).load().collect()
