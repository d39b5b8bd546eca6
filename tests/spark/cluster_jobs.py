"""What drivers of tests do: functions of a session that return what can be compared."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

HELD_S = 60.0


def write_numbers(spark: SparkSession, servers: str, topic: str, count: int) -> None:
    """The numbers below `count`, as text, from four tasks."""
    rows = spark.range(0, count, 1, 4).select(F.col("id").cast("string").alias("value"))
    options = {"servers": servers, "topic": topic}
    rows.write.format("quiver").options(**options).mode("append").save()


def read_values(spark: SparkSession, servers: str, topic: str) -> list[bytes]:
    rows = spark.read.format("quiver").options(servers=servers, subscribe=topic).load()
    return sorted(bytes(row.value) for row in rows.select("value").collect())


def table_round_trip(spark: SparkSession, path: str, count: int) -> list[int]:
    """The numbers below `count`, from a table that they were written to."""
    spark.range(0, count, 1, 2).write.format("quiver_table").mode("append").save(path)
    return sorted(row.id for row in spark.read.format("quiver_table").load(path).collect())


def copy_stream(
    spark: SparkSession, servers: str, source: str, target: str, checkpoint: str, signs: str = ""
) -> None:
    """All that is there of one topic onto another, batch by batch; see `hold`."""
    read = {"servers": servers, "subscribe": source, "startingOffsets": "earliest"}
    rows = spark.readStream.format("quiver").options(**read).load()
    values = rows.select("value")
    if signs:
        values = values.mapInArrow(holding(signs), "value binary")
    options = {"servers": servers, "topic": target, "checkpointLocation": checkpoint}
    query = values.writeStream.format("quiver").options(**options)
    query.trigger(availableNow=True).start().awaitTermination()


def copy_once(spark: SparkSession, servers: str, source: str, target: str, signs: str) -> None:
    """The same with a batch job."""
    rows = spark.read.format("quiver").options(servers=servers, subscribe=source).load()
    values = rows.select("value").mapInArrow(holding(signs), "value binary")
    options = {"servers": servers, "topic": target}
    values.write.format("quiver").options(**options).mode("append").save()


def holding(signs: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What stops all attempts at the first task in their middle, until there is a sign.

    In the folder `signs`, `<task>-<attempt>` is there from an attempt's middle on and holds its
    process id; `done-<task>-<attempt>` from its end on. `go` lets them go on. Later
    attempts yield their rows the other way round.
    """
    folder = Path(signs)

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        rows = list(batches)
        if attempt:
            rows = [batch.take(list(range(batch.num_rows - 1, -1, -1))) for batch in rows[::-1]]
        middle = len(rows) - 1
        yield from rows[:middle]
        sign = folder / f"{task}-{attempt}"
        sign.with_suffix(".part").write_text(str(os.getpid()))
        sign.with_suffix(".part").rename(sign)
        end = time.monotonic() + HELD_S
        while task == 0 and not (folder / "go").exists():
            assert time.monotonic() < end, "no sign came"
            time.sleep(0.01)
        yield from rows[middle:]
        (folder / f"done-{task}-{attempt}").touch()

    return hold


def package_of_tasks(spark: SparkSession) -> list[str]:
    """Where tasks find our package."""

    def tell(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib.util  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415

        for _ in batches:
            found = importlib.util.find_spec("quivermq")
            yield pa.record_batch({"found": [str(found and found.origin)]})

    return [row.found for row in spark.range(2).mapInArrow(tell, "found string").collect()]
