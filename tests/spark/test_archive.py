"""A topic in its table: every message once, with its columns; and what brokers drop by that."""

import threading
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import quivermq
from quivermq.errors import InvalidRequest, OffsetOutOfRange
from quivermq.lakehouse import Table, archive_group
from quivermq.spark.archive.archive import Archive, Payload
from quivermq.spark.archive.json_payloads import parse_columns
from quivermq.spark.archive.loop import ArchiveLoop, CommitPolicy, CommitSummary
from quivermq.spark.table_reader import read_table
from quivermq.testing import Cluster


def archive_of(topic: str, path: Path, servers: str, **settings: Any) -> Archive:
    return Archive(topic, str(path), {"servers": servers}, **settings)


def values(spark: SparkSession, path: Path) -> list[tuple[int, int, bytes]]:
    rows = read_table(spark, str(path)).select("partition", "offset", "value").collect()
    return sorted((row.partition, row.offset, bytes(row.value)) for row in rows)


def produced(client: quivermq.Client, topic: str) -> list[tuple[int, int, bytes]]:
    """What the topic holds, read by the client."""
    return sorted(
        (message.partition, message.offset, message.value)
        for part in client.topic(topic).partitions
        for message in client.read(topic, partition=part.partition, stop=part.end_offset)
    )


