"""A pipeline as a process, killed where it hurts: rows are exact, in topics and in the table."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path

import psutil
from deltalake import DeltaTable

import quivermq
from quivermq.pipelines.report_reader import latest_reports
from tests.cli.commands import COMMAND, Done, environment, quiver

ROWS = 3_000
TEXT = """\
[pipeline]
name = "killed"
trigger = "100ms"
[pipeline.spark]
"spark.driver.extraJavaOptions" = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

[sources.numbers]
topic = "numbers"
json = "n LONG"
max_rows = 350

[[steps]]
name = "squares"
sql = "SELECT n, n * n AS square FROM numbers"

[[steps]]
name = "counts"
sql = "SELECT n % 7 AS rest, count(*) AS count FROM numbers GROUP BY n % 7"

[sinks.topic]
from = "squares"
topic = "squares"
key = "n"

[sinks.table]
from = "squares"
table = "squares"

[sinks.updates]
from = "counts"
topic = "counts"
key = "rest"
mode = "update"
"""


@contextmanager
def running(file: Path, servers: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`quiver pipeline run`; ends with all its children, whether or not it is still there."""
    # Into files: a pipe that is not read fills up, and the process would wait.
    with file.with_suffix(".out").open("w") as out, file.with_suffix(".err").open("w") as errors:
        process = subprocess.Popen(
            [*COMMAND, "pipeline", "run", str(file), "--servers", servers, *flags],
            stdout=out,
            stderr=errors,
            text=True,
            start_new_session=True,
            env=environment(),
        )
    try:
        yield process
    finally:
        # Java that lost its driver ends by itself, and is let do so.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not what():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def end_of(client: quivermq.Client, topic: str) -> int:
    try:
        return sum(each.end_offset or 0 for each in client.topic(topic).partitions)
    except quivermq.TopicNotFound:
        return 0


def is_everywhere(client: quivermq.Client, folder: Path, rows: int) -> bool:
    """Whether each sink has what comes of so many rows."""
    counts: dict[int, int] = {}
    for each in client.topic("counts").partitions:
        for message in client.read("counts", each.partition):
            row = json.loads(message.value)
            counts[row["rest"]] = max(row["count"], counts.get(row["rest"], 0))
    held = DeltaTable(str(folder / "squares")).count()
    return end_of(client, "squares") == held == sum(counts.values()) == rows


def kill_javas(process: subprocess.Popen[str]) -> None:
    for child in psutil.Process(process.pid).children(recursive=True):
        # Workers of Spark come and go meanwhile.
        with suppress(psutil.NoSuchProcess):
            if child.name() == "java":
                child.kill()


def test_rows_are_exact_though_driver_and_java_are_killed(
    client: quivermq.Client, servers: str, tmp_path: Path
) -> None:
    client.create_topic("numbers", partitions=2)
    client.produce_many("numbers", [json.dumps({"n": n}).encode() for n in range(ROWS)])
    file = tmp_path / "killed.toml"
    file.write_text(TEXT)

    with running(file, servers) as process:
        wait_for(lambda: end_of(client, "squares") > 350, process)
        # Java goes on until it notices, beside the one that starts next.
        process.kill()
    with running(file, servers) as process:
        seen = end_of(client, "squares")
        wait_for(lambda: end_of(client, "squares") > seen + 350, process)
        kill_javas(process)
        process.wait(60)
    said = file.with_suffix(".err").read_text()
    assert process.returncode == 1
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("error: Spark has ended"), said
    assert latest_reports(client)["killed"]["state"] == "failed"
    with running(file, servers, "--json") as process:
        wait_for(lambda: latest_reports(client)["killed"]["state"] == "running", process)
        wait_for(lambda: latest_reports(client)["killed"]["lag"] == 0, process)
        second = quiver("pipeline", "run", file, "--servers", servers)
        assert f"running already, as process {process.pid}" in error_line_of(second)
        shown = quiver("pipeline", "status", "killed", "--servers", servers)
        assert re.search(r"killed +running +[0-9,]+ +[0-9,]+ +0 ", shown.stdout), shown
        client.produce_many("numbers", [json.dumps({"n": ROWS + n}).encode() for n in range(500)])
        wait_for(lambda: is_everywhere(client, tmp_path, ROWS + 500), process)
        wait_for(lambda: latest_reports(client)["killed"]["lag"] == 0, process)
        process.terminate()
        process.wait(120)
    told, said = (file.with_suffix(each).read_text() for each in (".out", ".err"))
    assert (process.returncode, said) == (0, "")
    reports = [json.loads(line) for line in told.splitlines()]
    assert [each for each, _ in groupby(report["state"] for report in reports)] == [
        "starting", "running", "stopping", "stopped",
    ]  # fmt: skip
    [status] = json.loads(
        quiver("pipeline", "status", "killed", "--json", "--servers", servers).stdout
    )
    assert (status["state"], status["lag"], status["trouble"]) == ("stopped", 0, "")
    check_results(client, tmp_path)


def error_line_of(done: Done) -> str:
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def check_results(client: quivermq.Client, folder: Path) -> None:
    rows = ROWS + 500
    expected = [(n, n * n) for n in range(rows)]
    sent = [
        (message.key, json.loads(message.value))
        for each in client.topic("squares").partitions
        for message in client.read("squares", each.partition)
    ]
    assert sorted((row["n"], row["square"]) for _, row in sent) == expected
    assert all(key == str(row["n"]).encode() for key, row in sent)
    table = DeltaTable(str(folder / "squares")).to_pyarrow_table()
    assert (
        sorted(zip(*(table.column(name).to_pylist() for name in ("n", "square")), strict=True))
        == expected
    )
    updates = [
        json.loads(message.value)
        for each in client.topic("counts").partitions
        for message in client.read("counts", each.partition)
    ]
    pairs = [(row["rest"], row["count"]) for row in updates]
    assert len(set(pairs)) == len(pairs), "no update is told twice"
    for rest in range(7):
        counts = [count for each, count in pairs if each == rest]
        assert counts == sorted(counts), "updates of one key are in order"
        assert counts[-1] == len(range(rest, rows, 7))
