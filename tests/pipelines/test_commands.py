"""`quiver pipeline` as people meet it: what it refuses and what it shows. None of it runs Spark."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import quivermq
from quivermq.pipelines.loading import parse
from quivermq.pipelines.report_reader import latest_reports
from quivermq.pipelines.reports import Reporter
from quivermq.pipelines.runner import _create_topics, connection_of, lock_checkpoint
from quivermq.testing import Cluster
from tests.cli.commands import quiver
from tests.pipelines.test_loading import GOOD


def test_each_problem_of_a_file_is_a_line_that_begins_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(GOOD.replace("topic", "topik").replace("mode", "mod"))
    for command in ("run", "check"):
        done = quiver("pipeline", command, "bad.toml", cwd=tmp_path)
        assert done.returncode == 1
        assert [line.split(" ")[1] for line in done.stderr.splitlines()] == [
            "bad.toml:5:", "bad.toml:18:", "bad.toml:19:",
        ]  # fmt: skip
        assert all(line.startswith("error: ") for line in done.stderr.splitlines())
    done = quiver("pipeline", "run", "none.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "error: there is no file none.toml\n")


def test_a_missing_topic_is_reported_before_spark_starts(servers: str, tmp_path: Path) -> None:
    file = tmp_path / "missing.toml"
    file.write_text(GOOD.replace('"orders"', '"no-such-orders"'))
    done = quiver("pipeline", "run", file, "--servers", servers)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert f"{file}:5: there is no topic no-such-orders: quiver topic create" in last
    assert "starting Spark" not in done.stderr


def test_a_token_need_not_stand_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    file = parse(GOOD, Path("p.toml"))
    monkeypatch.delenv("QUIVER_TOKEN", raising=False)
    assert connection_of(file, "b:1") == {"servers": "b:1"}
    monkeypatch.setenv("QUIVER_TOKEN", "secret")
    assert connection_of(file)["token"] == "secret"
    named = parse(GOOD.replace('"totals"\n', '"totals"\ntoken = "own"\n', 1), Path("p.toml"))
    assert connection_of(named)["token"] == "own"


def test_brokers_are_those_of_the_caller_the_environment_the_file_or_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    silent = parse(GOOD, Path("p.toml"))
    named = parse(GOOD.replace('"totals"\n', '"totals"\nservers = "f:1"\n', 1), Path("p.toml"))
    monkeypatch.delenv("QUIVER_SERVERS", raising=False)
    assert connection_of(silent)["servers"] == "127.0.0.1:7600"
    user = tmp_path / "client.toml"
    user.write_text('servers = "u:1"\n')
    monkeypatch.setenv("QUIVER_CLIENT_CONFIG", str(user))
    assert connection_of(silent)["servers"] == "u:1"
    assert connection_of(named)["servers"] == "f:1"
    monkeypatch.setenv("QUIVER_SERVERS", "e:1")
    assert connection_of(named)["servers"] == "e:1"
    assert connection_of(named, "c:1")["servers"] == "c:1"


def test_pipelines_that_start_together_may_create_one_topic() -> None:
    files = [parse(f"{GOOD}partitions = {count}\n", Path("p.toml")) for count in range(1, 9)]
    with Cluster(nodes=1, settings={"tick_ms": 50}) as cluster, cluster.connect() as client:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda file: _create_topics(file, client), files))
        assert [each.name for each in client.topics()] == ["totals"]


def test_one_process_at_a_time_holds_a_checkpoint(tmp_path: Path) -> None:
    with (
        lock_checkpoint(str(tmp_path / "c"), "p"),
        pytest.raises(quivermq.InvalidRequest, match=r"running already, as process [0-9]+"),
        lock_checkpoint(str(tmp_path / "c"), "p"),
    ):
        raise AssertionError
    with lock_checkpoint(str(tmp_path / "c"), "p"), lock_checkpoint("s3://bucket/c", "p"):
        pass


LOGGED = r"""
import os, re, sys
from pathlib import Path
from quivermq.pipelines.spark_logs import log_to
with log_to(sys.argv[1]):
    text = Path(os.environ["SPARK_CONF_DIR"], "log4j2.properties").read_text()
    (name,) = re.findall("fileName = (.*)", text)
    assert re.fullmatch(r"[\w./-]+", name, re.ASCII), name
    Path(name).touch()
