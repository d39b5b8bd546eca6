"""Streams into topics when tasks fail and checkpoints go back: no row is lost, none is twice."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import quivermq


class Copy:
    """A query that copies what a topic holds to another, a few rows a batch, and ends."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, checkpoint: Path) -> None:
        self._spark = spark
        self._servers = servers
        self._topic = topic
        self._checkpoint = checkpoint

    def source(self) -> DataFrame:
        reader = self._spark.readStream.format("quiver").option("servers", self._servers)
        reader = reader.option("subscribe", self._topic).option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", 100).load()

    def run(self) -> None:
        query = (
            self.source()
            .writeStream.format("quiver")
            .option("servers", self._servers)
            .option("topic", f"{self._topic}.copy")
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def last_batch(self) -> int:
        return max(int(each.name) for each in self._files("commits"))

    def roll_back(self, *folders: str) -> None:
        """Make Spark forget its last batch."""
        last = self.last_batch()
        for folder in folders:
            (self._checkpoint / folder / str(last)).unlink()
            (self._checkpoint / folder / f".{last}.crc").unlink()

    def _files(self, folder: str) -> Iterator[Path]:
        return (each for each in (self._checkpoint / folder).iterdir() if each.name.isdecimal())


def values(client: quivermq.Client, topic: str) -> list[int]:
    partitions = len(client.topic(topic).partitions)
    return sorted(int(m.value) for place in range(partitions) for m in client.read(topic, place))


def test_a_checkpoint_that_was_rolled_back_repeats_nothing_and_loses_nothing(
    spark: SparkSession, servers: str, client: quivermq.Client, topic: str, tmp_path: Path
) -> None:
    copy = Copy(spark, servers, topic, tmp_path / "checkpoint")
    client.create_topic(topic, partitions=2)
    client.create_topic(f"{topic}.copy", partitions=3)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        client.produce_many(topic, [b"%d" % name for name in range(sent, sent + count)])
        sent += count

    send(250)
    copy.run()
    assert values(client, f"{topic}.copy") == list(range(sent))
    for folders in (("commits",), ("commits", "offsets")):
        copy.roll_back(*folders)
        copy.run()
        assert values(client, f"{topic}.copy") == list(range(sent))
    # The last batch is planned anew, with rows that came after it was published.
    copy.roll_back("commits", "offsets")
    send(30)
    with pytest.raises(StreamingQueryException, match=r"planned anew.*start the query again"):
        copy.run()
    copy.run()
    assert values(client, f"{topic}.copy") == list(range(sent))
    send(170)
    copy.run()
    assert values(client, f"{topic}.copy") == list(range(sent))
    # Two batches back, again with more rows: each plan is put back in its turn.
    copy.roll_back("commits", "offsets")
    copy.roll_back("commits", "offsets")
    send(300)
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="start the query again"):
            copy.run()
    copy.run()
    assert values(client, f"{topic}.copy") == list(range(sent))


def unsteady(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows in another order on every attempt; the first attempts fail when all are yielded."""
    context = TaskContext.get()
    assert context is not None
    attempt = context.attemptNumber()
    shuffle = random.Random(attempt)
    for batch in batches:
        order = list(range(batch.num_rows))
        shuffle.shuffle(order)
        moved: Any = batch.take(pa.array(order))
        yield moved.set_column(1, "key", pa.array([b"%d" % attempt] * batch.num_rows, pa.binary()))
    if attempt < 2:
        raise RuntimeError(f"attempt {attempt} fails when its rows are gone")


def test_a_retried_task_may_yield_other_rows_in_another_order(
    spark: SparkSession, servers: str, client: quivermq.Client, topic: str
) -> None:
    client.create_topic(topic, partitions=3)
    # Enough, in batches small enough, for each attempt to store some rows before it fails.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    frame = spark.range(600, numPartitions=1).selectExpr(
        "rpad(concat(id, ' '), 20000, '.') AS value", "CAST('' AS BINARY) AS key"
    )
    writer = frame.mapInArrow(unsteady, frame.schema).write.format("quiver").mode("append")
    writer = writer.option("txnAppId", topic).option("txnVersion", 0)
    before = client.stats()["messages_produced_total"]
    try:
        writer.option("servers", servers).option("topic", topic).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    # All were staged, and published; and the attempts that failed staged some.
    assert client.stats()["messages_produced_total"] - before > 2 * 600 + 100
    found = [message for place in range(3) for message in client.read(topic, place)]
    assert sorted(int(message.value.split()[0]) for message in found) == list(range(600))
    assert {message.key for message in found} == {b"2"}
