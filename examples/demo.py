"""A tour in a minute: a cluster, a million messages, leaders killed under load while a group works,
and a Spark pipeline into a lakehouse table.

    make demo        or        python -m examples.demo [--messages N] [--kills N] [--no-spark]
    make demo KEEP=1           python -m examples.demo --keep

Starts three brokers on free ports in a temporary directory, and leaves nothing behind. With --keep
on a terminal, the brokers and their portal stay up afterwards, until Ctrl-C. The exit
code is 0 only if every acknowledged message was found again, once, at its offset, the group has
finished every one, and the table holds each of them once.
"""

import argparse
import contextlib
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

import quivermq
from quivermq.cli.local_access import LocalAccess
from quivermq.cli.local_portal import LocalPortal
from quivermq.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 3
SIZE = 100
console = Console(highlight=False)


@dataclass
class Acknowledged:
    """Messages that the cluster acknowledged: values by partition and offset."""

    values: dict[tuple[int, int], bytes] = field(default_factory=dict)
    slowest_s: float = 0.0


@dataclass
class Finished:
    """Messages that workers of a group have acknowledged, so that they never come again."""

    places: set[tuple[int, int]] = field(default_factory=set)
    returned: int = 0
    """Deliveries of a message whose first consumer lost its lease."""
    again: int = 0
    """Deliveries after the acknowledgement: there must be none."""


@dataclass
class Report:
    """Collects the figures and prints them at the end."""

    rows: list[tuple[str, str]] = field(default_factory=list)

    def add(self, what: str, figure: str) -> None:
        self.rows.append((what, figure))
        console.print(f"  [green]✓[/] {what}: [bold]{figure}[/]")

    def show(self) -> None:
        table = Table(title="QuiverMQ demo", title_justify="left", show_header=False)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)


def bulk(client: quivermq.Client, report: Report, count: int) -> None:
    """Produce many messages in one call, and read them back as Arrow."""
    values = [b"%0*d" % (SIZE, number) for number in range(count)]
    began = time.perf_counter()
    client.produce_many("bulk", values, partition=0)
    took = time.perf_counter() - began
    report.add("stored on a majority, fsynced", f"{count:,} messages, {count / took:,.0f} a second")
    began = time.perf_counter()
    found = sum(batch.num_rows for batch in client.read("bulk", partition=0).batches())
    took = time.perf_counter() - began
    if found != count:
        raise SystemExit(f"{found:,} of {count:,} messages came back")
    report.add("read back as Arrow", f"{found:,} messages, {found / took:,.0f} a second")


def produce_until(
    stop: threading.Event, client: quivermq.Client, name: bytes, acknowledged: Acknowledged
) -> None:
    """Produce one message after another, each acknowledged; the client does all retries."""
    number = 0
    while not stop.is_set():
        value = b"%s-%d" % (name, number)
        began = time.perf_counter()
        receipt = client.produce("orders", value, partition=number % PARTITIONS)
        acknowledged.slowest_s = max(acknowledged.slowest_s, time.perf_counter() - began)
        acknowledged.values[receipt.partition, receipt.offset] = value
        number += 1


def work_until(
    stop: threading.Event, client: quivermq.Client, finished: Finished, known: Finished
) -> None:
    """Poll, work, acknowledge; after `stop`, go on until the group has finished everything.

    If a broker dies with the answer to a poll, its messages come back when their lease expires.
    """
    while not (stop.is_set() and is_finished(client)):
        messages = client.poll("orders", group="billing", wait=0.5, visibility=5.0)
        finished.again += sum((m.partition, m.offset) in known.places for m in messages)
        finished.returned += sum(m.delivery_count > 1 for m in messages)
        try:
            client.ack(messages)
        except quivermq.LeaseLost:
            continue  # another worker has some of them, and finishes those
        known.places.update((m.partition, m.offset) for m in messages)


def is_finished(client: quivermq.Client) -> bool:
    group = client.group("orders", "billing")
    return not (group.lag or group.in_flight or group.delayed)


