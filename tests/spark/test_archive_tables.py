"""Tables written and read by Spark: the format `quiver_table`, exactly once."""

import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

import quivermq
from quivermq.lakehouse import Table, compact
from quivermq.spark.table_reader import read_table


def numbers(spark: SparkSession, start: int, end: int, tasks: int = 2) -> DataFrame:
    """Rows of many types, two days, a nested column and one value that folders must escape."""
    return spark.range(start, end, 1, tasks).select(
        F.col("id").alias("offset"),
        F.concat(F.lit("v"), F.col("id").cast("string")).cast("binary").alias("value"),
        F.expr("timestamp_micros(1767225600000000 + id * 1000000)").alias("timestamp"),
        F.expr("if(id % 2 = 0, date'2026-01-01', date'2026-01-02')").alias("date"),
        F.expr("if(id % 3 = 0, 'a/b c', if(id % 3 = 1, 'Österreich', null))").alias("land"),
        F.expr("array(named_struct('key', 'k', 'value', cast('x' as binary)))").alias("headers"),
    )


def rows(frame: DataFrame) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: row.offset)


def put(frame: DataFrame, path: Path, mode: str = "append", **options: Any) -> None:
    frame.write.format("quiver_table").options(**options).mode(mode).save(str(path))


def test_written_rows_are_read_by_both_readers_and_by_day(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    put(numbers(spark, 0, 1_000), path, partitionBy="date")
    put(numbers(spark, 1_000, 1_500, 1), path)
    wanted = rows(numbers(spark, 0, 1_500))
    assert rows(read_table(spark, str(path))) == wanted
    assert rows(spark.read.format("quiver_table").load(str(path))) == wanted
    first = Table.open(path).version - 1
    assert rows(read_table(spark, str(path), version=first)) == wanted[:1_000]
    older = spark.read.format("quiver_table").option("version", first).load(str(path))
    assert rows(older) == wanted[:1_000]
    day = read_table(spark, str(path)).where(F.col("date") == date(2026, 1, 2))
    assert rows(day) == [row for row in wanted if row.date == date(2026, 1, 2)]
    assert "PartitionFilters: [isnotnull(date" in day._jdf.queryExecution().toString()
    put(numbers(spark, 0, 10), path, "overwrite")
    assert rows(read_table(spark, str(path))) == wanted[:10]
    # Two days from two tasks: no more files than that.
    assert len(Table.open(path).file_paths()) <= 4


def test_folders_with_odd_names_are_read_as_they_were_written_also_when_compacted(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "sp ace"
    plain = F.col("land").isNull() | (F.col("land") == "a/b c")
    for frame in (numbers(spark, 0, 30).where(plain), numbers(spark, 0, 30).where(~plain)):
        put(
            frame,
            path,
            partitionBy="land",
            txnAppId="x",
            txnVersion=int(Table.find(path) is not None),
        )
        kept = read_table(spark, str(path)).where(F.col("land").isNotNull())
        assert {row.land for row in rows(kept)} >= {"a/b c"}
    for _ in range(2):
        assert rows(read_table(spark, str(path))) == rows(numbers(spark, 0, 30))
        compact(path, kept_hours=0)
    put(numbers(spark, 0, 30), tmp_path / "ü [a]{b}*", partitionBy="date")
    assert rows(read_table(spark, str(tmp_path / "ü [a]{b}*"))) == rows(numbers(spark, 0, 30))


def test_a_write_with_an_id_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    for version in (1, 1, 2, 1):
        put(numbers(spark, version, version + 1), path, txnAppId="job", txnVersion=version)
    assert [row.offset for row in rows(read_table(spark, str(path)))] == [1, 2]
    # What was not wanted is not left behind either.
    assert len(list(path.rglob("part-*.parquet"))) == 2


def test_an_empty_table_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    put(numbers(spark, 0, 0), path)
    assert rows(read_table(spark, str(path))) == []
    assert rows(spark.read.format("quiver_table").load(str(path))) == []
    assert read_table(spark, str(path)).columns == numbers(spark, 0, 0).columns


@pytest.mark.parametrize(
    ("options", "trouble"),
    [
        ({"partitionBy": "headers"}, "cannot be partitioned by 'headers'"),
        ({"txnAppId": "x"}, "belong together"),
        ({"targetFileSize": "much"}, "targetFileSize must be a whole number"),
        ({"path": "s3://bucket/table"}, "mount the store"),
    ],
)
def test_wrong_options_are_refused_before_a_job_runs(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], trouble: str
) -> None:
    writer = numbers(spark, 0, 1).write.format("quiver_table").mode("append")
    writer = writer.option("path", str(tmp_path / "table")).options(**options)
    with pytest.raises(PySparkException, match=trouble):
        writer.save()


def test_a_task_that_fails_and_is_retried_adds_its_rows_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, flag = tmp_path / "table", tmp_path / "failed"

    def fail_once(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and not flag.exists():
                flag.touch()
                raise RuntimeError("once")

    frame = numbers(spark, 0, 100_000)
    put(frame.mapInArrow(fail_once, frame.schema), path)
    assert flag.exists()
    assert rows(read_table(spark, str(path)).select("offset")) == rows(frame.select("offset"))


def run(spark: SparkSession, source: Path, path: Path, checkpoint: Path) -> None:
    schema = numbers(spark, 0, 0).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    stream = reader.parquet(str(source))
    query = (
        stream.writeStream.format("quiver_table")
        .option("partitionBy", "date")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(path))
    )
    query.awaitTermination(120)


def test_a_stream_whose_batches_are_replayed_adds_each_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, path, checkpoint = tmp_path / "source", tmp_path / "table", tmp_path / "checkpoint"
    for start in range(0, 400, 100):
        numbers(spark, start, start + 100, 1).write.mode("append").parquet(str(source))
    run(spark, source, path, checkpoint)
    assert rows(read_table(spark, str(path))) == rows(numbers(spark, 0, 400))
    version = Table.open(path).version
    # Spark forgets that it committed, as if its driver had died just before.
    for commit in ("3", ".3.crc"):
        (checkpoint / "commits" / commit).unlink(missing_ok=True)
    run(spark, source, path, checkpoint)
    assert Table.open(path).version == version
    numbers(spark, 400, 500, 1).write.mode("append").parquet(str(source))
    run(spark, source, path, checkpoint)
    assert rows(read_table(spark, str(path))) == rows(numbers(spark, 0, 500))
    # Another query adds its own.
    shutil.rmtree(checkpoint)
    run(spark, source, path, checkpoint)
    assert read_table(spark, str(path)).count() == 1_000


def test_a_batch_that_is_planned_again_over_other_rows_raises_and_restores_the_plan(
    spark: SparkSession, client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    path, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    client.create_topic(topic)

    def follow() -> None:
        stream = spark.readStream.format("quiver").option("servers", servers)
        stream = stream.option("subscribe", topic).option("startingOffsets", "earliest")
        query = (
            stream.load()
            .writeStream.format("quiver_table")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(path))
        )
        query.awaitTermination(120)

    for batch in range(2):
        client.produce_many(topic, [b"%d" % n for n in range(batch * 10, batch * 10 + 10)])
        follow()
    for kind in ("commits", "offsets"):
        for name in ("1", ".1.crc"):
            (checkpoint / kind / name).unlink(missing_ok=True)
    client.produce_many(topic, [b"%d" % n for n in range(20, 30)])
    with pytest.raises(PySparkException, match="Its recorded plan was put back"):
        follow()
    follow()
    assert [row.offset for row in rows(read_table(spark, str(path)))] == list(range(30))


def test_a_complete_result_replaces_the_one_before(spark: SparkSession, tmp_path: Path) -> None:
    source, path = tmp_path / "source", tmp_path / "table"
    for end in (100, 200):
        numbers(spark, end - 100, end, 1).write.mode("append").parquet(str(source))
        stream = spark.readStream.schema(numbers(spark, 0, 0).schema).parquet(str(source))
        query = (
            stream.groupBy("date")
            .count()
            .writeStream.format("quiver_table")
            .outputMode("complete")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(path))
        )
        query.awaitTermination(120)
        counts = [row["count"] for row in read_table(spark, str(path)).collect()]
        assert counts == [end // 2] * 2
