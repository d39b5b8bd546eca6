"""A driver that copies a topic by Spark and kills itself, and its JVM, at one point of one batch.

    python -m tests.spark.killed_driver SERVERS SOURCE TARGET CHECKPOINT POINT

Run as a process of its own. Points: see `POINTS`; "none": it runs to the end of the source.
"""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pyspark.sql.types import StructType

from quivermq.spark.formats import QuiverFormat
from quivermq.spark.sink.decisions import Decision, DecisionLog
from quivermq.spark.sink.publishing import BatchCommitter, Publisher
from quivermq.spark.sink.writers import StagedRows, TopicStreamWriter
from quivermq.spark.source.stream_reader import TopicStreamReader

POINTS: Final = (
    "before the plan",
    "after the plan",
    "during tasks",
    "after the decision",
    "amidst publishing",
    "after publishing",
    "before Spark's commit",
)


class Fate(NamedTuple):
    """At which point a driver dies, and of which processes it consists."""

    point: str
    processes: str

    def strike(self, point: str) -> None:
        """Kill the JVM and the program that started it, if this is the point."""
        if point == self.point:
            for process in self.processes.split(","):
                os.kill(int(process), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


class KilledFormat(QuiverFormat):
    """The format, with a driver that dies at the point that an option names."""

    @classmethod
    def name(cls) -> str:
        return "quiver_killed"

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        reader = KilledReader(self.options, schema)
        reader.fate = self._fate()
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        writer = KilledWriter(self.options, schema, overwrite=overwrite)
        writer.fate = self._fate()
        return writer

    def _fate(self) -> Fate:
        return Fate(self.options["point"], self.options["processes"])


class KilledReader(TopicStreamReader):
    """A source whose driver dies before or after it plans a batch that is not the first."""

    fate: Fate

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        end = super().latestOffset(start, limit)
        if start and end != start:
            self.fate.strike("before the plan")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        self.fate.strike("after the plan")
        return super().partitions(start, end)


class KilledWriter(TopicStreamWriter):
    """A sink whose driver dies."""

    fate: Fate

    def write(self, iterator: Iterator[Any]) -> StagedRows:
        staged = super().write(iterator)
        if staged.staged:
            self.fate.strike("during tasks")
        return staged

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803  (Spark's name)
        super().commit(messages, batchId)
        self.fate.strike("before Spark's commit")

    def committer(self, query: str) -> BatchCommitter:
        made = super().committer(query)
        made.__class__ = KilledCommitter
        made.fate = self.fate  # type: ignore[attr-defined]
        return made


class KilledCommitter(BatchCommitter):
    """A commit that is not finished."""

    fate: Fate

    def publish(self, log: DecisionLog, decision: Decision) -> None:
        self.fate.strike("after the decision")
        if not decision.is_published:
            staged = log.staged_of(decision)
            publisher = Publisher(self.client, log.producer_id, decision)
            if self.fate.point == "amidst publishing":
                publisher.publish(*next(iter(staged.items())))
                self.fate.strike("amidst publishing")
            if self.fate.point == "after publishing":
                publisher.publish_all(staged)
                self.fate.strike("after publishing")
        super().publish(log, decision)


def main(servers: str, source: str, target: str, checkpoint: str, point: str) -> None:
    """Copy what is in the source, in batches, up to the point."""
    from quivermq.spark import session  # noqa: PLC0415

    options = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    spark = session("local[2]", name="killed", config={"spark.driver.extraJavaOptions": options})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(KilledFormat)
    fate = {"point": point, "processes": f"{spark.sparkContext._gateway.proc.pid},{os.getpid()}"}
    query = (
        spark.readStream.format("quiver_killed")
        .option("servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 400)
        .options(**fate)
        .load()
        .writeStream.format("quiver_killed")
        .option("servers", servers)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .options(**fate)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
