"""Writing to topics on real brokers: where rows go, what they carry, and that repeats are none."""

import os
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import quivermq
from quivermq.client import partition_of


def write(frame: DataFrame, servers: str, **options: object) -> None:
    writer = frame.write.format("quiver").option("servers", servers).mode("append")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def messages(client: quivermq.Client, topic: str) -> list[quivermq.Message]:
    partitions = len(client.topic(topic).partitions)
    return [each for number in range(partitions) for each in client.read(topic, number)]


def system_topics(client: quivermq.Client) -> set[str]:
    return {each.name for each in client.topics() if each.name.startswith("_")}


def test_rows_arrive_once_with_key_headers_and_priority_at_the_partition_of_their_key(
    spark: SparkSession, servers: str, client: quivermq.Client, topic: str
) -> None:
    client.create_topic(topic, partitions=3)
    client.create_topic(f"{topic}.other")
    before = system_topics(client)
    number = f.col("id")
    frame = spark.range(3000, numPartitions=3).select(
        number.cast("string").alias("value"),
        f.when(number % 2 == 0, f.concat(f.lit("k"), number % 7)).cast("binary").alias("key"),
        f.create_map(f.lit("h"), number.cast("string").cast("binary")).alias("headers"),
        (number % 3).cast("int").alias("priority"),
        f.when(number % 10 == 0, f.lit(f"{topic}.other")).alias("topic"),
        f.when(number % 9 == 1, f.lit(0)).alias("partition"),
        f.timestamp_millis(number).alias("timestamp"),
    )
    write(frame, servers, topic=topic)
    found = messages(client, topic) + messages(client, f"{topic}.other")
    assert sorted(int(each.value) for each in found) == list(range(3000))
    for each in found:
        name = int(each.value)
        assert each.topic == (f"{topic}.other" if name % 10 == 0 else topic)
        assert each.key == (b"k%d" % (name % 7) if name % 2 == 0 else None)
        assert each.headers == {"h": b"%d" % name}
        assert (each.priority, each.timestamp) == (name % 3, name)
        if each.topic == topic and name % 9 == 1:
            assert each.partition == 0
        elif each.topic == topic and each.key is not None:
            assert each.partition == partition_of(each.key, 3)
    assert system_topics(client) == before  # nothing is left of a write that is done
    orders: dict[tuple[bytes | None, int], list[int]] = {}
    for each in found:
        if each.topic == topic and each.key is not None and int(each.value) % 9 != 1:
            orders.setdefault((each.key, each.priority), []).append(int(each.value))
    # Rows of one key keep their order in a task, and tasks come one after the other.
    assert len(orders) == 21
    assert all(names == sorted(names) for names in orders.values())


def test_a_write_with_an_identity_happens_once(
    spark: SparkSession, servers: str, client: quivermq.Client, topic: str
) -> None:
    client.create_topic(topic)
    frame = spark.range(10).select(f.col("id").cast("string").alias("value"))
    for version, rows in ((4, 10), (4, 10), (5, 20), (4, 20), (7_000_000_000_000, 30)):
        write(frame, servers, topic=topic, txnAppId="nightly", txnVersion=version)
        assert client.topic(topic).message_count == rows


def test_a_stream_goes_on_where_it_stopped(
    spark: SparkSession, servers: str, client: quivermq.Client, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, partitions=2)
    (tmp_path / "in").mkdir()
    for round_ in range(2):
        for number in range(2):
            lines = range((2 * round_ + number) * 100, (2 * round_ + number + 1) * 100)
            text = "".join(f"{each}\n" for each in lines)
            (tmp_path / "in" / f"{round_}{number}.txt").write_text(text)
        query = (
            spark.readStream.format("text")
            .option("maxFilesPerTrigger", 1)
            .load(str(tmp_path / "in"))
            .writeStream.format("quiver")
            .option("servers", servers)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
    assert sorted(int(each.value) for each in messages(client, topic)) == list(range(400))


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_results_are_appended_in_each_output_mode_that_spark_allows(
    spark: SparkSession,
    servers: str,
    client: quivermq.Client,
    topic: str,
    tmp_path: Path,
    mode: str,
) -> None:
    client.create_topic(topic)
    (tmp_path / "in").mkdir()
    for number, text in enumerate(["a\nb\na\n", "b\n"]):
        (tmp_path / "in" / f"{number}.txt").write_text(text)
        # Spark takes files by their time.
        os.utime(tmp_path / "in" / f"{number}.txt", (1_700_000_000 + number,) * 2)
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    if mode != "append":
        counts = rows.groupBy("value").count()
        rows = counts.selectExpr("concat(value, count) AS value")
    query = (
        rows.writeStream.format("quiver")
        .option("servers", servers)
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = sorted(each.value.decode() for each in messages(client, topic))
    assert (
        found
        == {
            "append": ["a", "a", "b", "b"],
            "complete": ["a2", "a2", "b1", "b2"],
        }[mode]
    )


def test_every_batch_of_a_stream_is_stored_once_by_a_function_that_is_called_again(
    spark: SparkSession, servers: str, client: quivermq.Client, topic: str, tmp_path: Path
) -> None:
    for name in (topic, f"{topic}.too"):
        client.create_topic(name)
    calls: list[int] = []

    def store(frame: DataFrame, batch: int) -> None:
        calls.append(batch)
        for name in (topic, f"{topic}.too"):
            write(frame, servers, topic=name, txnAppId=f"by {topic}", txnVersion=batch)
        if len(calls) == 1:
            raise RuntimeError("stored, and then it failed")

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1\n2\n3\n")
    for _ in range(2):
        writer = spark.readStream.text(str(tmp_path / "in")).writeStream.foreachBatch(store)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        if not calls:
            with pytest.raises(PySparkException, match="and then it failed"):
                query.awaitTermination()
        else:
            query.awaitTermination()
    assert calls == [0, 0]
    for name in (topic, f"{topic}.too"):
        assert sorted(each.value for each in messages(client, name)) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (["id AS value"], {"topic": "t"}, "'value' must be binary or string, not bigint"),
        (["'a' AS value"], {}, "set the option 'topic'"),
        (["'a' AS value"], {"topic": "t", "txnAppId": "x"}, "belong together"),
        (["CAST(NULL AS STRING) AS value"], {"topic": "errors"}, r"row 0 of task \d has no value"),
        (["'a' AS value"], {"topic": "nowhere"}, "there is no topic 'nowhere'"),
    ],
)
def test_rows_that_cannot_be_written_are_refused(
    spark: SparkSession,
    servers: str,
    client: quivermq.Client,
    columns: list[str],
    options: dict[str, str],
    says: str,
) -> None:
    client.create_topic("errors")
    with pytest.raises(PySparkException, match=says):
        write(spark.range(1).selectExpr(*columns), servers, **options)
    assert not messages(client, "errors")


def test_a_topic_is_never_overwritten(spark: SparkSession, servers: str) -> None:
    frame = spark.range(1).selectExpr("'a' AS value")
    with pytest.raises(PySparkException, match=r'use .mode\("append"\)'):
        frame.write.format("quiver").option("servers", servers).option("topic", "t").mode(
            "overwrite"
        ).save()
