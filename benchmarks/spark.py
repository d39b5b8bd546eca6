"""Spark over topics: reading, writing, micro-batches, and what the brokers pay for it.

    python -m benchmarks.spark [--rounds 5] [--only reads,archive,writes,streams,brokers]

Reads stand beside a source that yields the same rows from memory, as Arrow and as tuples; writes
beside a writer that drops what it gets; micro-batches beside Spark's `rate-micro-batch`. What is
compared takes turns, and the median counts.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import quivermq
from benchmarks.quiver import Brokers
from benchmarks.spark_sources import PARTITIONS, register_by_value, rows_per_batch
from quivermq.lakehouse import Table as DeltaTable
from quivermq.spark import Archive, session

IS_LONG = True
ROWS = {100: 2_000_000, 1_000: 400_000}
TUPLE_SHARE = 10
"""Tuples are slow: a tenth of the rows tells."""
LATENCY_BATCHES = 40
IDLE_SECONDS = 5.0
console = Console(highlight=False)


class Line(NamedTuple):
    """One figure beside its reference."""

    what: str
    ours: float
    reference: float
    unit: str
    target: float | None = None

    @property
    def ratio(self) -> float:
        return self.ours / self.reference

    @property
    def settlement(self) -> str:
        if self.target is None:
            return ""
        return "met" if self.ratio >= self.target else "MISSED"


class Report:
    """Lines by section."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def show(self, title: str, lines: list[Line]) -> None:
        self.lines += lines
        table = Table(title=title, title_justify="left")
        for name in ("what", "topic", "reference", "", "ratio", "target", ""):
            table.add_column(name, justify="left" if name == "what" else "right")
        for line in lines:
            target = "" if line.target is None else f"≥ {line.target:g}"
            table.add_row(
                line.what,
                f"{line.ours:,.4g}",
                f"{line.reference:,.4g}",
                line.unit,
                f"{line.ratio:.2f}",
                target,
                line.settlement,
            )
        console.print(table)


def in_turns(rounds: int, **steps: Callable[[], float]) -> dict[str, float]:
    """The median of each step's figure, after one turn that only warms up."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            figure = step()
            if turn:
                found[name].append(figure)
    return {name: statistics.median(counters) for name, counters in found.items()}


def rate_of(rows: int, act: Callable[[], object]) -> float:
    """Thousands of rows a second."""
    began = time.perf_counter()
    act()
    return rows / (time.perf_counter() - began) / 1e3


# ---- reading


def fill(client: quivermq.Client, topic: str, size: int, rows: int, **settings: Any) -> None:
    client.create_topic(topic, partitions=PARTITIONS, **settings)
    count = rows_per_batch(size)
    noise = os.urandom(count * size)
    values = pa.array([noise[at : at + size] for at in range(0, len(noise), size)], pa.binary())
    for partition in range(PARTITIONS):
        for _ in range(rows // PARTITIONS // count):
            client.produce_many(topic, values, partition=partition)


def measure_reads(spark: SparkSession, servers: str, rounds: int, report: Report) -> None:
    for size, rows in ROWS.items():
        topic = f"read-{size}"
        with quivermq.connect(servers, timeout=30.0) as client:
            fill(client, topic, size, rows)
        few = rows // TUPLE_SHARE

        def ours(topic: str = topic) -> DataFrame:
            reader = spark.read.format("quiver").option("servers", servers)
            return reader.option("subscribe", topic).load()

        def made_up(kind: str, rows: int, size: int = size) -> DataFrame:
            reader = spark.read.format(f"made_up_{kind}").option("rows", rows)
            return reader.option("size", size).load()

        for sink, act in (("count()", _count), ("Parquet", _to_parquet)):
            found = in_turns(
                rounds,
                ours=lambda act=act, rows=rows: rate_of(rows, lambda: act(ours(), rows)),
                arrow=lambda act=act, rows=rows: rate_of(
                    rows, lambda: act(made_up("arrow", rows), rows)
                ),
                tuples=lambda act=act, few=few: rate_of(
                    few, lambda: act(made_up("tuples", few), few)
                ),
            )
            to = f"{size} B to {sink}"
            report.show(
                f"reading {rows:,} messages of {to}",
                [
                    Line(f"{to}, beside Arrow", found["ours"], found["arrow"], "krows/s", 0.5),
                    Line(f"{to}, beside tuples", found["ours"], found["tuples"], "krows/s", 4),
                ],
            )


def _count(frame: DataFrame, rows: int) -> None:
    counted = frame.count()
    if counted != rows:
        raise SystemExit(f"{counted:,} rows came instead of {rows:,}")


def _to_parquet(frame: DataFrame, rows: int) -> None:  # noqa: ARG001  (as `_count`)
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
        frame.write.mode("overwrite").parquet(f"{folder}/out")


# ---- archiving


def measure_archive(spark: SparkSession, servers: str, rounds: int, report: Report) -> None:
    """Into a Delta table, beside Spark's own way of writing the same topic to Parquet."""
    lines = []
    with quivermq.connect(servers, timeout=30.0) as client:
        for size, rows in ROWS.items():
            topic = f"archived-{size}"
            fill(client, topic, size, rows)
            reader = spark.read.format("quiver").option("servers", servers)
            frame = reader.option("subscribe", topic).option("includeHeaders", "true").load()

            def archived(topic: str = topic, rows: int = rows) -> float:
                with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
                    archive = Archive(topic, f"{folder}/table", {"servers": servers})
                    pending = archive.pending(client, bytes_max=1 << 40)
                    found = rate_of(rows, lambda: archive.write(spark, pending))
                    held = DeltaTable.open(f"{folder}/table").count()
                    if held != rows:
                        raise SystemExit(f"{held:,} rows are in the table instead of {rows:,}")
                    return found

            found = in_turns(
                rounds,
                ours=archived,
                parquet=lambda frame=frame, rows=rows: rate_of(
                    rows, lambda: _to_parquet(frame, rows)
                ),
            )
            what = f"{rows:,} messages of {size} B"
            lines.append(Line(what, found["ours"], found["parquet"], "krows/s"))
    report.show("archiving a topic, beside spark.read to Parquet", lines)


