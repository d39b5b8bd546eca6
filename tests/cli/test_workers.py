"""`quiver serve --workers`: brokers of one machine, started, watched and stopped together."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import quivermq
from quivermq.cli.errors import UsageError
from quivermq.cli.workers import Restarts, as_flags, hold_data_dir, plan_workers
from quivermq.errors import InvalidRequest
from quivermq.settings import BrokerSettings
from tests.cli.commands import COMMAND, environment, error_line, quiver, quiver_json, quiver_process
from tests.cli.conftest import FREE_PORTS, is_running

START_S = 60.0


# Planning.


def test_numbers_ports_and_folders_are_in_a_row(tmp_path: Path) -> None:
    settings = BrokerSettings(
        node_id=4,
        workers=3,
        data_dir=str(tmp_path),
        listen="0.0.0.0:7600",
        advertise="db1:7600",
        peer_listen="[::]:7700",
        http="",
        peers={1: "db0:7700"},
    )
    plans = plan_workers(settings, founders=2)
    assert [plan.node_id for plan in plans] == [4, 5, 6]
    assert [plan.folder.name for plan in plans] == ["worker-1", "worker-2", "worker-3"]
    second, third = plans[1].settings, plans[2].settings
    assert {name: second[name] for name in ("listen", "advertise", "grpc", "http", "join")} == {
        "listen": "0.0.0.0:7601",
        "advertise": "db1:7601",
        "grpc": "127.0.0.1:7651",
        "http": "",
        "join": "",
    }
    assert second["peers"] == "1=db0:7700,4=127.0.0.1:7700,6=127.0.0.1:7702"
    assert (third["peers"], third["join"]) == ("", "db1:7600"), "it came later, and joins"
    for plan in plans:
        # What a worker is told is what a broker takes.
        BrokerSettings.model_validate(plan.settings)


def test_all_join_the_cluster_that_is_named() -> None:
    settings = BrokerSettings(workers=2, node_id=7, join="db0:7600")
    told = [(plan.settings["join"], plan.settings["peers"]) for plan in plan_workers(settings, 0)]
    assert told == [("db0:7600", "")] * 2


def test_port_0_is_a_free_one_of_each() -> None:
    settings = BrokerSettings(
        workers=3, listen="127.0.0.1:0", peer_listen="127.0.0.1:0", http="127.0.0.1:0", grpc=""
    )
    places = [plan.settings for plan in plan_workers(settings, 3)]
    found = [place[name] for place in places for name in ("listen", "peer_listen", "http")]
    assert len(set(found)) == 9
    assert not any(address.endswith(":0") for address in found)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"workers": 60}, "127.0.0.1:7650 would be"),
        ({"workers": 2, "listen": "127.0.0.1:65535"}, "would be port 65536"),
        ({"workers": 3, "peers": {3: "db0:7700"}}, "peers names 3"),
    ],
)
def test_what_does_not_fit_in_a_row_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plan_workers(BrokerSettings(**settings), founders=9)


def test_a_worker_that_dies_again_and_again_is_given_up() -> None:
    restarts = Restarts()
    pauses = [restarts.pause(0.0) for _ in range(11)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(pause or 0 for pause in pauses) == 30.0
    assert pauses[-2:] == [30.0, None]
    assert restarts.pause(60.0) == 0.5, "it served for a minute"


def test_flags_are_passed_on_as_they_were_given() -> None:
    given = {"users": True, "peer_tls": False, "tick_ms": 30, "zone": "a"}
    assert as_flags(given) == ["--users", "--no-peer-tls", "--tick-ms", "30", "--zone", "a"]


# The data directory.


def test_a_directory_is_of_one_broker_or_of_workers(tmp_path: Path) -> None:
    settings = BrokerSettings(workers=2, data_dir=str(tmp_path))
    with hold_data_dir(settings) as founders:
        assert founders == 2
        assert (tmp_path / "workers.pid").read_text() == f"{os.getpid()}\n"
        with pytest.raises(InvalidRequest, match="another process uses"), hold_data_dir(settings):
            pass
    more = settings.model_copy(update={"workers": 3})
    with hold_data_dir(more) as founders:
        assert founders == 2, "the third comes later"
    (tmp_path / "worker-3").mkdir()
    with pytest.raises(InvalidRequest, match="start at least 3 workers"), hold_data_dir(settings):
        pass
    alone = quiver_process("serve", *FREE_PORTS, "--data-dir", tmp_path)
    assert "holds 0 workers" in error_line(alone, 1)
    (tmp_path / "identity.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="data of one broker"), hold_data_dir(more):
        pass


# Running.


@dataclass
class Running:
    """Two workers, ready."""

    process: subprocess.Popen[str]
    told: dict[str, Any]
    folder: Path
    log: Path

    @property
    def servers(self) -> str:
        return str(self.told["servers"])

    def workers(self) -> list[int]:
        return [worker["pid"] for worker in self.told["workers"]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("workers")
    log = folder / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [
                *(*COMMAND, "serve", *FREE_PORTS, "--workers", "2", "--zone", "a"),
                *("--data-dir", str(folder / "data"), "--json"),
                *("--ready-file", str(folder / "ready")),
            ],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            env=environment(QUIVER_TICK_MS="30", QUIVER_FSYNC="never"),
        )
    assert process.stdout is not None
    text = ""
    while not text.endswith("\n}\n"):
        line = process.stdout.readline()
        assert line, log.read_text()
        text += line
    yield Running(process, json.loads(text), folder, log)
    process.kill()
    process.communicate()


def until(holds: Any, what: str) -> Any:
    deadline = time.monotonic() + START_S
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def alive(servers: str) -> list[dict[str, Any]]:
    with quivermq.connect(servers, token="", tls=False) as client:
        return [vars_of(node) for node in client.cluster().nodes if node.alive]


def vars_of(node: Any) -> dict[str, Any]:
    return {name: getattr(node, name) for name in ("id", "zone", "machine", "address")}


def test_workers_are_one_cluster_on_one_machine(running: Running) -> None:
    assert json.loads((running.folder / "ready").read_text()) == running.told
    assert [worker["node_id"] for worker in running.told["workers"]] == [1, 2]
    assert running.told["pid"] == running.process.pid
    found = until(lambda: len(alive(running.servers)) == 2 and alive(running.servers), "both")
    assert {(node["zone"], node["machine"]) for node in found} == {("a", "127.0.0.1")}
    shown = quiver("cluster", "status", "--servers", running.servers)
    assert "1 machine: 127.0.0.1 runs brokers 1, 2" in shown.stdout
    status = quiver_json("cluster", "status", "--servers", running.servers)
    assert [node["machine"] for node in status["nodes"]] == ["127.0.0.1"] * 2
    assert (running.folder / "data" / "worker-2" / "identity.json").exists()


def test_a_worker_that_dies_is_started_again_with_its_data(running: Running) -> None:
    with quivermq.connect(running.servers, token="", tls=False, timeout=START_S) as client:
        client.create_topic("kept", partitions=2, replication=2)
        client.produce("kept", b"before")
        os.kill(running.workers()[1], signal.SIGKILL)
        until(lambda: "started again in 0.5 s" in running.log.read_text(), "nothing was said")
        until(lambda: len(alive(running.servers)) == 2, "it did not come back")
        client.produce("kept", b"after")
        assert {m.value for m in client.read("kept")} == {b"before", b"after"}
    assert not is_running(running.workers()[1])
    assert running.process.poll() is None


def test_each_line_of_the_log_names_its_worker(running: Running) -> None:
    said = [line for line in running.log.read_text().splitlines() if "is a member" in line]
    assert {line.rpartition("node=")[2] for line in said} == {"1 worker=1", "2 worker=2"}


def test_a_signal_stops_them_one_after_the_other(running: Running) -> None:
    pids = [int(pid) for pid in _children(running.process.pid)]
    assert len(pids) == 2
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(START_S) == 0
    assert not any(map(is_running, pids))
    assert not (running.folder / "ready").exists()
    assert "killed" not in running.log.read_text()


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_worker_that_cannot_start_says_why_and_all_are_stopped(tmp_path: Path) -> None:
    missing = quiver_process(
        *("serve", *FREE_PORTS, "--workers", "2", "--data-dir", tmp_path / "data"),
        *("--tls-cert", tmp_path / "none.pem"),
    )
    assert missing.returncode == 1
    assert "none.pem" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_workers_end_with_a_command_that_was_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "serve", *FREE_PORTS, "--workers", "2", "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment(QUIVER_TICK_MS="30", QUIVER_FSYNC="never"),
    )
    pids = until(lambda: _children(process.pid) if process.poll() is None else None, "no worker")
    process.kill()
    process.wait()
    until(lambda: not any(is_running(int(pid)) for pid in pids), "a worker outlives its parent")
