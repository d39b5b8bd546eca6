"""Commits to a table: rows and offsets together, once, also with concurrent writers."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from quivermq.errors import Corrupt, Fenced, InvalidRequest
from quivermq.lakehouse import ArchiveRange, Table, archive_group, compact
from quivermq.lakehouse.progress import TOPIC_ID_PROPERTY, TOPIC_PROPERTY
from tests.lakehouse.tables import SCHEMA, archived, batch, expected, rows, written


def table_in(path: Path) -> Table:
    return Table.open_or_create(
        path, SCHEMA, ["date"], {TOPIC_PROPERTY: "orders", TOPIC_ID_PROPERTY: "abc"}
    )


def test_every_version_carries_the_offsets_up_to_which_it_holds_the_topic(tmp_path: Path) -> None:
    first = archived(table_in(tmp_path), [10, 0])
    second = archived(first, [15, 7])
    third = archived(second, [15, 9, 4])
    assert [table.ends("orders") for table in (first, second, third)] == [
        {0: 10, 1: 0},
        {0: 15, 1: 7},
        {0: 15, 1: 9, 2: 4},
    ]
    assert third.firsts("orders") == {0: 0, 1: 0, 2: 0}
    assert third.ends("others") == {}
    assert rows(third) == expected(15, 9, 4)
    back = Table.open(tmp_path, version=first.version)
    assert (back.ends("orders"), rows(back)) == ({0: 10, 1: 0}, expected(10, 0))
    newest, *_ = third.history()
    assert json.loads(str(newest["quiver.offsets"])) == {"orders": {"0": 15, "1": 9, "2": 4}}
    assert (third.topic, third.topic_id) == ("orders", "abc")
    assert archive_group(third.id) == f"_archive.{first.id}"


def test_offsets_survive_compaction_and_checkpoints_of_the_table(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    for end in range(1, 130):
        table = archived(table, [end])
    DeltaTable(tmp_path).optimize.compact()
    DeltaTable(tmp_path).create_checkpoint()
    DeltaTable(tmp_path).cleanup_metadata()
    found = Table.open(tmp_path)
    assert len(found.file_paths()) == 1
    assert (found.ends("orders"), rows(found)) == ({0: 129}, expected(129))


def test_of_many_writers_of_the_same_range_exactly_one_succeeds(tmp_path: Path) -> None:
    table_in(tmp_path)
    outcomes: list[str] = []

    def write(barrier: threading.Barrier) -> None:
        table = Table.open(tmp_path)
        start = table.ends("orders").get(0, 0)
        wanted = ArchiveRange("orders", {0: start}, {0: start + 50}, {0: 0})
        files = written(tmp_path, batch(0, start, start + 50))
        barrier.wait(30)
        try:
            table.commit(files, wanted.progress)
            outcomes.append("committed")
        except Fenced:
            outcomes.append("fenced")

    for turn in range(1, 6):
        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=write, args=[barrier]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert outcomes.count("committed") == turn
        assert len(outcomes) == 4 * turn
    assert rows(Table.open(tmp_path)) == expected(250)


def test_a_late_writer_is_fenced_and_one_of_another_name_is_not(tmp_path: Path) -> None:
    stale = table_in(tmp_path)
    other = Table.open(tmp_path)
    archived(stale, [10])
    wanted = ArchiveRange("orders", {0: 0}, {0: 20}, {0: 0})
    with pytest.raises(Fenced, match="at the same time"):
        stale.commit(written(tmp_path, batch(0, 0, 20)), wanted.progress)
    after = other.commit(written(tmp_path, batch(7, 0, 3)), {"query": 0})
    assert (after.progress("query"), after.ends("orders")) == (0, {0: 10})
    assert len(rows(after)) == 13


def test_files_can_replace_all_files_of_a_table(tmp_path: Path) -> None:
    table = archived(table_in(tmp_path), [10])
    after = table.commit(written(tmp_path, batch(0, 0, 3)), {"query": 5}, replace=True)
    assert (rows(after), after.progress("query")) == (expected(3), 5)


@pytest.mark.parametrize(
    ("schema", "partition_by", "trouble"),
    [
        (SCHEMA.remove(0), ["date"], "value is binary in the table and missing in the rows"),
        (SCHEMA.append(pa.field("more", pa.int32())), ["date"], "more is missing in the table"),
        (SCHEMA.set(2, pa.field("offset", pa.string())), ["date"], "int64 in the table and string"),
        (SCHEMA, [], "is partitioned by"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, schema: pa.Schema, partition_by: list[str], trouble: str
) -> None:
    table_in(tmp_path)
    with pytest.raises(InvalidRequest, match=trouble):
        Table.open_or_create(tmp_path, schema, partition_by)


def test_folders_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no table in"):
        Table.open(tmp_path / "none")
    for address in ("s3://bucket/table", "s3:/bucket/table", "hdfs:/table"):
        with pytest.raises(InvalidRequest, match="mount the store"):
            Table.open(address)
    with pytest.raises(InvalidRequest, match="cannot have %"):
        Table.open(tmp_path / "per%20cent")
    (tmp_path / "mine.txt").touch()
    with pytest.raises(InvalidRequest, match="is no folder"):
        table_in(tmp_path / "mine.txt")
    with pytest.raises(InvalidRequest, match="is no table and not empty"):
        table_in(tmp_path)
    made = table_in(tmp_path / "made")
    with pytest.raises(InvalidRequest, match="no version 9"):
        Table.open(made.root, version=9)
    assert Table.open(f"file://{made.root}").id == made.id
    (made.root / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises(Corrupt, match=r"the table .*made cannot be read: .+$"):
        Table.open(made.root)


@pytest.mark.parametrize("name", ["sp ace", "ünï", "br[a]*?{}", "h#sh", "q'\"uote", "semi;&=+,:"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    table = archived(archived(table_in(tmp_path / name), [10]), [20])
    assert set(table.file_paths()) == set(map(str, (tmp_path / name).rglob("part-*.parquet")))
    assert rows(table) == expected(20)
    compact(tmp_path / name)
    assert rows(Table.open(tmp_path / name)) == expected(20)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_files_that_are_not_there_are_not_committed(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    files = written(tmp_path, batch(0, 0, 10, rows_a_day=5))
    place = tmp_path / files[1].path
    whole = place.read_bytes()
    place.write_bytes(whole[:-1])
    with pytest.raises(InvalidRequest, match="driver and all workers share"):
        table.commit(files, {"query": 1})
    place.unlink()
    with pytest.raises(InvalidRequest, match="which is not there"):
        table.commit(files, {"query": 1})
    assert Table.open(tmp_path).version == table.version
    place.write_bytes(whole)
    assert rows(table.commit(files, {"query": 1})) == expected(10)


def test_only_files_that_the_table_does_not_name_are_removed(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    named, loose = written(tmp_path, batch(0, 0, 10)), written(tmp_path, batch(1, 0, 10))
    table = table.commit(named, {"query": 1})
    table.remove_loose([*named, *loose])
    assert rows(table) == expected(10)
    assert not (tmp_path / loose[0].path).exists()


def test_many_that_make_a_table_at_once_have_the_same_one(tmp_path: Path) -> None:
    script = (
        "import sys, time; from tests.lakehouse.test_table import table_in, Path\n"
        "time.sleep(max(0, float(sys.argv[2]) - time.time()))\n"
        "print([table_in(Path(sys.argv[1]) / str(n)).id for n in range(20)])"
    )
    begin = str(time.time() + 5)
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), begin], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    found = [maker.communicate(timeout=120)[0] for maker in makers]
    assert len(set(found)) == 1
    assert len(found[0]) > 20 * 36


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"topic": "t", "starts": [0], "ends": [1, 2], "firsts": [0]}',
        '{"topic": "t", "starts": [5], "ends": [4], "firsts": [0]}',
    ],
)
def test_an_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        ArchiveRange.decode(text)
    good = ArchiveRange("t", {0: 1, 1: 2}, {0: 3, 1: 2}, {0: 0, 1: 2}, {0: 1})
    assert ArchiveRange.decode(good.encode()) == good
    assert (good.count, good.is_empty) == (2, False)
