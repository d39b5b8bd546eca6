"""The files that a task writes: by folder, by size, with bounds; discarded rows leave none."""

import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quivermq.errors import InvalidRequest
from quivermq.lakehouse import FileWriter
from quivermq.lakehouse.data_files import OPEN_FILES_MAX, escape_value
from tests.lakehouse.tables import SCHEMA, batch, written


def test_each_day_has_its_folder_and_each_file_its_bounds(tmp_path: Path) -> None:
    files = written(tmp_path, batch(1, 90, 250, rows_a_day=100), batch(2, 150, 160, rows_a_day=100))
    found = {file.partition_values["date"]: file for file in files}
    assert {day: file.rows for day, file in found.items()} == {
        "2026-01-01": 10,
        "2026-01-02": 110,
        "2026-01-03": 50,
    }
    second = found["2026-01-02"]
    assert second.path.startswith("date=2026-01-02/part-")
    assert second.size_bytes == (tmp_path / second.path).stat().st_size
    stats = json.loads(second.stats)
    assert stats["numRecords"] == 110
    assert stats["minValues"] == {
        "partition": 1,
        "offset": 100,
        "timestamp": "2026-01-02T00:00:00.000Z",
    }
    assert stats["maxValues"] == {
        "partition": 2,
        "offset": 199,
        "timestamp": "2026-01-02T23:45:36.000Z",
    }
    assert "date" not in pq.read_schema(tmp_path / second.path).names


def test_many_small_batches_become_few_files_and_much_becomes_files_of_the_wanted_size(
    tmp_path: Path,
) -> None:
    small = written(tmp_path / "small", *(batch(0, n, n + 1) for n in range(2_000)))
    assert [file.rows for file in small] == [2_000]
    metadata = pq.read_metadata(tmp_path / "small" / small[0].path)
    assert metadata.num_row_groups == 1
    large = written(
        tmp_path / "large",
        *(batch(0, n, n + 5_000) for n in range(0, 100_000, 5_000)),
        target=100_000,
    )
    assert sum(file.rows for file in large) == 100_000
    assert all(100_000 <= file.size_bytes < 300_000 for file in large[:-1])
    assert 3 <= len(large) <= 10


def test_discarded_rows_leave_no_file(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path, SCHEMA, ["date"], 1_000)
    for start in range(0, 1_000, 100):
        writer.write(batch(0, start, start + 100, rows_a_day=300))
    assert list(tmp_path.rglob("*.parquet"))
    writer.discard()
    assert not list(tmp_path.rglob("*.parquet"))


def test_folders_have_the_names_that_spark_gives_them(tmp_path: Path) -> None:
    schema = pa.schema([("land", pa.string()), ("year", pa.int32()), ("n", pa.int64())])
    writer = FileWriter(tmp_path, schema, ["land", "year"])
    lands = ["a/b c", None, "", "Österreich", "50%"]
    columns = {"land": lands, "year": [1, 2, 3, 4, None], "n": range(5)}
    writer.write(pa.record_batch(columns, schema=schema))
    folders = {file.path.rpartition("/")[0]: file.partition_values for file in writer.close()}
    assert folders == {
        "land=a%2Fb%20c/year=1": {"land": "a/b c", "year": "1"},
        "land=__HIVE_DEFAULT_PARTITION__/year=2": {"land": None, "year": "2"},
        "land=__HIVE_DEFAULT_PARTITION__/year=3": {"land": None, "year": "3"},
        "land=Österreich/year=4": {"land": "Österreich", "year": "4"},
        "land=50%25/year=__HIVE_DEFAULT_PARTITION__": {"land": "50%", "year": None},
    }
    assert escape_value(str(date(2026, 1, 1))) == "2026-01-01"


@pytest.mark.parametrize(
    ("partition_by", "trouble"),
    [
        (["day"], "no column 'day'"),
        (["headers"], "cannot be partitioned by 'headers'"),
        (["timestamp"], "cannot be partitioned by 'timestamp'"),
    ],
)
def test_columns_that_name_no_folder_are_refused(
    tmp_path: Path, partition_by: list[str], trouble: str
) -> None:
    with pytest.raises(InvalidRequest, match=trouble):
        FileWriter(tmp_path, SCHEMA, partition_by)


def test_times_of_any_year_are_written_with_bounds_only_where_readers_know_them(
    tmp_path: Path,
) -> None:
    schema = pa.schema(
        [("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("day", pa.date32())]
    )
    last = 253_402_300_799_999_999  # of the year 9999, in microseconds
    known = {"n": 1, "at": "0044-03-03T00:00:00.000Z", "day": "0044-03-03"}
    for micros, has_bounds in ((-60_773_328_000_000_000, True), (last, False), (2 * last, False)):
        writer = FileWriter(tmp_path, schema)
        at = pa.array([micros], pa.timestamp("us", tz="UTC"))
        day = pa.array([micros // 86_400_000_000], pa.int32()).cast(pa.date32())
        writer.write(pa.record_batch([pa.array([1]), at, day], schema=schema))
        (file,) = writer.close()
        stats = json.loads(file.stats)
        assert stats["nullCount"] == {"n": 0, "at": 0, "day": 0}
        assert stats["minValues"]["n"] == 1
        assert ("at" in stats["minValues"], "at" in stats["maxValues"]) == (has_bounds, has_bounds)
        if has_bounds:
            assert stats["minValues"] == stats["maxValues"] == known
        assert pq.read_table(tmp_path / file.path).column("at").combine_chunks() == at
    writer = FileWriter(tmp_path, schema, ["day"])
    with pytest.raises(InvalidRequest, match=r"the date 18\d{3}-"):
        writer.write(pa.record_batch([pa.array([1]), at, day], schema=schema))


def test_a_task_has_few_files_open_however_many_folders_it_writes_to(tmp_path: Path) -> None:
    schema = pa.schema([("who", pa.int64()), ("n", pa.int64())])
    writer = FileWriter(tmp_path, schema, ["who"], target_bytes=1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    highest = 0
    for n in range(2):
        for who in range(OPEN_FILES_MAX + 20):
            writer.write(pa.record_batch([pa.array([who]), pa.array([n])], schema=schema))
            highest = max(highest, len(list(Path("/proc/self/fd").iterdir())))
    assert sum(file.rows for file in writer.close()) == 2 * (OPEN_FILES_MAX + 20)
    assert highest - before <= OPEN_FILES_MAX + 5
