"""A query over three brokers: leaders are killed and brokers restarted under it, rows are exact."""

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql import SparkSession

import quivermq
from quivermq.spark.source.batch_reader import TopicReader
from quivermq.spark.source.columns import spark_schema
from quivermq.testing import Cluster
from quivermq.wire import proto

TOPIC = "orders"
PARTITIONS = 3
ABSENT = proto.PartitionDescription()


@pytest.fixture(scope="module")
def trio() -> Iterator[Cluster]:
    with Cluster(nodes=3, settings={"tick_ms": 50}) as cluster:
        yield cluster


class Feed:
    """Produces numbers, one after the other over all partitions, until it is stopped."""

    def __init__(self, servers: str) -> None:
        self.count = 0
        self._servers = servers
        self._stopped = Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with quivermq.connect(self._servers, timeout=30.0) as client:
            while not self._stopped.is_set():
                values = [b"%d" % number for number in range(self.count, self.count + 50)]
                client.produce_many(TOPIC, values, partition=self.count // 50 % PARTITIONS)
                self.count += 50
                time.sleep(0.01)

    def wait_for(self, count: int) -> None:
        while self.count < count:
            assert self._thread.is_alive()
            time.sleep(0.01)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def test_a_stream_outlives_its_leaders_and_a_restart_of_every_broker(
    spark: SparkSession, trio: Cluster, tmp_path: Path
) -> None:
    with trio.connect(timeout=30.0) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS, replication=3)
    feed = Feed(trio.servers)
    reader = spark.readStream.format("quiver").option("servers", trio.servers)
    stream = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def seen() -> int:
        return sum(progress.numInputRows for progress in query.recentProgress)

    def wait_seen(count: int) -> None:
        deadline = time.monotonic() + 90
        while seen() < count:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, f"{seen()} of {count} rows"
            time.sleep(0.05)

    try:
        feed.wait_for(200)
        wait_seen(200)
        leader = trio.leader(TOPIC)
        trio.nodes[leader].kill()
        feed.wait_for(feed.count + 300)
        wait_seen(feed.count)
        trio.nodes[leader].start()
        trio.wait_ready()
        for node in trio.nodes.values():
            node.stop()
            node.start()
            trio.wait_ready()
        feed.wait_for(feed.count + 300)
    finally:
        feed.stop()
    wait_seen(feed.count)
    query.stop()
    assert query.exception() is None
    rows = spark.read.parquet(str(tmp_path / "rows")).select("value", "partition").collect()
    assert sorted(int(row.value) for row in rows) == list(range(feed.count))


def test_a_batch_read_is_whole_though_all_brokers_are_away_for_a_while(
    spark: SparkSession, trio: Cluster
) -> None:
    with trio.connect(timeout=30.0) as client:
        client.create_topic("away", replication=3)
        client.produce_many("away", [b"%d" % number for number in range(1000)])
    reader = spark.read.format("quiver").option("servers", trio.servers)
    table = reader.option("subscribe", "away").option("minPartitions", 4).load()
    table.rdd.getNumPartitions()  # planned: what follows is met by the tasks
    for node in trio.nodes.values():
        node.kill()

    def revive() -> None:
        time.sleep(2.0)
        trio.start()

    thread = Thread(target=revive)
    thread.start()
    try:
        assert sorted(int(row.value) for row in table.collect()) == list(range(1000))
    finally:
        thread.join()


def test_tasks_read_from_followers_unless_they_are_told_otherwise(trio: Cluster) -> None:
    with trio.connect(timeout=30.0) as client:
        client.create_topic("spread", replication=3)
        client.produce_many("spread", [b"x"] * 1000)
        leader = trio.leader("spread")

        def is_level() -> bool:
            seen = [trio.describe(node, "spread") or ABSENT for node in trio.nodes]
            return all(each.end_offset == 1000 for each in seen)

        trio.wait_until(is_level, "a follower lags")

        def delivered(**options: str) -> dict[bool, int]:
            """How many messages the leader gave out (True), and the others."""
            given = {"servers": trio.servers, "subscribe": "spread", "minPartitions": "4"}
            before = _delivered(client, trio)
            reader = TopicReader(given | options, spark_schema({}))
            rows = [batch.num_rows for part in reader.partitions() for batch in reader.read(part)]
            assert sum(rows) == 1000
            after = _delivered(client, trio)
            found = {True: 0, False: 0}
            for node in trio.nodes:
                found[node == leader] += after[node] - before[node]
            return found

        assert delivered()[True] == 0
        assert delivered(followerReads="false")[False] == 0


def _delivered(client: quivermq.Client, cluster: Cluster) -> dict[int, int]:
    return {
        node.id: int(client.stats(node.address)["messages_delivered_total"])
        for node in cluster.nodes.values()
    }