"""


@pytest.mark.parametrize("name", ["plain", "sp äce ${env:HOME}", "100%d\\u0041\nb"])
def test_sparks_log_is_beside_a_checkpoint_of_any_name(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    environ = {key: each for key, each in os.environ.items() if not key.startswith("SPARK_")}
    command = [sys.executable, "-c", LOGGED, str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["spark.err", "spark.log"]


def report(name: str, state: str, trouble: str = "") -> dict[str, object]:
    at = datetime.now(UTC) - timedelta(days=1)  # by a clock that is wrong
    sink = {"sink": "out", "target": "topic [red]x", "batch": 3, "rows": 1_200}
    return {
        "pipeline": name, "state": state, "at": at.isoformat(), "host": "pine", "pid": 7,
        "rows": 1_200, "rows_per_second": 80.4, "lag": 1_000, "trouble": trouble,
        "sinks": [sink | {"rows_per_second": 80.4, "lag": 1_000, "batch_ms": 1_500}],
    }  # fmt: skip


def test_status_shows_the_last_word_of_each_pipeline() -> None:
    with Cluster(nodes=1, settings={"tick_ms": 50}) as cluster:
        where = ("--servers", cluster.servers)
        none = quiver("pipeline", "status", *where)
        assert "no pipeline has reported" in none.stderr
        reporter = Reporter(cluster.servers)
        with cluster.connect() as client:
            for each in (report("a", "starting"), report("a", "running")):
                before = total(client)
                reporter.publish(each)
                while total(client) == before:
                    time.sleep(0.01)
            reporter.close()
            hostile = "sinks.out: no such \x1b[2J[/red] thing"
            hear(client, report("b", "running"), 100)
            hear(client, report("c", "failed", hostile), 7_300)
            client.produce("_pipelines", b"no report at all", key=b"d")
            client.produce("_pipelines", json.dumps(report("a", "[red]") | {"rows": "?"}), key="a")
        shown = quiver("pipeline", "status", *where)
        rows = [line.split() for line in shown.stdout.splitlines() if "pine" in line]
        assert [row[:5] for row in rows] == [
            ["a", "running", "1,200", "80", "1,000"],
            ["b", "silent", "1,200", "-", "1,000"],
            ["c", "failed", "1,200", "-", "1,000"],
        ]
        assert rows[2][5:7] == ["2h2m", "ago"]
        assert "b said nothing for 1m4" in shown.stderr
        assert r"sinks.out: no such \x1b[2J[/red] thing" in shown.stderr
        one = quiver("pipeline", "status", "a", *where)
        assert "topic [red]x" in one.stdout
        assert "1.5 s" in one.stdout
        assert "b" not in one.stderr
        missing = quiver("pipeline", "status", "z", *where)
        assert missing.returncode == 1
        assert "no pipeline z has reported (there are: a, b, c)" in missing.stderr
        told = json.loads(quiver("pipeline", "status", "--json", *where).stdout)
        assert [each["state"] for each in told] == ["running", "silent", "failed"]


def hear(client: quivermq.Client, each: dict[str, object], age: float) -> None:
    """A report that a broker took some seconds ago."""
    taken = round((time.time() - age) * 1_000)
    value, key = json.dumps(each).encode(), str(each["pipeline"]).encode()
    client.produce_many("_pipelines", [value], [key], timestamps=[taken])


def test_the_report_of_a_busy_pipeline_is_repeated_until_a_final_one() -> None:
    with Cluster(nodes=1, settings={"tick_ms": 50}) as cluster, cluster.connect() as client:
        reporter, other = (Reporter(cluster.servers, repeat=0.05) for _ in range(2))
        reporter.publish(report("a", "stopping"))
        other.publish(report("b", "running"))
        while total(client) < 6:
            time.sleep(0.01)
        reporter.publish(report("a", "stopped"))
        other.publish(report("b", "failed"))
        while {each["state"] for each in latest_reports(client).values()} != {"stopped", "failed"}:
            time.sleep(0.01)
        before = total(client)
        time.sleep(0.3)
        assert total(client) == before
        reporter.close()
        other.close()
        assert reporter.trouble == other.trouble == ""


def total(client: quivermq.Client) -> int:
    try:
        return sum(each.end_offset or 0 for each in client.topic("_pipelines").partitions)
    except quivermq.TopicNotFound:
        return 0
