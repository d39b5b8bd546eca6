"""The writers of tables, driven by hand: what is removed after a failure, and what never is."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from quivermq.errors import Fenced, InvalidRequest
from quivermq.lakehouse import ArchiveRange, DataFile, Table
from quivermq.spark.archive.writer import ArchiveWriter
from quivermq.spark.source.columns import spark_schema
from quivermq.spark.table_options import arrow_schema
from quivermq.spark.table_writer import (
    FilesWritten,
    TableStreamWriter,
    TableTarget,
    TableWriter,
    write_files,
)

WHOLE = StructType(
    [*spark_schema({"includeHeaders": "true"}).fields, StructField("date", DateType())]
)
# The writer adds the topic and the day.
_GIVEN = [each for each in WHOLE.fields if each.name not in {"topic", "date"}]
PARSED = StructType([*_GIVEN, StructField("id", LongType()), StructField("reason", StringType())])
ROW = StructType([StructField("a", LongType())])


def writer(
    folder: Path, end: int, schema: StructType = PARSED, kind: type[ArchiveWriter] = ArchiveWriter
) -> ArchiveWriter:
    """For offsets [0, end) of a topic, before any commit."""
    options = {
        "path": str(folder / "table"),
        "quarantine": str(folder / "bad"),
        "archiveRange": ArchiveRange("t", {0: 0}, {0: end}, {0: 0}, {}).encode(),
        "topicId": "life",
    }
    return kind(options, schema, overwrite=False)


def messages(reasons: Mapping[int, str | None], schema: StructType = PARSED) -> pa.RecordBatch:
    """An offset for each reason; None: nothing is wrong with it."""
    count = len(reasons)
    given = {
        "partition": [0] * count,
        "offset": list(reasons),
        "timestamp": [datetime(2026, 1, 1, tzinfo=UTC)] * count,
        "reason": list(reasons.values()),
    }
    shape = arrow_schema(schema)
    columns = [pa.array(given.get(each.name, [None] * count), each.type) for each in shape]
    return pa.record_batch(columns, schema=shape)


def offsets(path: Path) -> list[int]:
    """Of all rows of a table."""
    found: list[int] = []
    for file in Table.open(path).file_paths():
        found += pq.ParquetFile(file).read(["offset"]).column("offset").to_pylist()
    return sorted(found)


def files(path: Path) -> int:
    return len(list(path.rglob("part-*.parquet")))


@pytest.mark.parametrize("name", ["plain", "sp ace", "ünï [a]"])
def test_committed_files_survive_the_abort_of_a_job(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    archive = writer(folder, 2)
    done = archive.write(iter([messages({0: None, 1: "bad"})]))
    loose = archive.write(iter([messages({0: None, 1: "bad"})]))
    archive.commit([done])
    # Spark does so whenever the process that commits dies, also if it had committed.
    archive.abort([done, loose, None])
    assert (offsets(folder / "table"), offsets(folder / "bad")) == ([0], [1])
    assert (files(folder / "table"), files(folder / "bad")) == (1, 1)


def test_a_write_or_a_batch_that_was_committed_outlives_an_abort_and_a_repetition(
    tmp_path: Path,
) -> None:
    row = pa.record_batch([pa.array([1])], schema=arrow_schema(ROW))
    plain = TableWriter({"path": str(tmp_path / "plain")}, ROW, overwrite=False)
    stream = TableStreamWriter({"path": str(tmp_path / "stream")}, ROW, overwrite=False)
    done, loose = plain.write(iter([row])), plain.write(iter([row]))
    plain.commit([done])
    plain.abort([done, loose])
    assert (Table.open(tmp_path / "plain").count(), files(tmp_path / "plain")) == (1, 1)
    batch, again = (FilesWritten(stream.write(iter([row])).files, "query") for _ in range(2))
    stream.commit([batch], 0)
    stream.commit([batch], 0)
    stream.commit([again], 0)
    stream.abort([batch, again], 0)
    assert (Table.open(tmp_path / "stream").count(), files(tmp_path / "stream")) == (1, 1)


def test_a_write_without_an_id_leaves_none_in_the_table(tmp_path: Path) -> None:
    row = pa.record_batch([pa.array([1])], schema=arrow_schema(ROW))
    plain = TableWriter({"path": str(tmp_path)}, ROW, overwrite=False)
    plain.commit([plain.write(iter([row]))])
    log = "".join(path.read_text() for path in (tmp_path / "_delta_log").glob("*.json"))
    assert '"add"' in log
    assert '"txn"' not in log


class OvertakenWriter(ArchiveWriter):
    """Another archiver commits between its two commits."""

    other: ArchiveWriter

    def commit_good(self, files: Sequence[DataFile]) -> None:
        self.other.commit([self.other.write(iter([messages({0: None})]))])
        super().commit_good(files)


def test_an_archiver_that_is_overtaken_between_its_commits_leaves_what_it_committed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "sp ace"
    slow = writer(folder, 2, kind=OvertakenWriter)
    OvertakenWriter.other = writer(folder, 1)
    with pytest.raises(Fenced, match="another archive"):
        slow.commit([slow.write(iter([messages({0: None, 1: "bad"})]))])
    assert (offsets(folder / "table"), offsets(folder / "bad")) == ([0], [1])
    assert files(folder / "table") == 1


class DyingWriter(ArchiveWriter):
    """Gets as far as its first commit."""

    def commit_good(self, files: Sequence[DataFile]) -> None:
        raise KeyboardInterrupt


def test_the_quarantine_takes_what_it_lacks_also_if_other_rows_are_bad_the_second_time(
    tmp_path: Path,
) -> None:
    first = writer(tmp_path, 4, kind=DyingWriter)
    with pytest.raises(KeyboardInterrupt):
        first.commit([first.write(iter([messages({0: None, 1: "bad", 2: None, 3: None})]))])
    second = writer(tmp_path, 4)
    strict = {0: "bad by other columns", 1: "bad", 2: None, 3: "bad by other columns"}
    second.commit([second.write(iter([messages(strict)]))])
    assert (offsets(tmp_path / "table"), offsets(tmp_path / "bad")) == ([2], [0, 1, 3])


def test_two_archives_have_no_quarantine_in_common(tmp_path: Path) -> None:
    writer(tmp_path, 2)
    (tmp_path / "table").rename(tmp_path / "other")
    with pytest.raises(InvalidRequest, match="the quarantine of another archive"):
        writer(tmp_path, 2)


@pytest.mark.parametrize("quarantine", ["lake/table", "lake", "lake/table/bad"])
def test_table_and_quarantine_have_folders_of_their_own(tmp_path: Path, quarantine: str) -> None:
    options = {
        "path": str(tmp_path / "lake" / "table"),
        "quarantine": str(tmp_path / quarantine),
        "archiveRange": ArchiveRange("t", {0: 0}, {0: 1}, {0: 0}, {}).encode(),
    }
    with pytest.raises(InvalidRequest, match="none within the other"):
        ArchiveWriter(options, PARSED, overwrite=False)
    assert not (tmp_path / "lake").exists()


def test_messages_of_any_time_are_archived_those_beyond_the_year_9999_without_a_day(
    tmp_path: Path,
) -> None:
    last = 253_402_300_799_999_999  # of the year 9999, in microseconds
    stamps = pa.array([0, last, last + 1, 2 * last, -last], pa.timestamp("us", tz="UTC"))
    schema = StructType(_GIVEN)
    batch = messages(dict.fromkeys(range(5)), schema)
    place = batch.schema.get_field_index("timestamp")
    batch = batch.set_column(place, batch.schema.field(place), stamps)
    archive = writer(tmp_path, 5, schema)
    archive.commit([archive.write(iter([batch]))])
    assert offsets(tmp_path / "table") == [0, 1, 2, 3, 4]
    facts = Table.open(tmp_path / "table").file_facts("partition.date", "num_records")
    days = {str(row["partition.date"]): row["num_records"] for row in facts}
    assert days == {"1970-01-01": 1, "9999-12-31": 1, "None": 3}


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    target = TableTarget.prepare(str(tmp_path), arrow_schema(ROW), (), target_bytes=1)

    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            yield pa.record_batch({"a": pa.array(range(100_000), pa.int64())})
        assert files(tmp_path)
        raise ValueError("the source is gone")

    with pytest.raises(ValueError, match="gone"):
        write_files(target, rows())
    assert not files(tmp_path)
