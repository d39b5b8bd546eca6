"""Replays a range of an archive table to a topic."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from quivermq.errors import InvalidRequest
from quivermq.lakehouse import Table
from quivermq.spark.table_reader import read_table

_NEEDED: Final = ("key", "value", "headers", "priority", "partition", "offset", "timestamp")

Place = int | datetime
"""An offset, or a time."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The messages to replay, and the topic that gets them."""

    path: str
    topic: str
    connection: Mapping[str, str]
    """The options `servers`, `token` and `timeout` of the format `quiver`."""
    partitions: tuple[int, ...] = ()
    """Of the archived topic; empty: all."""
    start: Place | None = None
    end: Place | None = None
    """Behind the last."""
    id: str | None = None
    """Messages that were published under this id are not published again."""
    keep_partitions: bool = False
    keep_timestamps: bool = False

    def rows(self, spark: SparkSession) -> DataFrame:
        """The messages to replay, unordered."""
        table = Table.open(self.path)
        missing = [name for name in _NEEDED if name not in table.schema.names]
        if missing:
            raise InvalidRequest(
                f"the table {self.path} lacks the columns {', '.join(missing)}: only an archive of "
                "whole messages (without --json-columns) can be put back"
            )
        frame = read_table(spark, self.path, table.version)
        if self.partitions:
            frame = frame.where(f.col("partition").isin(*self.partitions))
        for place, is_start in ((self.start, True), (self.end, False)):
            if place is None:
                continue
            column = f.col("offset" if isinstance(place, int) else "timestamp")
            frame = frame.where(column >= place if is_start else column < place)
        return frame

    def run(self, spark: SparkSession) -> None:
        """Publish the messages, each partition in its order."""
        # One task reads a whole partition, so that its messages keep their order.
        frame = (
            self.rows(spark).repartition("partition").sortWithinPartitions("partition", "offset")
        )
        names = ["key", "value", "headers", "priority"]
        names += ["partition"] if self.keep_partitions else []
        names += ["timestamp"] if self.keep_timestamps else []
        writer = frame.select(*names).write.format("quiver").mode("append")
        writer = writer.options(**self.connection).option("topic", self.topic)
        if self.id is not None:
            writer = writer.option("txnAppId", self.id).option("txnVersion", "0")
        writer.save()