def test_a_topic_is_archived_once_with_all_its_columns(
    spark: SparkSession, client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    client.create_topic(topic, partitions=3)
    for number in range(300):
        client.produce(
            topic,
            b"v%d" % number,
            key=b"k%d" % (number % 10),
            headers={"h": b"%d" % number},
            priority=number % 3,
        )
    archive = archive_of(topic, path, servers)
    done: list[CommitSummary] = []
    loop = ArchiveLoop(spark, client, archive, CommitPolicy(), done.append)
    assert loop.run_once() == 1
    assert loop.run_once() == 0
    assert values(spark, path) == produced(client, topic)
    table = Table.open(path)
    ends = {part.partition: part.end_offset for part in client.topic(topic).partitions}
    assert table.ends(topic) == client.committed(topic, archive_group(table.id)) == ends
    row = read_table(spark, str(path)).where("value = cast('v7' as binary)").first()
    assert row is not None
    assert (bytes(row.key), row.priority, row.topic) == (b"k7", 1, topic)
    assert [(each.key, bytes(each.value)) for each in row.headers] == [("h", b"7")]
    assert row.date == datetime.now(UTC).date() or isinstance(row.date, date)
    # A partition more, and messages more: the next commit goes on.
    client.alter_topic(topic, partitions=4)
    client.produce_many(topic, [b"more %d" % n for n in range(50)], partition=3)
    client.produce_many(topic, [b"more %d" % n for n in range(50)], partition=0)
    assert loop.run_once() == 1
    assert values(spark, path) == produced(client, topic)
    assert [(each.pending.range.count, each.left) for each in done] == [(300, 0), (100, 0)]
    client.create_topic(f"{topic}-other")
    with pytest.raises(InvalidRequest, match="is the archive of topic"):
        archive_of(f"{topic}-other", path, servers).pending(client)
    client.delete_topic(topic)
    client.create_topic(topic)
    with pytest.raises(InvalidRequest, match="deleted and created again"):
        archive.pending(client)


def test_json_becomes_columns_and_what_does_not_fit_goes_to_quarantine_with_its_reason(
    spark: SparkSession, client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    good = [
        (b'{"id": 1, "amount": 2.5, "tags": ["a"], "more": true}', (1, 2.5, ["a"])),
        (b'{"id": 2}', (2, None, None)),
        (b' {"id": 3, "amount": null, "tags": []} ', (3, None, [])),
        (b'{"id": 4, "until": "9999-12-31T23:59:59.999999Z"}', (4, None, None)),
        (b'{"id": 5, "until": "+12000-01-01T00:00:00Z"}', (5, None, None)),
        (b'{"id": 6, "until": "-0044-03-15T00:00:00Z"}', (6, None, None)),
    ]
    bad = [
        (b"", "not JSON: "),
        (b"nonsense", "not JSON: nonsense"),
        (b'{"id": 4} rest', 'not JSON: {"id": 4} rest'),
        (b'{"id": 4}{"id": 5}', 'not JSON: {"id": 4}{"id": 5}'),
        (b'{"id": 4},{"id": 5}', 'not JSON: {"id": 4},{"id": 5}'),
        (b'{"id": 4}],[{"id": 5}', 'not JSON: {"id": 4}],[{"id": 5}'),
        (b'{"id": 4}} {"id": 5', 'not JSON: {"id": 4}} {"id": 5'),
        (b"\xff\xfe", "not UTF-8"),
        (b'[{"id": 5}]', 'not a JSON object: [{"id": 5}]'),
        (b"17", "not a JSON object: 17"),
        (b'{"id": "x"}', "field id is no BIGINT: x"),
        (b'{"id": 6, "amount": "much"}', "field amount is no DOUBLE: much"),
        (b'{"amount": 1.0}', "field id is missing"),
        (b'{"id": null}', "field id is missing"),
    ]
    client.create_topic(topic)
    client.produce_many(topic, [value for value, _ in good + bad])
    path, apart = tmp_path / "table", tmp_path / "apart"
    columns = "id BIGINT NOT NULL, amount DOUBLE, tags ARRAY<STRING>, until TIMESTAMP"
    archive = archive_of(topic, path, servers, payload=Payload(columns, str(apart)))
    loop = ArchiveLoop(spark, client, archive, CommitPolicy())
    loop.run_once()
    # Python has no words for some of the times.
    rows = read_table(spark, str(path)).drop("until").orderBy("offset").collect()
    assert [(row.offset, (row.id, row.amount, row.tags)) for row in rows] == [
        (number, fields) for number, (_, fields) in enumerate(good)
    ]
    assert "value" not in rows[0]
    rows = read_table(spark, str(apart)).orderBy("offset").collect()
    assert [(bytes(row.value), row.reason) for row in rows] == bad
    # No bad row, no commit there.
    version = Table.open(apart).version
    client.produce_many(topic, [b'{"id": 9}'])
    loop.run_once()
    assert Table.open(apart).version == version
    client.produce_many(topic, [b'{"id": 9}'])
    other = archive_of(topic, path, servers, payload=Payload("id STRING", str(apart)))
    with pytest.raises(PySparkException, match="do not fit the table"):
        ArchiveLoop(spark, client, other, CommitPolicy()).run_once()
    for wrong, trouble in (('`a"b` INT', "quotes"), ("a INT, A INT", "two columns"), ("a", "no")):
        with pytest.raises(InvalidRequest, match=trouble) as caught:
            parse_columns(spark, wrong)
        assert "SQLSTATE" not in str(caught.value)
    clash = archive_of(topic, path, servers, payload=Payload("offset INT", str(apart)))
    with pytest.raises(InvalidRequest, match="--into payload"):
        clash.rows(spark, clash.pending(client).range, clash.payload)


def test_many_small_appends_make_few_commits_and_few_files(
    spark: SparkSession, client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    client.create_topic(topic, partitions=4)
    archive = archive_of(topic, path, servers)
    commits: list[CommitSummary] = []
    stop = threading.Event()
    sent: list[bytes] = []

    def send() -> None:
        while not stop.is_set():
            value = b"value %d" % len(sent)
            client.produce(topic, value, key=value)
            sent.append(value)
            stop.wait(0.002)

    def committed(done: CommitSummary) -> None:
        commits.append(done)
        if len(commits) == 9:
            stop.set()

    policy = CommitPolicy(size=1 << 30, age=0.4)
    loop = ArchiveLoop(spark, client, archive, policy, committed, small_files_max=4)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        loop.run(stop)
    finally:
        stop.set()
        sender.join(60)
    loop.run_once()
    assert len(sent) > 100
    assert sorted(value for _, _, value in values(spark, path)) == sorted(sent)
    assert values(spark, path) == produced(client, topic)
    table = Table.open(path)
    made = len(list(path.rglob("part-*.parquet")))
    # One file a commit, however many partitions and appends; and those are put together.
    assert made <= len(commits) + 4
    assert len(table.file_paths()) <= 5 < len(commits)
    assert len(commits) < len(sent) / 10


def test_brokers_keep_what_the_table_lacks_and_drop_what_it_holds(
    spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    small = {"tick_ms": 50, "segment_bytes": 64 << 10, "retention_interval_ms": 50}
    with Cluster(nodes=1, settings=small) as cluster, cluster.connect() as client:
        kept = quivermq.Retention(max_messages=10, keep_until_archived=True)
        client.create_topic(topic, retention=kept)
        sent = [b"%d" % n + bytes(5_000) for n in range(200)]
        for start in range(0, 200, 10):
            client.produce_many(topic, sent[start : start + 10])
        assert client.topic(topic).partitions[0].start_offset == 0
        archive = archive_of(topic, path, cluster.servers)
        loop = ArchiveLoop(spark, client, archive, CommitPolicy())
        loop.run_once()
        cluster.wait_until(
            lambda: (client.topic(topic).partitions[0].start_offset or 0) > 100,
            "nothing is dropped",
        )
        loop.run_once()
        assert values(spark, path) == [(0, n, value) for n, value in enumerate(sent)]
        # Without the setting, what goes before it is archived is said, never skipped quietly.
        client.alter_topic(topic, retention=quivermq.Retention(max_messages=10))
        for start in range(0, 200, 10):
            client.produce_many(topic, sent[start : start + 10])
        cluster.wait_until(
            lambda: (client.topic(topic).partitions[0].start_offset or 0) > 250,
            "nothing is dropped",
        )
        with pytest.raises(
            OffsetOutOfRange, match=r"dropped before they were archived: .* 0 \[200"
        ):
            loop.run_once()
        going_on = archive_of(topic, path, cluster.servers, accept_loss=True)
        ArchiveLoop(spark, client, going_on, CommitPolicy()).run_once()
        table = Table.open(path)
        begin = table.firsts(topic)[0]
        assert (begin > 250, table.ends(topic)) == (True, {0: 400})
        offsets = [offset for _, offset, _ in values(spark, path)]
        assert offsets == [*range(200), *range(begin, 400)]


def test_a_backlog_is_taken_in_parts_of_bounded_size(
    client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, partitions=3)
    for number, rows in enumerate((1_000, 10)):
        client.produce_many(topic, [bytes(1_000)] * rows, partition=number)
    archive = archive_of(topic, tmp_path / "table", servers)
    whole = archive.pending(client)
    assert whole.range.ends == {0: 1_000, 1: 10, 2: 0}
    part = archive.pending(client, bytes_max=whole.bytes // 4)
    assert part.bytes == whole.bytes // 4
    # Each partition that has anything gets its share, and nothing is beyond its end.
    assert 200 <= part.range.ends[0] <= 300
    assert 1 <= part.range.ends[1] <= 3
    assert part.range.ends[2] == 0
    tiny = archive.pending(client, bytes_max=1)
    assert tiny.range.ends == {0: 1, 1: 1, 2: 0}
