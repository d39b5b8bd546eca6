"""The parts of a write to a topic as Spark's tasks and driver do it, with and without `txnAppId`.

    python -m benchmarks.spark_writes [--rounds 8] [--size 100] [--rows 2000000]

Two processes stage rows, then this one commits them: the same code as in Spark, without its
scheduler. The two kinds of write take turns; each round is shown, since medians hide slow ones.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType
from rich.console import Console
from rich.table import Table

import quivermq
from benchmarks.quiver import Brokers, cpu_seconds, random_values
from benchmarks.spark_sources import PARTITIONS, rows_per_batch
from quivermq.spark.sink.writers import TopicWriter

IS_LONG = True
TOPIC = "written"
SCHEMA = StructType([StructField("value", BinaryType())])
console = Console(highlight=False)


def stage(pipe: Connection, size: int, rows: int) -> None:
    """In a process of its own: stage the same rows for each writer that comes."""
    count = rows_per_batch(size)
    values = pa.array(random_values(count, size), pa.binary())
    batch = pa.record_batch([values], names=["value"])
    while (writer := pipe.recv()) is not None:
        pipe.send(writer.write(iter([batch] * (rows // PARTITIONS // count))))


def timed(act: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return act(), time.perf_counter() - began


def measure(brokers: Brokers, pipes: list[Connection], rounds: int) -> Table:
    table = Table(title="seconds of a write, in the order of the rounds")
    for name in ("write", "staged", "committed", "together", "broker's processor"):
        table.add_column(name, justify="left" if name == "write" else "right")
    number = 0
    for _ in range(rounds):
        for kind in ("plain", "txnAppId"):
            number += 1
            options = {"servers": brokers.servers, "topic": TOPIC}
            if kind == "txnAppId":
                options |= {"txnAppId": "bench", "txnVersion": str(number)}
            writer = TopicWriter(options, SCHEMA, overwrite=False)
            spent = cpu_seconds(brokers.each[0])
            for pipe in pipes:
                pipe.send(writer)
            staged, staging = timed(lambda: [pipe.recv() for pipe in pipes])
            _, committing = timed(lambda writer=writer, staged=staged: writer.commit(staged))
            spent = cpu_seconds(brokers.each[0]) - spent
            parts = (staging, committing, staging + committing, spent)
            table.add_row(kind, *(f"{part:.2f}" for part in parts))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rows", type=int, default=2_000_000)
    arguments = parser.parse_args()
    fork = multiprocessing.get_context("fork")
    pipes = []
    with ExitStack() as stack:
        for _ in range(PARTITIONS):
            mine, theirs = fork.Pipe()
            what = (theirs, arguments.size, arguments.rows)
            fork.Process(target=stage, args=what, daemon=True).start()
            stack.callback(mine.send, None)
            pipes.append(mine)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-spark-"))
        brokers = stack.enter_context(Brokers(Path(folder), 1))
        with quivermq.connect(brokers.servers, timeout=60.0) as client:
            kept = quivermq.Retention(max_bytes=256 << 20)
            client.create_topic(TOPIC, partitions=PARTITIONS, retention=kept)
        console.print(measure(brokers, pipes, arguments.rounds))
    console.print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
