"""Processor time that a Python process of Spark takes before and after its work.

    python -m benchmarks.spark_start [--rounds 9]

A streaming query starts a process for its source; what it imports is what a short query waits for.
Spark's daemon runs a full garbage collection after each task: what it takes with all modules that
a task has imported, and with those kept from it as `quivermq.spark` does (decision 0069). No Spark
is started, and only processor time counts, so it holds on a busy machine.
"""

import argparse
import statistics
import subprocess
import sys

from rich.console import Console
from rich.table import Table

SOURCE = """
import time
import pyspark.sql.streaming.python_streaming_source_runner
theirs = time.process_time()
import quivermq.spark.formats, quivermq.spark.source.stream_reader
print(theirs * 1e3, (time.process_time() - theirs) * 1e3)
"""
TASK = """
import gc, time
import pandas, pyspark.worker, quivermq.spark.source.task_reader

def collect():
    began = time.process_time()
    gc.collect()
    return (time.process_time() - began) * 1e3

collect()
before = collect()
gc.freeze()
print(before, collect())
"""
console = Console(highlight=False)


def measure(program: str, rounds: int) -> list[float]:
    """The medians of what the program prints."""
    found = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        found.append([float(each) for each in done.stdout.split()])
    return [statistics.median(column) for column in zip(*found, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    theirs, ours = measure(SOURCE, rounds)
    before, after = measure(TASK, rounds)
    table = Table(title=f"processor milliseconds, medians of {rounds} processes")
    table.add_column("what")
    table.add_column("ms", justify="right")
    table.add_row("the process of a stream's source: Python and PySpark", f"{theirs:.0f}")
    table.add_row("the same: our modules", f"{ours:.0f}")
    table.add_row("collection after a task, all modules walked", f"{before:.1f}")
    table.add_row("collection after a task, modules kept from it", f"{after:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
