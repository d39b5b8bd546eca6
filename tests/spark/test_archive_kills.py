"""An archive whose driver is killed at each step of a commit: nothing is lost, nothing is twice."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import quivermq
from quivermq.lakehouse import Table, archive_group
from quivermq.spark.archive.archive import Archive
from quivermq.spark.archive.loop import ArchiveLoop, CommitPolicy
from quivermq.spark.table_reader import read_table
from tests.spark.archive_driver import archive

ROOT = Path(__file__).parents[2]


def killed_at(point: str, servers: str, topic: str, folder: Path) -> None:
    """Run a driver in a process group of its own until it kills itself."""
    command = [sys.executable, "-m", "tests.spark.archive_driver", servers, topic, folder, point]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    with (folder / f"{point}.log").open("wb") as log:
        driver = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
        assert driver.wait(180) == -signal.SIGKILL, (folder / f"{point}.log").read_text()


def held(folder: Path, topic: str) -> tuple[dict[int, int], dict[int, int]]:
    """How far the table and its quarantine are."""
    found = [Table.find(folder / name) for name in ("table", "quarantine")]
    table, apart = (each.ends(topic) if each else {} for each in found)
    return table, apart


def test_a_driver_killed_at_any_step_of_a_commit_loses_nothing_and_adds_nothing_twice(
    spark: SparkSession, client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    sent: list[tuple[int, int, bytes]] = []
    ends = [0, 0, 0]

    def send() -> None:
        """Produce between two drivers, so that each plans another range."""
        for number in range(3):
            values = [
                b"bad %d" % n if n % 7 == 0 else b'{"n": %d}' % n
                for n in range(ends[number], ends[number] + 70 + number)
            ]
            client.produce_many(topic, values, partition=number)
            sent.extend((number, ends[number] + n, value) for n, value in enumerate(values))
            ends[number] += len(values)

    client.create_topic(topic, partitions=3)
    send()
    killed_at("planned", servers, topic, tmp_path)
    assert held(tmp_path, topic) == ({}, {})
    send()
    killed_at("tasks", servers, topic, tmp_path)
    assert held(tmp_path, topic) == ({}, {})
    assert list((tmp_path / "table").rglob("*.parquet"))
    send()
    killed_at("quarantined", servers, topic, tmp_path)
    before = dict(enumerate(ends))
    assert held(tmp_path, topic) == ({}, before)
    send()
    killed_at("committed", servers, topic, tmp_path)
    after = dict(enumerate(ends))
    assert held(tmp_path, topic) == (after, after)
    group = archive_group(Table.open(tmp_path / "table").id)
    # They know of the table, and that it held nothing when the driver before began.
    assert client.committed(topic, group) == dict.fromkeys(range(3), 0)
    # The next driver commits offsets to the brokers, though it archives nothing; then continues.
    loop = ArchiveLoop(spark, client, archive(Archive, servers, topic, tmp_path), CommitPolicy())
    assert loop.run_once() == 0
    assert client.committed(topic, group) == after
    send()
    loop.run_once()
    assert client.committed(topic, group) == dict(enumerate(ends))
    good = read_table(spark, str(tmp_path / "table")).select("partition", "offset", "n").collect()
    bad = read_table(spark, str(tmp_path / "quarantine")).collect()
    found = [(row.partition, row.offset, b'{"n": %d}' % row.n) for row in good]
    found += [(row.partition, row.offset, bytes(row.value)) for row in bad]
    assert sorted(found) == sorted(sent)
    assert {row.reason for row in bad} == {f"not JSON: bad {n}" for n in range(0, max(ends), 7)}