def under_fire(cluster: Cluster, client: quivermq.Client, report: Report, kills: int) -> None:
    """Kill the leader of partition 0 with -9, again and again, while producers work."""
    stop, acknowledged = threading.Event(), [Acknowledged() for _ in range(2)]
    threads = [
        threading.Thread(target=produce_until, args=(stop, client, b"p%d" % number, mine))
        for number, mine in enumerate(acknowledged)
    ]
    finished, known, no_more = [Finished(), Finished()], Finished(), threading.Event()
    workers = [
        threading.Thread(target=work_until, args=(no_more, client, mine, known))
        for mine in finished
    ]
    for thread in threads + workers:
        thread.start()
    for _ in range(kills):
        time.sleep(2)
        victim = cluster.nodes[cluster.leader("orders", 0)]
        victim.kill()
        console.print(f"    killed node {victim.id}, leader of orders/0, with -9")
        time.sleep(1.5)
        victim.start()
    time.sleep(1)
    stop.set()
    for thread in threads:
        thread.join()
    promised = {place: value for mine in acknowledged for place, value in mine.values.items()}
    slowest = max(mine.slowest_s for mine in acknowledged)
    report.add("acknowledged while leaders died", f"{len(promised):,} messages; kills: {kills}")
    report.add("longest that a producer waited", f"{slowest:.1f} s")
    check(client, promised, report)
    no_more.set()
    for worker in workers:
        worker.join()
    check_group(client, promised, finished, known, report)


def check_group(
    client: quivermq.Client,
    promised: dict[tuple[int, int], bytes],
    finished: list[Finished],
    known: Finished,
    report: Report,
) -> None:
    """Check that the group has finished everything, and that no message came after its ack."""
    group = client.group("orders", "billing")
    left = [place for place in promised if place not in known.places]
    again = sum(mine.again for mine in finished)
    if left or again or group.lag or group.in_flight:
        raise SystemExit(f"UNFINISHED: {len(left)}, {again} came again after their ack; {group}")
    returned = sum(mine.returned for mine in finished)
    report.add("finished by two workers of a group", f"{len(known.places):,} messages")
    report.add("delivered again after its ack", f"none; {returned} whose lease was lost before")


def check(client: quivermq.Client, promised: dict[tuple[int, int], bytes], report: Report) -> None:
    """Check that every acknowledged message is there, once, at its offset."""
    found = orders_of(client)
    lost = [place for place, value in promised.items() if found.get(place) != value]
    if lost:
        raise SystemExit(f"LOST: {len(lost)} acknowledged messages, the first at {lost[0]}")
    if len(set(found.values())) != len(found):
        raise SystemExit("a message is there twice")
    report.add("lost, moved or doubled", f"none of {len(promised):,}")


def orders_of(client: quivermq.Client) -> dict[tuple[int, int], bytes]:
    return {
        (partition, message.offset): message.value
        for partition in range(PARTITIONS)
        for message in client.read("orders", partition=partition)
    }


def with_spark(cluster: Cluster, client: quivermq.Client, report: Report, count: int) -> None:
    """Read the same topics as tables and streams of Spark."""
    from quivermq.pipelines import log_to  # noqa: PLC0415
    from quivermq.spark import session  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.perf_counter()
        with log_to(name):
            spark = session(servers=cluster.servers)
        report.add("a Spark session", f"after {time.perf_counter() - began:.1f} s")
        try:
            bulk = spark.read.format("quiver").option("subscribe", "bulk").load()
            bulk.limit(1).count()  # the first job also starts Python
            began = time.perf_counter()
            found, took = bulk.count(), time.perf_counter() - began
            if found != count:
                raise SystemExit(f"Spark counts {found:,} of {count:,} messages")
            report.add("counted by Spark", f"{found:,} messages, {found / took:,.0f} a second")
            into_a_table(spark, cluster, client, report, folder)
        finally:
            spark.stop()


