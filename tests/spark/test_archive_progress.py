"""What an archive asks of brokers and commits to them, and what ends it: without a Spark job."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import quivermq
from quivermq.errors import (
    ConnectionFailed,
    InvalidRequest,
    OffsetOutOfRange,
    QuiverError,
    StorageFailed,
)
from quivermq.lakehouse import TOPIC_ID_PROPERTY, TOPIC_PROPERTY, ArchiveRange, Table, archive_group
from quivermq.spark.archive import loop as archive_loop
from quivermq.spark.archive.archive import Archive, Payload, PendingRange
from quivermq.spark.archive.loop import ArchiveLoop, CommitPolicy
from quivermq.spark.archive.writer import ArchiveWriter
from quivermq.spark.source.batch_reader import TopicReader
from quivermq.spark.source.columns import spark_schema
from quivermq.spark.table_options import arrow_schema
from quivermq.testing import Cluster
from tests.spark.test_table_writers import WHOLE

NO_SPARK: Any = None
WAITS = quivermq.Retention(max_messages=10, keep_until_archived=True)


@pytest.fixture(scope="module")
def small() -> Iterator[Cluster]:
    """Two brokers that drop quickly what retention lets go."""
    settings = {"tick_ms": 50, "segment_bytes": 64 << 10, "retention_interval_ms": 50}
    with Cluster(nodes=2, settings=settings) as cluster:
        yield cluster


@pytest.fixture
def client(small: Cluster) -> Iterator[quivermq.Client]:
    with small.connect(timeout=5) as client:
        yield client


def table_of(client: quivermq.Client, topic: str, path: Path, *ends: int) -> Table:
    """A table that says it holds a topic up to these offsets."""
    properties = {TOPIC_PROPERTY: topic, TOPIC_ID_PROPERTY: client.offsets(topic, []).id}
    table = Table.open_or_create(path, arrow_schema(WHOLE), ["date"], properties)
    held = dict(enumerate(ends))
    wanted = ArchiveRange(topic, dict.fromkeys(held, 0), held, dict.fromkeys(held, 0))
    return table.commit([], wanted.progress)


def fill(client: quivermq.Client, topic: str, partition: int = 0) -> None:
    """200 messages in many segments."""
    for _ in range(20):
        client.produce_many(topic, [bytes(5_000)] * 10, partition=partition)


def archive_in(path: Path, topic: str, **settings: Any) -> Archive:
    return Archive(topic, str(path), {}, **settings)


def test_a_table_of_a_recreated_topic_commits_no_offsets(
    client: quivermq.Client, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, retention=WAITS)
    table = table_of(client, topic, tmp_path, 100)
    client.delete_topic(topic)
    client.create_topic(topic, retention=WAITS)
    fill(client, topic)
    archive = archive_in(tmp_path, topic)
    loop = ArchiveLoop(NO_SPARK, client, archive, CommitPolicy())
    for call in (loop.run_once, lambda: loop.run(threading.Event())):
        with pytest.raises(InvalidRequest, match="deleted and created again"):
            call()
    assert client.committed(topic, archive_group(table.id)) == {}
    time.sleep(0.3)  # several rounds of retention
    assert client.offsets(topic).partitions[0].start == 0


def test_a_table_beyond_the_end_of_a_topic_commits_no_offsets(
    client: quivermq.Client, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, partitions=2)
    table = table_of(client, topic, tmp_path, 0, 7)
    with pytest.raises(InvalidRequest, match="did the cluster lose its data"):
        archive_in(tmp_path, topic).commit_progress(client, table)
    assert client.committed(topic, archive_group(table.id)) == {}


def test_lost_messages_of_a_partition_unknown_to_the_table_are_reported(
    small: Cluster, client: quivermq.Client, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, retention=WAITS)
    table = table_of(client, topic, tmp_path, 0)
    client.alter_topic(topic, partitions=2)
    archive = archive_in(tmp_path, topic)
    archive.commit_progress(client, table)
    # The word of another archive is not enough for a partition that this one lacks.
    assert client.committed(topic, archive_group(table.id)) == {0: 0, 1: 0}
    fill(client, topic, 1)
    client.commit(topic, "_archive.3f2b8c1e-0d4a-4f6b-9c7e-1a2b3c4d5e6f", 1, 200)
    assert archive.pending(client).range.starts == {0: 0, 1: 0}
    client.commit(topic, archive_group(table.id), 1, 200)
    small.wait_until(lambda: client.offsets(topic).partitions[1].start > 100, "nothing is dropped")
    with pytest.raises(OffsetOutOfRange, match=r"partition 1 \[0, "):
        archive.pending(client)
    found = archive_in(tmp_path, topic, accept_loss=True).pending(client)
    assert found.lost[1][0] == 0
    assert found.range.firsts[1] == found.range.starts[1] == found.lost[1][1] > 100
    # A table that has nothing begins with what there is.
    assert archive_in(tmp_path / "none", topic).pending(client).lost == {}


def test_a_partition_without_a_leader_is_waited_for(
    small: Cluster, client: quivermq.Client, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, partitions=4, replication=1)
    for number in range(4):
        client.produce_many(topic, [b"x"] * 10, partition=number)
    leaders = [small.leader(topic, number) for number in range(4)]
    table_of(client, topic, tmp_path / "known", 10, 10, 10, 10)
    archives = [archive_in(tmp_path / name, topic) for name in ("known", "fresh")]
    with small.connect(timeout=1) as hasty, small.paused(leaders[1]):
        for archive in archives:
            with pytest.raises(QuiverError) as caught:
                archive.pending(hasty)
            assert caught.value.retriable
    assert archives[0].pending(client).range.is_empty
    assert archives[1].pending(client).range.count == 40


def test_rows_of_a_topic_that_was_created_again_meanwhile_are_not_committed(
    small: Cluster, client: quivermq.Client, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic)
    life = client.offsets(topic, []).id
    options = {
        "path": str(tmp_path / "table"),
        "archiveRange": ArchiveRange(topic, {0: 0}, {0: 0}, {0: 0}, {}).encode(),
        "topicId": life,
        "servers": small.servers,
    }
    writer = ArchiveWriter(options, WHOLE, overwrite=False)
    client.delete_topic(topic)
    client.create_topic(topic)
    version = Table.open(tmp_path / "table").version
    with pytest.raises(InvalidRequest, match="deleted and created again"):
        writer.commit([])
    assert Table.open(tmp_path / "table").version == version


def test_a_read_that_would_begin_behind_a_hole_says_so(
    small: Cluster, client: quivermq.Client, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, retention=quivermq.Retention(max_messages=10))
    table_of(client, topic, tmp_path, 50)
    fill(client, topic)
    small.wait_until(lambda: client.offsets(topic).partitions[0].start > 100, "nothing is dropped")
    client.alter_topic(topic, retention=None)
    time.sleep(0.3)  # several rounds of retention: what was begun is done
    start = client.offsets(topic).partitions[0].start

    def planned(**options: str) -> list[tuple[int, int]]:
        given = {"servers": small.servers, "subscribe": topic, "archive": str(tmp_path), **options}
        parts: list[Any] = TopicReader(given, spark_schema(given)).partitions()
        return [(part.start, part.stop) for part in parts]

    with pytest.raises(OffsetOutOfRange, match=f"offsets 50 to {start - 1} are lost"):
        planned()
    assert planned(failOnDataLoss="false") == [(start, 200)]
    assert planned(startingOffsets=f'{{"{topic}": {{"0": {start}}}}}') == [(start, 200)]


# ---- what ends it


class FailingArchive(Archive):
    """Has something to do, and fails at it in these ways, one after the other."""

    troubles: list[Exception]
    stop: threading.Event

    def write(self, spark: SparkSession, pending: PendingRange) -> Table:
        if len(self.troubles) == 1:
            self.stop.set()
        raise self.troubles.pop(0)


def wrapped(text: str) -> PySparkException:
    return PySparkException(f"An exception\nTraceback:\n  File\n{text}\n at Y")


def failing(*troubles: Exception, topic: str, path: Path) -> FailingArchive:
    archive = FailingArchive(topic, str(path), {})
    FailingArchive.troubles, FailingArchive.stop = list(troubles), threading.Event()
    return archive


def test_retriable_errors_never_end_an_archive_and_others_end_it_at_once(
    spark: SparkSession,
    client: quivermq.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_loop, "PAUSE_SECONDS_MAX", 0.01)
    client.create_topic(topic)
    client.produce(topic, b"x")
    policy, told = CommitPolicy(size=1, age=0.0), []
    passing = [
        ConnectionFailed("nobody is there"),
        wrapped("quivermq.errors.Fenced: another archive"),
        DeltaError("the log was cleaned up"),
        OSError(28, "No space left on device"),
        Py4JError("something else"),
        wrapped("java.io.IOException: it broke"),
        StorageFailed("is it mounted?"),
        wrapped("quivermq.errors.OffsetOutOfRange: retention was faster than the job"),
    ]
    archive = failing(*passing, topic=topic, path=tmp_path)
    ArchiveLoop(spark, client, archive, policy, on_trouble=told.append).run(archive.stop)
    assert told == [str(error) for error in passing]
    for lasting in (
        wrapped("quivermq.errors.InvalidRequest: the rows do not fit"),
        InvalidRequest("the same of our own"),
        PySparkException("[CAST] cannot. SQLSTATE: 22018"),
    ):
        archive = failing(lasting, lasting, topic=topic, path=tmp_path)
        with pytest.raises(type(lasting)):
            ArchiveLoop(spark, client, archive, policy).run(archive.stop)
        assert len(archive.troubles) == 1
    archive = failing(OSError("refused"), topic=topic, path=tmp_path)
    with pytest.raises(QuiverError, match="Spark has ended unexpectedly"):
        ArchiveLoop(NO_SPARK, client, archive, policy).run(archive.stop)


class EmptyHandedArchive(Archive):
    """Commits that it holds a topic, without a job."""

    client: quivermq.Client

    def write(self, spark: SparkSession, pending: PendingRange) -> Table:
        return table_of(self.client, self.topic, Path(self.path), *pending.range.ends.values())


def test_an_archive_goes_on_though_its_table_cannot_be_compacted_and_makes_no_second_one(
    client: quivermq.Client, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic)
    client.produce(topic, b"x")
    apart = tmp_path / "apart"
    payload = Payload("id BIGINT", str(apart))
    archive = EmptyHandedArchive(topic, str(tmp_path / "table"), {}, payload=payload)
    EmptyHandedArchive.client = client
    (apart / "_delta_log").mkdir(parents=True)
    (apart / "_delta_log" / f"{0:020}.json").write_text("{")
    told: list[str] = []
    loop = ArchiveLoop(NO_SPARK, client, archive, CommitPolicy(), on_trouble=told.append)
    assert loop.run_once() == 1
    assert "could not be compacted" in told[0]
    # A file system that is not mounted looks like a folder without a table.
    (tmp_path / "table").rename(tmp_path / "away")
    client.produce(topic, b"x")
    with pytest.raises(StorageFailed, match="is its file system mounted"):
        loop.run_once()
    assert not (tmp_path / "table").exists()
    (tmp_path / "away").rename(tmp_path / "table")
    assert loop.run_once() == 1


def test_table_and_quarantine_in_one_folder_are_refused_before_anything_is_made() -> None:
    with pytest.raises(InvalidRequest, match="none within the other"):
        Archive("t", "/lake/orders", {}, payload=Payload("id BIGINT", "/lake"))
    with pytest.raises(InvalidRequest, match="--target-file-size"):
        Archive("t", "/lake/orders", {}, target_bytes=0)
