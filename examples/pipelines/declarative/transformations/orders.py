"""Store the orders of a topic in a table, and send the large ones to another topic."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as all of Spark's documentation has it)

spark = SparkSession.active()
SERVERS = os.environ.get("QUIVER_SERVERS", "127.0.0.1:7600")
COLUMNS = "order_id LONG, customer LONG, country STRING, cents LONG, at TIMESTAMP"


@dp.temporary_view
def orders() -> DataFrame:
    """All messages of the topic that can be parsed."""
    topic = (
        spark.readStream.format("quiver")
        .option("servers", SERVERS)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    parsed = topic.select(F.from_json(F.col("value").cast("string"), COLUMNS).alias("row"))
    return parsed.select("row.*").where("order_id IS NOT NULL AND cents IS NOT NULL")


@dp.table
def orders_by_now() -> DataFrame:
    """The same, stored; each run adds the orders since the last."""
    return spark.readStream.table("orders")


dp.create_sink("large_orders", "quiver", {"topic": "large-orders", "servers": SERVERS})


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Orders of 150 and more, as messages."""
    rows = spark.readStream.table("orders").where("cents >= 15000")
    value = F.to_json(F.struct("order_id", "country", "cents"))
    return rows.select(F.col("country").alias("key"), value.alias("value"))
