"""Staging and publishing while brokers die: three of them, and the leader is killed under way."""

import threading
from collections.abc import Iterator
from itertools import count

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

import quivermq
from quivermq.spark.sink.columns import MessageColumns
from quivermq.spark.sink.decisions import DecisionLog
from quivermq.spark.sink.destinations import Dispatcher
from quivermq.spark.sink.publishing import publish
from quivermq.spark.sink.staged_runs import Run, TargetPartition, join_staged
from quivermq.spark.sink.staging import StagingWriter, decisions_topic, partitions_of, staging_topic
from quivermq.testing import Cluster

SCHEMA = StructType().add("value", BinaryType()).add("key", BinaryType())
ROWS = 600
SIZE = 50_000


@pytest.fixture(scope="module")
def brokers() -> Iterator[Cluster]:
    with Cluster(nodes=3, settings={"tick_ms": 50}) as cluster:
        yield cluster


def rows_of(batch: int) -> list[pa.RecordBatch]:
    """In several batches, so that a task stores some while it gathers others."""
    names = range(batch * ROWS, (batch + 1) * ROWS)
    return [
        pa.record_batch(
            {
                "value": [(b"%d " % name).ljust(SIZE, b".") for name in names[at : at + 50]],
                "key": [b"%d" % (name % 9) for name in names[at : at + 50]],
            }
        )
        for at in range(0, ROWS, 50)
    ]


def test_no_row_is_lost_or_doubled_when_leaders_die_while_rows_are_staged_and_published(
    brokers: Cluster,
) -> None:
    with quivermq.connect(brokers.servers, timeout=60) as client:
        client.create_topic("goal", partitions=3, replication=3)
        columns = MessageColumns.of(SCHEMA, "goal")
        query = "leaders-die"

        def staged(batch: int) -> dict[TargetPartition, tuple[Run, ...]]:
            dispatcher = Dispatcher(columns, lambda topic: partitions_of(client, topic))
            return join_staged(
                [StagingWriter(client, query, batch).store(rows_of(batch), dispatcher)]
            )

        killed: list[int] = []
        for batch, (topic, partition) in enumerate(
            [("goal", 0), (staging_topic(query), 1), (decisions_topic(query), 0), ("goal", 1)]
        ):
            done = threading.Event()
            killer = threading.Thread(
                target=kill_leader, args=(brokers, client, topic, partition, done, killed)
            )
            if batch:
                killer.start()
            parts = staged(batch)
            log = DecisionLog.open(client, query, create=True)
            assert log is not None
            decision = log.decide(batch, parts, None)
            if not batch:
                killer.start()
            publish(client, log, decision)
            done.set()
            killer.join()
            brokers.start()
        found: dict[bytes | None, list[int]] = {}
        for place in range(3):
            for message in client.read("goal", place):
                found.setdefault(message.key, []).append(int(message.value.split()[0]))
    assert killed, "no leader was killed in time"
    for name in range(9):
        assert found[b"%d" % name] == list(range(name, 4 * ROWS, 9)), name


def kill_leader(
    brokers: Cluster,
    client: quivermq.Client,
    topic: str,
    partition: int,
    done: threading.Event,
    killed: list[int],
) -> None:
    """Kill who leads a partition as soon as something more is stored in it."""
    before: int | None = None
    for _ in count():
        try:
            end = client.topic(topic).partitions[partition].end_offset or 0
        except quivermq.TopicNotFound:
            end = 0
        if before is not None and end > before:
            break
        before = end if before is None else before
        if done.wait(0.005):
            return
    leader = brokers.leader(topic, partition)
    brokers.nodes[leader].kill()
    killed.append(leader)


def test_what_is_published_goes_from_the_disk() -> None:
    settings = {"tick_ms": 50, "segment_bytes": 1 << 20, "retention_interval_ms": 100}
    with (
        Cluster(nodes=1, settings=settings) as brokers,
        quivermq.connect(brokers.servers) as client,
    ):
        client.create_topic("goal")
        columns = MessageColumns.of(SCHEMA, "goal")
        query = "released"
        for batch in range(3):
            dispatcher = Dispatcher(columns, lambda topic: partitions_of(client, topic))
            staged = StagingWriter(client, query, 0).store(rows_of(batch)[:2], dispatcher)
            log = DecisionLog.open(client, query, create=True)
            assert log is not None
            publish(client, log, log.decide(batch, staged, None))
        assert client.topic("goal").message_count == 300
        # The first batch is released: all segments that end within it go.
        brokers.wait_until(
            lambda: (client.topic(staging_topic(query)).partitions[0].start_offset or 0) >= 60,
            "what is published was not dropped",
        )
        kept = client.topic(staging_topic(query)).partitions[0]
        assert (kept.start_offset <= 100, kept.end_offset) == (True, 300)


def test_dropped_staged_rows_are_reported(brokers: Cluster) -> None:
    with quivermq.connect(brokers.servers) as client:
        client.create_topic("missing")
        query = "gone"
        dispatcher = Dispatcher(
            MessageColumns.of(SCHEMA, "missing"), lambda topic: partitions_of(client, topic)
        )
        staged = StagingWriter(client, query, 0).store(rows_of(0)[:1], dispatcher)
        log = DecisionLog.open(client, query, create=True)
        assert log is not None
        lost = {
            target: tuple(run._replace(start=run.start + 10_000) for run in runs)
            for target, runs in staged.items()
        }
        decision = log.decide(0, lost, None)
        with pytest.raises(quivermq.InvalidRequest, match="batch 0 were staged but not published"):
            publish(client, log, decision)
        assert client.topic("missing").message_count == 0