# ---- writing


def measure_writes(spark: SparkSession, servers: str, rounds: int, report: Report) -> None:
    lines = []
    with quivermq.connect(servers, timeout=30.0) as client:
        for size, rows in ROWS.items():
            frame = spark.read.format("made_up_arrow").option("rows", rows).option("size", size)
            cached = frame.load().select("value").cache()
            cached.count()
            topic = f"written-{size}"

            def to_topic(topic: str = topic, cached: DataFrame = cached, rows: int = rows) -> float:
                client.create_topic(topic, partitions=PARTITIONS)
                writer = cached.write.format("quiver").mode("append").option("servers", servers)
                found = rate_of(rows, writer.option("topic", topic).save)
                stored = client.topic(topic).message_count
                if stored != rows:
                    raise SystemExit(f"{stored} messages were stored instead of {rows:,}")
                client.delete_topic(topic)
                return found

            def dropped(cached: DataFrame = cached, rows: int = rows) -> float:
                return rate_of(rows, cached.write.format("dropping").mode("append").save)

            found = in_turns(rounds, ours=to_topic, dropping=dropped)
            cached.unpersist()
            what = f"{rows:,} rows of {size} B"
            lines.append(Line(what, found["ours"], found["dropping"], "krows/s", 0.5))
    report.show("writing to a topic, beside a writer that drops", lines)


# ---- micro-batches


def measure_streams(spark: SparkSession, servers: str, report: Report) -> None:
    with quivermq.connect(servers, timeout=30.0) as client:
        client.create_topic("ticks")
        with _ticking(client, "ticks"):
            reader = spark.readStream.format("quiver").option("servers", servers)
            ours = _batch_ms(reader.option("subscribe", "ticks").load())
            arrivals = _arrival_ms(reader.option("subscribe", "ticks").load())
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
        reference = _batch_ms(rate.option("numPartitions", 1).load())
    # Lower is better: the ratio is turned round.
    lines = [
        Line("batches/s, one task, no sink", 1e3 / ours, 1e3 / reference, "1/s"),
    ]
    report.show("micro-batches, beside Spark's rate-micro-batch", lines)
    arrivals.sort()
    console.print(
        f"a batch takes {ours:.0f} ms (rate-micro-batch: {reference:.0f} ms); from produce to the "
        f"driver's hands p50 {arrivals[len(arrivals) // 2]:.0f} ms, "
        f"p99 {arrivals[int(len(arrivals) * 0.99)]:.0f} ms"
    )


