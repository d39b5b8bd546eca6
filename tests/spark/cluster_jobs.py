"""What drivers of tests do: functions of a session that return what can be compared."""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def write_numbers(spark: SparkSession, servers: str, topic: str, count: int) -> None:
    """The numbers below `count`, as text, from four tasks."""
    rows = spark.range(0, count, 1, 4).select(F.col("id").cast("string").alias("value"))
    rows.write.format("quiver").option("servers", servers).option("topic", topic).mode(
        "append"
    ).save()


def has_package(spark: SparkSession) -> list[str]:
    """What tasks say when they import our package."""

    def tell(batches: Any) -> Any:
        import importlib.util  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415

        for _ in batches:
            found = importlib.util.find_spec("quivermq")
            yield pa.record_batch({"found": [str(found and found.origin)]})

    return [row.found for row in spark.range(2).mapInArrow(tell, "found string").collect()]
