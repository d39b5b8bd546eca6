"""Topics as streams, on a real broker and a real Spark."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import quivermq

Follow = Callable[..., DataFrame]


@pytest.fixture
def follow(spark: SparkSession, servers: str) -> Iterator[Follow]:
    def follow(**options: Any) -> DataFrame:
        reader = spark.readStream.format("quiver").option("servers", servers)
        return reader.options(**options).load()

    yield follow
    for query in spark.streams.active:
        query.stop()


def into(folder: Path, stream: DataFrame, **trigger: Any) -> StreamingQuery:
    """Write a stream to Parquet, with the checkpoint beside it."""
    writer = stream.writeStream.format("parquet").option("path", str(folder / "rows"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(**trigger) if trigger else writer).start()


def values(spark: SparkSession, folder: Path) -> list[int]:
    """What was written, in order."""
    return sorted(int(row.value) for row in spark.read.parquet(str(folder / "rows")).collect())


def ends(progress: Any, topic: str) -> dict[str, int]:
    found = json.loads(progress.sources[0].endOffset)[topic]
    return {key: at for key, at in found.items() if key.isdecimal()}


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def test_a_query_goes_on_where_it_was(
    spark: SparkSession, client: quivermq.Client, topic: str, follow: Follow, tmp_path: Path
) -> None:
    client.create_topic(topic, partitions=2)
    client.produce_many(topic, numbers(0, 50), partition=0)
    client.produce_many(topic, numbers(50, 1000), partition=1)

    def run(**options: Any) -> StreamingQuery:
        stream = follow(subscribe=topic, startingOffsets="earliest", **options)
        query = into(tmp_path, stream, availableNow=True)
        query.awaitTermination()
        return query

    first = run(maxOffsetsPerTrigger=400, group="watchers")
    assert [progress.numInputRows for progress in first.recentProgress] == [400, 400, 200]
    assert values(spark, tmp_path) == list(range(1000))
    assert client.committed(topic, "watchers") == {0: 50, 1: 950}

    client.alter_topic(topic, partitions=3)
    client.produce_many(topic, numbers(1000, 1010), partition=2)
    client.produce_many(topic, numbers(1010, 1020), partition=0)
    second = run()
    assert values(spark, tmp_path) == list(range(1020))
    assert ends(second.lastProgress, topic) == {"0": 60, "1": 950, "2": 10}
    assert [progress.numInputRows for progress in run().recentProgress] in ([], [0])
