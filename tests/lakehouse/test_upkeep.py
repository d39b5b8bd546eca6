"""Compaction joins small files, and removes those that no version needs."""

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from quivermq.errors import InvalidRequest
from quivermq.lakehouse import FileWriter, Table, compact
from quivermq.lakehouse.upkeep import small_files
from tests.lakehouse.tables import SCHEMA, archived, batch, expected, rows, written

TWO_DAYS_AGO = time.time() - 2 * 86_400


def test_small_files_are_joined_and_removed_when_no_version_needs_them(
    tmp_path: Path,
) -> None:
    table = Table.open_or_create(tmp_path, SCHEMA, ["date"])
    for end in range(1, 31):
        table = archived(table, [end * 10])
    orphans = written(tmp_path, batch(9, 0, 10))
    assert small_files(table) == 30
    done = compact(tmp_path)
    assert (done.files_before, done.files_after, done.removed) == (30, 1, 0)
    assert len(list(tmp_path.rglob("part-*.parquet"))) == 32
    # An older version can still be read, until it is let go.
    assert rows(Table.open(tmp_path, version=5)) == expected(50)
    again = compact(tmp_path, kept_hours=0)
    assert (again.files_before, again.files_after, again.removed) == (1, 1, 30)
    # What no version names may be a running task's, if it is of the last day.
    assert (tmp_path / orphans[0].path).exists()
    os.utime(tmp_path / orphans[0].path, (TWO_DAYS_AGO, TWO_DAYS_AGO))
    assert compact(tmp_path, kept_hours=0).removed == 1
    assert not (tmp_path / orphans[0].path).exists()
    after = Table.open(tmp_path)
    assert (rows(after), after.ends("orders")) == (expected(300), {0: 300})
    assert small_files(after, target_bytes=0) == 0


def test_an_archive_goes_on_while_its_table_is_compacted(tmp_path: Path) -> None:
    table = Table.open_or_create(tmp_path, SCHEMA, ["date"])
    for end in range(1, 9):
        table = archived(table, [end * 10])
    compact(tmp_path)
    after = archived(table, [100])
    assert (rows(after), after.ends("orders")) == (expected(100), {0: 100})
    assert len(after.file_paths()) == 2


def test_files_of_a_running_job_survive_compaction(tmp_path: Path) -> None:
    table = archived(Table.open_or_create(tmp_path, SCHEMA, ["date"]), [10])
    files = written(tmp_path, batch(0, 10, 20))
    compact(tmp_path, kept_hours=0)
    assert rows(table.commit(files, {"query": 1})) == expected(20)


def test_nothing_but_data_files_of_the_table_is_removed(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("land", pa.string())])
    table = Table.open_or_create(tmp_path / "outer", schema, ["land"])

    def file(root: Path, land: str) -> Path:
        writer = FileWriter(root, schema, ["land"])
        writer.write(pa.record_batch([pa.array([1]), pa.array([land])], schema=schema))
        (made,) = writer.close()
        os.utime(root / made.path, (TWO_DAYS_AGO, TWO_DAYS_AGO))
        return root / made.path

    loose = [file(table.root, land) for land in ("at", "a/b ü%41")]
    others = [table.root / "notes.txt", table.root / "land=at" / "notes.txt"]
    for other in others:
        other.touch()
    others.append(file(table.root / "inner", "at"))
    for other in others:
        os.utime(other, (TWO_DAYS_AGO, TWO_DAYS_AGO))
    assert compact(table.root, kept_hours=0).removed == 2
    assert not any(path.exists() for path in loose)
    assert all(path.exists() for path in others)


def test_no_table_is_made_within_another_one(tmp_path: Path) -> None:
    Table.open_or_create(tmp_path / "outer", SCHEMA, ["date"])
    with pytest.raises(InvalidRequest, match=r"is within the table .*outer"):
        Table.open_or_create(tmp_path / "outer" / "deep" / "inner", SCHEMA, ["date"])
    assert not (tmp_path / "outer" / "deep").exists()


def test_a_small_file_for_each_day_is_no_reason_to_rewrite_anything(tmp_path: Path) -> None:
    table = Table.open_or_create(tmp_path, SCHEMA, ["date"])
    days = [written(tmp_path, batch(0, day, day + 1, rows_a_day=1))[0] for day in range(30)]
    table = table.commit(days, {"query": 1})
    assert (len(table.file_paths()), small_files(table)) == (30, 1)
    table = table.commit(written(tmp_path, batch(0, 30, 31, rows_a_day=2)), {"query": 2})
    assert small_files(table) == 2


def test_files_with_times_of_any_year_are_compacted(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    table = Table.open_or_create(tmp_path, schema)
    for n, micros in enumerate((0, 253_402_300_799_999_999, 400_000_000_000_000_000)):
        writer = FileWriter(tmp_path, schema)
        at = pa.array([micros], pa.timestamp("us", tz="UTC"))
        writer.write(pa.record_batch([pa.array([n]), at], schema=schema))
        table = table.commit(writer.close(), {"query": n})
    assert sorted(row["max.n"] for row in table.file_facts("max.n")) == [0, 1, 2]
    assert compact(tmp_path).files_after == 1
    assert Table.open(tmp_path).file_facts("max.n", "none") == [{"max.n": 2, "none": None}]
    assert Table.open(tmp_path).count() == 3