@contextmanager
def _ticking(client: quivermq.Client, topic: str) -> Iterator[None]:
    """A message with the time in it, every few milliseconds."""
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.005):
            client.produce(topic, str(time.time()).encode())

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _batch_ms(frame: DataFrame) -> float:
    """The median time of a micro-batch that has rows."""
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).start()
        try:
            times: list[int] = []
            seen = -1
            while len(times) < LATENCY_BATCHES:
                time.sleep(0.02)
                for progress in query.recentProgress:
                    found = json.loads(progress.json)
                    if found["batchId"] > seen and found["numInputRows"]:
                        seen = found["batchId"]
                        times.append(found["durationMs"]["triggerExecution"])
        finally:
            query.stop()
    # The first ones warm up.
    return statistics.median(times[LATENCY_BATCHES // 4 :])


def _arrival_ms(frame: DataFrame) -> list[float]:
    """How old each message is when the driver has it."""
    ages: list[float] = []
    batches = 0

    def take(batch: DataFrame, number: int) -> None:
        nonlocal batches
        values = batch.select("value").toArrow().column("value").to_pylist()
        batches += 1
        if number > 5:
            ages.extend((time.time() - float(value)) * 1e3 for value in values)

    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
        options = frame.writeStream.option("checkpointLocation", folder)
        query = options.foreachBatch(take).start()
        try:
            while batches < LATENCY_BATCHES:
                time.sleep(0.05)
        finally:
            query.stop()
    return ages


# ---- what brokers pay


def measure_brokers(spark: SparkSession, folder: Path, report: Report) -> None:
    """Processor time of a leader and its followers, while Spark reads and while it waits."""
    rows = ROWS[100]
    with Brokers(folder, 3) as brokers, quivermq.connect(brokers.servers, timeout=30.0) as client:
        fill(client, "followed", 100, rows, replication=3)
        for partition in range(PARTITIONS):
            client.transfer("followed", partition, to=1)
        processes = [psutil.Process(each.process.pid) for each in brokers.each]
        lines = []
        for reads in ("true", "false"):
            reader = spark.read.format("quiver").option("servers", brokers.servers)
            frame = reader.option("subscribe", "followed").option("followerReads", reads).load()
            _count(frame, rows)
            settled_leases = _settled_leases(processes, lambda frame=frame: _count(frame, rows))
            where = "followers" if reads == "true" else "the leader"
            lines.append(
                Line(
                    f"reads from {where}: leader, followers",
                    settled_leases[0],
                    sum(settled_leases[1:]),
                    "CPU s",
                )
            )
        report.show(f"brokers' processor time, {rows:,} messages of 100 B read by Spark", lines)
        idle = _settled_leases(processes, lambda: time.sleep(IDLE_SECONDS))
        waiting = _spent_waiting(spark, brokers.servers, processes)
        line = Line("Spark waits, nobody waits", sum(waiting), sum(idle), "CPU s")
        report.show(f"all brokers, {IDLE_SECONDS:g} s without messages", [line])


def _settled_leases(processes: list[psutil.Process], act: Callable[[], object]) -> list[float]:
    before = [sum(process.cpu_times()[:2]) for process in processes]
    act()
    return [
        sum(process.cpu_times()[:2]) - start
        for process, start in zip(processes, before, strict=True)
    ]


def _spent_waiting(
    spark: SparkSession, servers: str, processes: list[psutil.Process]
) -> list[float]:
    reader = spark.readStream.format("quiver").option("servers", servers)
    frame = reader.option("subscribe", "followed").option("startingOffsets", "latest").load()
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).start()
        try:
            time.sleep(3.0)
            return _settled_leases(processes, lambda: time.sleep(IDLE_SECONDS))
        finally:
            query.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="reads,archive,writes,streams,brokers")
    arguments = parser.parse_args()
    wanted = set(arguments.only.split(","))
    spark = session(f"local[{PARTITIONS}]", name="benchmarks")
    register_by_value(spark)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
        with Brokers(Path(folder) / "one", 1) as brokers:
            if "reads" in wanted:
                measure_reads(spark, brokers.servers, arguments.rounds, report)
            if "archive" in wanted:
                measure_archive(spark, brokers.servers, arguments.rounds, report)
            if "writes" in wanted:
                measure_writes(spark, brokers.servers, arguments.rounds, report)
            if "streams" in wanted:
                measure_streams(spark, brokers.servers, report)
        if "brokers" in wanted:
            measure_brokers(spark, Path(folder) / "three", report)
    console.print(f"medians of {arguments.rounds} interleaved rounds; fsync always; local[2]")
    spark.stop()


if __name__ == "__main__":
    main()
