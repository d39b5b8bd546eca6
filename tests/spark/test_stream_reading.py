"""Topics as streams, on a real broker and a real Spark."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import quivermq
from quivermq.testing import Cluster

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


def test_a_query_reads_new_messages_partitions_and_topics(
    spark: SparkSession, client: quivermq.Client, topic: str, follow: Follow, tmp_path: Path
) -> None:
    client.create_topic(f"{topic}.a")
    client.produce(f"{topic}.a", b"-1")
    stream = follow(subscribePattern=rf"{topic}\..*", columns="value,topic,partition")
    query = into(tmp_path, stream, processingTime="100 milliseconds")

    def wait_seen(count: int) -> None:
        deadline = time.monotonic() + 60
        while sum(progress.numInputRows for progress in query.recentProgress) < count:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    while query.lastProgress is None:  # it begins at the latest: from here on all is read
        time.sleep(0.02)
    client.produce_many(f"{topic}.a", numbers(0, 10))
    wait_seen(10)
    client.alter_topic(f"{topic}.a", partitions=2)
    client.produce_many(f"{topic}.a", numbers(10, 20), partition=1)
    client.create_topic(f"{topic}.b")
    client.produce_many(f"{topic}.b", numbers(20, 30))
    wait_seen(30)
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 10
    assert query.exception() is None
    assert values(spark, tmp_path) == list(range(30))


def test_a_query_that_retention_overtook_fails_or_goes_on_as_it_was_told(
    spark: SparkSession, topic: str, follow: Follow, tmp_path: Path
) -> None:
    settings = {"tick_ms": 50, "segment_bytes": 64 << 10, "retention_interval_ms": 20}
    with Cluster(nodes=1, settings=settings) as cluster, cluster.connect() as client:
        client.create_topic(topic, retention=quivermq.Retention(max_messages=20))
        client.produce_many(topic, numbers(0, 10))

        def run(**options: Any) -> None:
            options |= {"servers": cluster.servers, "startingOffsets": "earliest"}
            query = into(tmp_path, follow(subscribe=topic, **options), availableNow=True)
            query.awaitTermination()

        run()
        made = 10
        while client.offsets(topic).partitions[0].start <= 10:
            # So large that a segment is full soon.
            client.produce_many(topic, [b"%04000d" % made for made in range(made, made + 20)])
            made += 20
        with pytest.raises(StreamingQueryException, match=f"{topic}/0: offsets 10 to .* are lost"):
            run()
        assert values(spark, tmp_path) == list(range(10))
        run(failOnDataLoss=False)
        kept = client.offsets(topic).partitions[0].start
        assert values(spark, tmp_path) == [*range(10), *range(kept, made)]