def into_a_table(
    spark: "SparkSession", cluster: Cluster, client: quivermq.Client, report: Report, folder: Path
) -> None:
    """Stream the topic into a Delta table while a leader dies; write totals back to a topic."""
    from quivermq.spark import read_table  # noqa: PLC0415

    expected = orders_of(client)
    stream = spark.readStream.format("quiver").option("subscribe", "orders")
    stream = stream.option("startingOffsets", "earliest")
    stream = stream.option("maxOffsetsPerTrigger", len(expected) // 5 + 1)
    rows = stream.load().selectExpr(
        "partition", "offset", "value", "split(cast(value AS string), '-')[0] AS producer"
    )
    place, checkpoint = str(folder / "table"), str(folder / "checkpoint")
    writer = rows.writeStream.format("quiver_table").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start(place)
    while query.isActive and not query.recentProgress:
        time.sleep(0.05)
    victim = cluster.nodes[cluster.leader("orders", 0)]
    victim.kill()
    console.print(f"    killed node {victim.id}, leader of orders/0, while Spark reads from it")
    time.sleep(1)
    victim.start()
    query.awaitTermination()
    batches = len(query.recentProgress)
    table = read_table(spark, place)
    held = table.collect()
    if {(row.partition, row.offset): bytes(row.value) for row in held} != expected:
        raise SystemExit("the table is not what the topic is")
    if len(held) != len(expected):
        raise SystemExit("a row is in the table twice")
    report.add("streamed into a table", f"{len(held):,} rows in {batches} commits, each once")
    table.createOrReplaceTempView("orders")
    client.create_topic("totals")
    totals = spark.sql("SELECT producer AS key, string(count(*)) AS value FROM orders GROUP BY 1")
    totals.write.format("quiver").option("topic", "totals").mode("append").save()
    counts = {message.key: int(message.value) for message in client.read("totals")}
    if sum(counts.values()) != len(expected):
        raise SystemExit(f"wrong totals: {counts}")
    shown = ", ".join(f"{key.decode()} {count:,}" for key, count in sorted(counts.items()))
    report.add("SQL over it, back on a topic", shown)


def serve_portal(cluster: Cluster) -> None:
    """Show where the portal of the cluster is, and wait for Ctrl-C."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalPortal(cluster.servers, LocalAccess(), Path(folder)) as portal,
        contextlib.suppress(KeyboardInterrupt),
    ):
        while not is_open(portal.url):
            if ended := portal.exit_message():
                raise SystemExit(ended)
            time.sleep(0.05)
        console.print(f"Ctrl-C stops it all; until then: --servers {cluster.servers}")
        console.print(f"[bold green]The portal: {portal.url}[/]")
        threading.Event().wait()


def is_open(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--messages", type=int, default=1_000_000)
    arguments.add_argument("--kills", type=int, default=3)
    arguments.add_argument("--no-spark", action="store_true", help="leave Spark out")
    arguments.add_argument("--keep", action="store_true", help="end with the portal, until Ctrl-C")
    chosen = arguments.parse_args()
    keep = chosen.keep and sys.stdout.isatty()
    settings = {"http": "127.0.0.1:0"} if keep else {}  # the portal reads metrics there
    report = Report()
    console.print("[bold]Starting three brokers[/] on free ports, in a temporary directory")
    began = time.perf_counter()
    with Cluster(nodes=3, settings=settings) as cluster, cluster.connect(timeout=30.0) as client:
        report.add("a cluster of three", f"ready after {time.perf_counter() - began:.1f} s")
        client.create_topic("bulk", replication=3)
        client.create_topic("orders", partitions=PARTITIONS, replication=3)
        console.print("[bold]Many messages at once[/]")
        bulk(client, report, chosen.messages)
        console.print("[bold]Leaders are killed while producers work[/]")
        under_fire(cluster, client, report, chosen.kills)
        if not chosen.no_spark:
            console.print("[bold]Spark[/] takes the topics as tables and streams")
            with_spark(cluster, client, report, chosen.messages)
        report.show()
        if keep:
            serve_portal(cluster)


if __name__ == "__main__":
    sys.exit(main())
