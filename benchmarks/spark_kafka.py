"""The format `quiver` beside Spark's own Kafka connector, over the same messages, in turns.

    python -m benchmarks.spark_kafka [--rounds 5] [--sizes 100,1000] [--only count,parquet,...]
    python -m benchmarks.spark_kafka --steps

`QUIVER_KAFKA_JARS` names a folder with the jars of Kafka 4, `QUIVER_SPARK_KAFKA_JARS` one with the
connector (`spark-sql-kafka-0-10`, `spark-token-provider-kafka-0-10`, `kafka-clients`,
`commons-pool2`); without them the connector is left out, and only our figures are shown. One
broker each on loopback, ours with its default of fsync before an acknowledgement, Kafka's with its
default of the page cache; fetches and batches of the connector are large. `--steps` shows what
Spark says of the parts of a micro-batch instead.

Processor time is that of Spark, its Python and the broker together: it holds on a busy machine.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import quivermq
from benchmarks.compare.kafka import Kafka, flush, produce_waiting
from benchmarks.compare.system import NotInstalled, family
from benchmarks.quiver import Brokers
from benchmarks.spark_sources import PARTITIONS, register_by_value, rows_per_batch
from quivermq.spark import session

IS_LONG = True
ROWS = {100: 2_000_000, 1_000: 400_000}
CONNECTOR_VARIABLE = "QUIVER_SPARK_KAFKA_JARS"
MICRO_BATCHES = 10
TARGET = 1.2
KEPT_BYTES = 512 << 20
FETCH = {
    "kafka.max.partition.fetch.bytes": 8 << 20,
    "kafka.fetch.max.bytes": 32 << 20,
    "kafka.max.poll.records": 50_000,
    "kafka.receive.buffer.bytes": 4 << 20,
}
SEND = {
    "kafka.batch.size": 1 << 20,
    "kafka.linger.ms": 10,
    "kafka.buffer.memory": 128 << 20,
    "kafka.send.buffer.bytes": 4 << 20,
    "kafka.max.request.size": 16 << 20,
}
console = Console(highlight=False, width=150)


class Figures(NamedTuple):
    """Of one piece of work."""

    seconds: float
    cpu_s: float


class KafkaBroker(Kafka):
    """One broker whose topics have as many partitions as ours."""

    @property
    def servers(self) -> str:
        return self._servers

    def make_topic(self, topic: str, settings: dict[str, Any] | None = None) -> None:
        from confluent_kafka.admin import NewTopic  # noqa: PLC0415  (not everywhere)

        config = {name: str(value) for name, value in (settings or {}).items()}
        made = self._admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])
        made[topic].result(30)

    def fill(self, topic: str, size: int, rows: int) -> None:
        self.make_topic(topic)
        producer = self._producer()
        noise = os.urandom(10_000 * size)
        values = [noise[at : at + size] for at in range(0, len(noise), size)]
        for number in range(rows):
            # Runs, as a sticky partitioner makes them.
            partition = number // rows_per_batch(size) % PARTITIONS
            produce_waiting(_On(producer, partition), topic, values[number % len(values)])
        flush(producer)

    def end(self, topic: str) -> int:
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415

        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "count"})
        try:
            limits = [
                consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)
                for number in range(PARTITIONS)
            ]
        finally:
            consumer.close()
        return sum(end for _, end in limits)


class _On:
    """A producer that names the partition."""

    def __init__(self, producer: Any, partition: int) -> None:
        self._producer, self._partition = producer, partition
        self.poll = producer.poll

    def produce(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value, partition=self._partition)


class Side:
    """A format of Spark, and the broker behind it."""

    name = ""
    read_options: dict[str, Any]
    write_options: dict[str, Any]

    def __init__(self, spark: SparkSession, pids: list[int]) -> None:
        self.spark = spark
        self._pids = pids

    def topic(self, size: int) -> str:
        return f"read-{size}"

    def frame(self, size: int) -> DataFrame:
        reader = self.spark.read.format(self.name).options(**self.read_options)
        return reader.option("subscribe", self.topic(size)).load()

    def stream(self, size: int, rows_max: int | None) -> DataFrame:
        reader = self.spark.readStream.format(self.name).options(**self.read_options)
        reader = reader.option("startingOffsets", "earliest")
        if rows_max:
            reader = reader.option("maxOffsetsPerTrigger", rows_max)
        return reader.option("subscribe", self.topic(size)).load()

    def make_topic(self, topic: str) -> None:
        raise NotImplementedError

    def end(self, topic: str) -> int:
        """How many messages it ever had."""
        raise NotImplementedError

    def cpu_s(self) -> float:
        """Of the broker, of Spark, and of the processes that Spark started, the ended ones too."""
        jvm = self.spark.sparkContext._gateway.proc.pid  # noqa: SLF001
        found = 0.0
        for pid in {*self._pids, *(each.pid for each in family(jvm)), os.getpid()}:
            with suppress(psutil.NoSuchProcess):
                times = psutil.Process(pid).cpu_times()
                found += times.user + times.system
                if pid != os.getpid():
                    found += times.children_user + times.children_system
        return found


class Quiver(Side):
    name = "quiver"

    def __init__(self, spark: SparkSession, brokers: Brokers) -> None:
        super().__init__(spark, [each.process.pid for each in brokers.each])
        self.read_options = self.write_options = {"servers": brokers.servers}
        self.client = quivermq.connect(brokers.servers, timeout=60.0)

    def make_topic(self, topic: str) -> None:
        retention = quivermq.Retention(max_bytes=KEPT_BYTES)
        self.client.create_topic(topic, partitions=PARTITIONS, retention=retention)

    def end(self, topic: str) -> int:
        return sum(each.end for each in self.client.offsets(topic).partitions.values())


class Connector(Side):
    name = "kafka"

    def __init__(self, spark: SparkSession, kafka: KafkaBroker) -> None:
        super().__init__(spark, [each.pid for pid in kafka.pids() for each in family(pid)])
        servers = {"kafka.bootstrap.servers": kafka.servers}
        self.read_options, self.write_options = servers | FETCH, servers | SEND
        self._kafka = kafka

    def make_topic(self, topic: str) -> None:
        self._kafka.make_topic(topic, {"retention.bytes": KEPT_BYTES, "segment.bytes": 128 << 20})

    def end(self, topic: str) -> int:
        return self._kafka.end(topic)


class Work:
    """One row of the table, for each side."""

    def __init__(self, spark: SparkSession, size: int, cached: DataFrame) -> None:
        self._spark = spark
        self._size = size
        self._rows = ROWS[size]
        self._cached = cached
        self._writes = 0

    def count(self, side: Side) -> Figures:
        frame = side.frame(self._size)
        figures, found = _timed(side, frame.count)
        self._check(side, found)
        return figures

    def parquet(self, side: Side) -> Figures:
        frame = side.frame(self._size)
        with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
            return _timed(side, lambda: frame.write.parquet(f"{folder}/out"))[0]

    def stream(self, side: Side) -> Figures:
        return self._stream(side, None)

    def microbatches(self, side: Side) -> Figures:
        return self._stream(side, self._rows // MICRO_BATCHES)

    def write(self, side: Side) -> Figures:
        return self._write(side, {})

    def identified(self, side: Side) -> Figures:
        """A write that may be repeated; the connector has no such thing, so it writes as ever."""
        self._writes += 1
        return self._write(side, {"txnAppId": "bench", "txnVersion": str(self._writes)})

    def _write(self, side: Side, more: dict[str, str]) -> Figures:
        # One topic for all writes: a producer of Kafka keeps asking for those that are deleted.
        topic, before = f"written-{self._size}", side.end(f"written-{self._size}")
        writer = self._cached.write.format(side.name).mode("append").option("topic", topic)
        if isinstance(side, Quiver):
            writer = writer.options(**more)
        figures, _ = _timed(side, writer.options(**side.write_options).save)
        self._check(side, side.end(topic) - before)
        return figures

    def _stream(self, side: Side, rows_max: int | None) -> Figures:
        frame = side.stream(self._size, rows_max)
        with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
            writer = frame.writeStream.format("parquet").option("path", f"{folder}/out")
            writer = writer.option("checkpointLocation", f"{folder}/state")
            writer = writer.trigger(availableNow=True)
            figures, query = _timed(side, lambda: _run(writer))
            self._check(side, sum(each["numInputRows"] for each in progress_of(query)))
        return figures

    def _check(self, side: Side, rows: int) -> None:
        if rows != self._rows:
            raise SystemExit(f"{side.name}: {rows:,} rows instead of {self._rows:,}")


WORK = ("count", "parquet", "stream", "microbatches", "write", "identified")
TITLES = {
    "count": "batch to count()",
    "parquet": "batch to Parquet",
    "stream": "availableNow to Parquet, one micro-batch",
    "microbatches": f"availableNow to Parquet, {MICRO_BATCHES} micro-batches",
    "write": "writing a DataFrame",
    "identified": "writing with txnAppId",
}


def _run(writer: Any) -> Any:
    query = writer.start()
    query.awaitTermination()
    return query


def progress_of(query: Any) -> list[dict[str, Any]]:
    return [json.loads(each.json) for each in query.recentProgress]


def _timed(side: Side, act: Callable[[], Any]) -> tuple[Figures, Any]:
    cpu, began = side.cpu_s(), time.perf_counter()
    found = act()
    return Figures(time.perf_counter() - began, side.cpu_s() - cpu), found


def measure(
    spark: SparkSession, sides: list[Side], sizes: list[int], names: list[str], rounds: int
) -> None:
    table = Table(title="thousands of rows a second, and processor seconds per million rows")
    for name in (
        "what",
        "quiver",
        "kafka",
        "ratio",
        "best",
        "",
        "quiver CPU",
        "kafka CPU",
        "ratio",
    ):
        table.add_column(name, justify="left" if name == "what" else "right")
    for size in sizes:
        frame = spark.read.format("made_up_arrow").option("rows", ROWS[size])
        cached = frame.option("size", size).load().select("value").cache()
        cached.count()
        for side in sides:
            side.make_topic(f"written-{size}")
        work = Work(spark, size, cached)
        for name in names:
            found: dict[str, list[Figures]] = {side.name: [] for side in sides}
            for turn in range(rounds + 1):
                for side in sides if turn % 2 else sides[::-1]:
                    figures = getattr(work, name)(side)
                    if turn:
                        found[side.name].append(figures)
            table.add_row(f"{size} B, {TITLES[name]}", *_cells(ROWS[size], found))
            seconds = {key: [f"{each.seconds:.2f}" for each in of] for key, of in found.items()}
            console.print(size, name, seconds)
        cached.unpersist()
    console.print(table)


def _cells(rows: int, found: dict[str, list[Figures]]) -> list[str]:
    def median(name: str, field: str) -> float:
        return statistics.median(getattr(each, field) for each in found[name])

    def rate(seconds: float) -> float:
        return rows / seconds / 1e3

    ours, our_cpu = median("quiver", "seconds"), median("quiver", "cpu_s") / rows * 1e6
    if "kafka" not in found:
        return [f"{rate(ours):,.0f}", "", "", "", "", f"{our_cpu:.2f}", "", ""]
    theirs, their_cpu = median("kafka", "seconds"), median("kafka", "cpu_s") / rows * 1e6
    best = {name: min(each.seconds for each in of) for name, of in found.items()}
    return [
        f"{rate(ours):,.0f}",
        f"{rate(theirs):,.0f}",
        f"{theirs / ours:.2f}",
        f"{best['kafka'] / best['quiver']:.2f}",
        "met" if theirs / ours >= TARGET else "MISSED",
        f"{our_cpu:.2f}",
        f"{their_cpu:.2f}",
        f"{their_cpu / our_cpu:.2f}",
    ]


def show_steps(sides: list[Side], sizes: list[int], rounds: int) -> None:
    """What Spark says of the parts of a micro-batch: medians of all but the first of a query."""
    table = Table(title="milliseconds of a micro-batch to Parquet, as Spark reports them")
    names = (
        "latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets", "commitBatch",
        "triggerExecution",
    )  # fmt: skip
    table.add_column("what")
    for name in (*names, "query"):
        table.add_column(name, justify="right")
    for size in sizes:
        for side in sides:
            parts: dict[str, list[float]] = {name: [] for name in (*names, "query")}
            for _ in range(rounds):
                _one_query(side, size, parts)
            cells = [f"{statistics.median(of):,.0f}" if of else "-" for of in parts.values()]
            table.add_row(f"{size} B, {side.name}", *cells)
    console.print(table)


def _one_query(side: Side, size: int, parts: dict[str, list[float]]) -> None:
    frame = side.stream(size, ROWS[size] // MICRO_BATCHES)
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder:
        writer = frame.writeStream.format("parquet").option("path", f"{folder}/out")
        writer = writer.option("checkpointLocation", f"{folder}/state")
        began = time.perf_counter()
        query = _run(writer.trigger(availableNow=True))
        parts["query"].append((time.perf_counter() - began) * 1e3)
        for each in progress_of(query)[1:]:
            for name, duration in each["durationMs"].items():
                parts.setdefault(name, []).append(duration)


def fill(client: quivermq.Client, topic: str, size: int, rows: int) -> None:
    from benchmarks.spark import fill as fill_topic  # noqa: PLC0415  (it starts nothing)

    fill_topic(client, topic, size, rows)


def start(stack: ExitStack, sizes: list[int], *, alone: bool) -> tuple[SparkSession, list[Side]]:
    """Spark, the brokers, and what is read from them."""
    kafka = None
    jars = sorted(Path(os.environ.get(CONNECTOR_VARIABLE) or "/nowhere").glob("*.jar"))
    try:
        if alone or not any("spark-sql-kafka" in jar.name for jar in jars):
            raise NotInstalled(f"{CONNECTOR_VARIABLE} does not name a folder with the connector")
        kafka = stack.enter_context(KafkaBroker(nodes=1, fsync=False))
    except NotInstalled as error:
        console.print(f"Spark's Kafka connector is left out: {error}")
    config = {"spark.driver.memory": "3g"}
    if kafka:
        config["spark.jars"] = ",".join(map(str, jars))
    spark = session(f"local[{PARTITIONS}]", name="benchmarks", config=config)
    stack.callback(spark.stop)
    register_by_value(spark)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-spark-")))
    ours = Quiver(spark, stack.enter_context(Brokers(folder, 1)))
    stack.callback(ours.client.close)
    sides: list[Side] = [ours]
    for size in sizes:
        fill(ours.client, ours.topic(size), size, ROWS[size])
        if kafka:
            kafka.fill(ours.topic(size), size, ROWS[size])
    if kafka:
        sides.append(Connector(spark, kafka))
    return spark, sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="100,1000")
    parser.add_argument("--only", default=",".join(WORK))
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without Kafka")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    with ExitStack() as stack:
        spark, sides = start(stack, sizes, alone=arguments.alone)
        if arguments.steps:
            show_steps(sides, sizes, arguments.rounds)
        else:
            measure(spark, sides, sizes, arguments.only.split(","), arguments.rounds)
    console.print(f"medians of {arguments.rounds} rounds in turns; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
