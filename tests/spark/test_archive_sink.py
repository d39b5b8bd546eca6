"""Commits of an archive without Spark around them: races, missing rows, a quarantine ahead."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quivermq.errors import BrokenInvariant, Fenced, InvalidRequest
from quivermq.lakehouse import ArchiveRange, Table
from quivermq.spark.archive.archive import PendingRange
from quivermq.spark.archive.loop import CommitPolicy
from quivermq.spark.archive.tasks import split_into_tasks
from quivermq.spark.archive.writer import ArchiveWriter
from quivermq.spark.source.ranges import TopicRange
from quivermq.spark.table_options import arrow_schema

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("priority", IntegerType()),
        StructField("headers", ArrayType(HEADER)),
        StructField("n", LongType()),
        StructField("reason", StringType()),
    ]
)
Ends = dict[int, int]


def batch(partition: int, start: int, end: int) -> pa.RecordBatch:
    """Messages of which every third is bad."""
    rows = [
        {
            "value": b"%d" % n,
            "partition": partition,
            "offset": n,
            "timestamp": datetime(2026, 1, 31, 23, 59, tzinfo=UTC),
            "n": None if n % 3 == 0 else n,
            "reason": "third" if n % 3 == 0 else None,
        }
        for n in range(start, end)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(SCHEMA))


def writer(folder: Path, starts: Ends, ends: Ends, held: Ends | None = None) -> ArchiveWriter:
    wanted = ArchiveRange("t", starts, ends, dict.fromkeys(starts, 0), held or {})
    options = {
        "path": str(folder / "table"),
        "quarantine": str(folder / "bad"),
        "archiveRange": wanted.encode(),
        "topicId": "ab",
    }
    return ArchiveWriter(options, SCHEMA, overwrite=False)


def batches(starts: Ends, ends: Ends) -> list[pa.RecordBatch]:
    return [batch(number, starts[number], end) for number, end in ends.items()]


def found(folder: Path, name: str) -> list[tuple[int, int]]:
    rows = []
    for path in Table.open(folder / name).file_paths():
        read = pq.ParquetFile(path).read(["partition", "offset"])
        rows += list(zip(*(column.to_pylist() for column in read.columns), strict=True))
    return sorted(rows)


def expected(ends: Ends, *, bad: bool) -> list[tuple[int, int]]:
    return [(p, n) for p, end in sorted(ends.items()) for n in range(end) if (n % 3 == 0) == bad]


def files_in(folder: Path) -> int:
    return len(list(folder.rglob("part-*.parquet")))


def test_of_two_archives_that_race_for_a_range_one_is_fenced_and_leaves_no_file(
    tmp_path: Path,
) -> None:
    starts, ends = {0: 0, 1: 0}, {0: 10, 1: 20}
    one, other = writer(tmp_path, starts, ends), writer(tmp_path, starts, ends)
    first = one.write(iter(batches(starts, ends)))
    second = other.write(iter(batches(starts, ends)))
    one.commit([first])
    before = files_in(tmp_path)
    with pytest.raises(Fenced, match="another archive"):
        other.commit([second])
    assert files_in(tmp_path) < before
    assert files_in(tmp_path) == 2
    assert found(tmp_path, "table") == expected(ends, bad=False)
    assert found(tmp_path, "bad") == expected(ends, bad=True)
    read = pq.read_table(Table.open(tmp_path / "table").file_paths()[0], partitioning=None)
    assert set(read.column("topic").to_pylist()) == {"t"}
    assert "date=2026-01-31" in Table.open(tmp_path / "table").file_paths()[0]


def test_a_quarantine_that_is_ahead_takes_nothing_twice_and_never_goes_back(
    tmp_path: Path,
) -> None:
    starts, ends = {0: 0, 1: 0}, {0: 30, 1: 10}
    dying = writer(tmp_path, starts, ends)
    written = dying.write(iter(batches(starts, ends)))
    dying.commit_bad(written.bad_files)
    # The next one is given less of partition 0 and more of partition 1.
    middle = {0: 12, 1: 22}
    next_one = writer(tmp_path, starts, middle)
    next_one.commit([next_one.write(iter(batches(starts, middle)))])
    assert Table.open(tmp_path / "bad").ends("t") == {0: 30, 1: 22}
    last = {0: 40, 1: 25}
    final = writer(tmp_path, middle, last, held=middle)
    final.commit([final.write(iter(batches(middle, last)))])
    assert found(tmp_path, "table") == expected(last, bad=False)
    assert found(tmp_path, "bad") == expected(last, bad=True)


@pytest.mark.parametrize("end", [9, 11])
def test_a_range_of_which_a_message_is_missing_or_too_many_is_not_committed(
    tmp_path: Path, end: int
) -> None:
    archive = writer(tmp_path, {0: 0}, {0: 10})
    written = archive.write(iter([batch(0, 0, end)]))
    with pytest.raises(BrokenInvariant, match="10 messages of t were to be archived"):
        archive.commit([written])
    assert files_in(tmp_path) == 0
    assert Table.open(tmp_path / "table").ends("t") == {}


def test_a_table_of_another_topic_or_of_none_is_refused(tmp_path: Path) -> None:
    writer(tmp_path, {0: 0}, {0: 10})
    other = ArchiveRange("u", {0: 0}, {0: 1}, {0: 0})
    options = {
        "path": str(tmp_path / "table"),
        "quarantine": str(tmp_path / "bad"),
        "archiveRange": other.encode(),
        "topicId": "cd",
    }
    with pytest.raises(InvalidRequest, match="is the archive of topic 't', not 'u'"):
        ArchiveWriter(options, SCHEMA, overwrite=False)
    again = {**options, "archiveRange": ArchiveRange("t", {0: 0}, {0: 1}, {0: 0}).encode()}
    with pytest.raises(InvalidRequest, match="deleted and created again"):
        ArchiveWriter(again, SCHEMA, overwrite=False)
    with pytest.raises(InvalidRequest, match="only adds"):
        ArchiveWriter(again, SCHEMA, overwrite=True)


def test_a_commit_is_due_by_size_or_by_age() -> None:
    policy = CommitPolicy(size=1_000, age=60.0)
    some = ArchiveRange("t", {0: 0}, {0: 5}, {0: 0})
    none = ArchiveRange("t", {0: 5}, {0: 5}, {0: 0})
    assert not policy.is_due(PendingRange("life", some, 999), 59.9)
    assert policy.is_due(PendingRange("life", some, 1_000), 0.0)
    assert policy.is_due(PendingRange("life", some, 1), 60.0)
    assert not policy.is_due(PendingRange("life", none, 0), 1e9)
    assert (policy.poll_seconds, CommitPolicy(age=0.1).poll_seconds) == (3.0, 0.1)


@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 100])
def test_ranges_are_split_into_tasks_without_gap_or_overlap(tasks: int) -> None:
    ranges = [TopicRange("t", "id", n, 5, 5 + rows) for n, rows in enumerate((10, 0, 1, 30))]
    found = [part for task in split_into_tasks(ranges, tasks) for part in task.ranges]
    offsets = [(part.partition, at) for part in found for at in range(part.start, part.stop)]
    assert offsets == [(each.partition, at) for each in ranges for at in range(5, each.stop)]
    sizes = [sum(part.rows for part in task.ranges) for task in split_into_tasks(ranges, tasks)]
    assert len(sizes) <= max(tasks, 1)
    assert max(sizes) == -(-41 // tasks)
    assert split_into_tasks([], tasks) == []
