"""`quiver pipeline archive`, `replay` and `compact`, as people run them."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import quivermq
from quivermq.cli.archive_troubles import one_line
from quivermq.lakehouse import Table
from quivermq.spark.archive.replay import Replay
from quivermq.spark.table_reader import read_table
from tests.cli.commands import COMMAND, environment, quiver

ByKey = dict[tuple[bytes, int], list[tuple[bytes, bytes]]]


def send(client: quivermq.Client, topic: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        client.produce(
            topic,
            b"v%d" % number,
            key=b"k%d" % (number % 7),
            headers={"n": b"%d" % number},
            priority=number % 2,
        )


def stored(client: quivermq.Client, topic: str) -> ByKey:
    """By key and priority, in order: value and header."""
    found: ByKey = {}
    for part in client.topic(topic).partitions:
        for m in client.read(topic, partition=part.partition, stop=part.end_offset):
            found.setdefault((m.key or b"", m.priority), []).append((m.value, m.headers["n"]))
    return found


def test_an_archive_runs_until_ctrl_c_and_its_table_can_be_put_back_and_compacted(
    spark: SparkSession, client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    path, again = tmp_path / "table", f"{topic}-again"
    client.create_topic(topic, partitions=2)
    send(client, topic, 0, 50)
    command = [*COMMAND, "pipeline", "archive", "--topic", topic, "--to", str(path), "--json"]
    command += ["--commit-age", "200ms", "--servers", servers, "--master", "local[1]"]
    with (
        (tmp_path / "stderr").open("wb") as stderr,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment(),
            start_new_session=True,
            text=True,
        ) as archiver,
    ):
        assert archiver.stdout is not None
        first = json.loads(archiver.stdout.readline())
        assert (first["messages"], first["lag"], first["version"]) == (50, 0, 1)
        send(client, topic, 50, 50)
        second = json.loads(archiver.stdout.readline())
        # As a terminal does: every process of the group gets the signal.
        os.killpg(archiver.pid, signal.SIGINT)
        rest = archiver.stdout.read()
        assert archiver.wait(60) == 0, (tmp_path / "stderr").read_text()
    counted = first["messages"] + second["messages"]
    counted += sum(json.loads(line)["messages"] for line in rest.splitlines())
    table = Table.open(path)
    assert table.count() == sum(table.ends(topic).values()) == counted
    done = quiver("pipeline", "compact", path, "--keep", "0s", "--json")
    assert json.loads(done.stdout)["files_after"] == 1
    client.create_topic(again, partitions=3)
    wanted = Replay(str(path), again, {"servers": servers}, id=f"{topic}-1")
    wanted.run(spark)
    wanted.run(spark)
    archived = read_table(spark, str(path)).orderBy("partition", "offset").collect()
    by_key: ByKey = {}
    for row in archived:
        entry = (bytes(row.value), bytes(row.headers[0].value))
        by_key.setdefault((bytes(row.key), row.priority), []).append(entry)
    assert stored(client, again) == by_key
    some = Replay(str(path), again, {}, partitions=(1,), start=3, end=9)
    offsets = [(row.partition, row.offset) for row in some.rows(spark).collect()]
    assert sorted(offsets) == [(1, n) for n in range(3, 9)]
    late = Replay(str(path), again, {}, start=archived[20].timestamp)
    expected = [row for row in archived if row.timestamp >= archived[20].timestamp]
    assert late.rows(spark).count() == len(expected)


@pytest.mark.parametrize(
    ("arguments", "code", "trouble"),
    [
        (["archive", "--once", "--to", "t", "--topic", "none"], 1, "none"),
        (["archive", "--once", "--to", "s3://b/t", "--topic", "TOPIC"], 1, "mount the store"),
        (
            ["archive", "--once", "--to", "t", "--topic", "TOPIC", "--into", "x"],
            2,
            "--json-columns",
        ),
        (["archive", "--once", "--to", "t", "--topic", "TOPIC", "--json-columns", "@no"], 2, "@no"),
        (["replay", "--from", "no", "--topic", "TOPIC"], 1, "there is no table in"),
        (["replay", "--from", "no", "--topic", "TOPIC", "--start", "soon"], 2, "is not a time"),
        (["compact", "no"], 1, "there is no table in"),
        (["compact", __file__], 1, "is no folder"),
        (
            [
                "archive",
                "--to",
                ".",
                "--topic",
                "TOPIC",
                "--json-columns",
                "a:INT",
                "--quarantine",
                "./bad",
            ],
            1,
            "none within the other",
        ),
    ],
)
def test_wrong_arguments_are_one_line_before_spark_starts(
    client: quivermq.Client,
    servers: str,
    topic: str,
    tmp_path: Path,
    arguments: list[str],
    code: int,
    trouble: str,
) -> None:
    name = topic.partition("[")[0]
    client.create_topic(name)
    given = [name if each == "TOPIC" else each for each in arguments]
    done = quiver("pipeline", *given, cwd=tmp_path, variables={"QUIVER_SERVERS": servers})
    assert (done.returncode, done.stdout) == (code, "")
    assert trouble in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_long_error_of_spark_is_reduced_to_our_own_line() -> None:
    story = "[X] An exception\nTraceback:\n  File\nquivermq.errors.Fenced: another archive\n at Y"
    assert one_line(story) == "another archive"
    assert one_line(story.replace("errors.Fenced", "spark.checkpoints.X")) == "another archive"
    assert one_line("[SOMETHING] else\nmore") == "[SOMETHING] else"
