"""No storm of small files: they are put together, and what nobody needs leaves the disk."""

from pathlib import Path

from quivermq.lakehouse import Table, compact
from quivermq.lakehouse.upkeep import small_files
from tests.lakehouse.stage import SCHEMA, archived, batch, expected, rows, written


def test_small_files_become_one_and_leave_the_disk_when_nobody_can_need_them(
    tmp_path: Path,
) -> None:
    table = Table.found(tmp_path, SCHEMA, ["date"])
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
    assert (again.files_before, again.files_after, again.removed) == (1, 1, 31)
    assert not (tmp_path / orphans[0].path).exists()
    after = Table.open(tmp_path)
    assert (rows(after), after.ends("orders")) == (expected(300), {0: 300})
    assert small_files(after, target_bytes=0) == 0


def test_an_archive_goes_on_while_its_table_is_compacted(tmp_path: Path) -> None:
    table = Table.found(tmp_path, SCHEMA, ["date"])
    for end in range(1, 9):
        table = archived(table, [end * 10])
    compact(tmp_path)
    after = archived(table, [100])
    assert (rows(after), after.ends("orders")) == (expected(100), {0: 100})
    assert len(after.file_paths()) == 2
