"""`quiver up` and `quiver serve`, as processes."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.cli.commands import COMMAND, environment, error_line, quiver, quiver_json
from tests.cli.conftest import RunningUp, is_running, start_up


def serve(*arguments: str, data_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *COMMAND,
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--peer-listen",
            "127.0.0.1:0",
            "--http",
            "",
            "--data-dir",
            str(data_dir),
            *arguments,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )


def wait_for(file: Path) -> dict[str, str]:
    deadline = time.monotonic() + 20
    while not file.exists():
        assert time.monotonic() < deadline, "the broker does not get ready"
        time.sleep(0.02)
    found: dict[str, str] = json.loads(file.read_text())
    return found


def test_up_runs_the_brokers_it_names(cluster: RunningUp) -> None:
    nodes = cluster.told["nodes"]
    assert [node["node_id"] for node in nodes] == [1, 2, 3]
    assert all(is_running(node["pid"]) for node in nodes)
    status = quiver_json("cluster", "status", "--servers", cluster.servers)
    assert [node["address"] for node in status["nodes"]] == [node["listen"] for node in nodes]


def test_up_says_when_a_broker_dies_and_removes_its_folder_at_the_end() -> None:
    running = start_up("--nodes", "1")
    (node,) = running.told["nodes"]
    folder = Path(running.told["data_dir"])
    assert folder.is_dir()
    os.kill(node["pid"], signal.SIGKILL)
    _, said = running.process.communicate(timeout=20)
    assert running.process.returncode == 1
    assert "warning: broker 1 ended by SIGKILL" in said
    assert "error: no broker is left" in said
    assert not folder.exists()


def test_brokers_end_with_an_up_that_was_killed() -> None:
    running = start_up("--nodes", "1")
    running.process.kill()
    running.process.communicate()
    deadline = time.monotonic() + 20
    while is_running(running.told["nodes"][0]["pid"]):
        assert time.monotonic() < deadline, "the broker outlives whoever started it"
        time.sleep(0.05)
    for leftover in Path(running.told["data_dir"]).parent.glob(Path(running.told["data_dir"]).name):
        subprocess.run(["rm", "-r", str(leftover)], check=True)


def test_a_kept_data_directory_holds_its_messages(tmp_path: Path) -> None:
    first = start_up("--nodes", "1", "--data-dir", str(tmp_path))
    quiver("topic", "create", "kept", "--servers", first.servers)
    quiver("produce", "kept", "hello", "--servers", first.servers)
    assert first.stop()[0] == 0
    second = start_up("--nodes", "1", "--data-dir", str(tmp_path))
    assert second.servers == first.servers
    assert quiver("consume", "kept", "--servers", second.servers).stdout == "hello\n"
    assert second.stop()[0] == 0
    refused = quiver("up", "--nodes", "3", "--data-dir", tmp_path)
    assert "holds a cluster of 1: say --nodes 1" in error_line(refused, 1)


def test_serve_tells_its_real_addresses_and_stops_in_good_order(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    broker = serve("--ready-file", str(ready_file), data_dir=tmp_path / "data")
    ready = wait_for(ready_file)
    assert ready["pid"] == broker.pid
    assert not ready["listen"].endswith(":0")
    status = quiver_json("cluster", "status", "--servers", ready["listen"])
    assert [node["id"] for node in status["nodes"]] == [1]
    broker.send_signal(signal.SIGTERM)
    told, said = broker.communicate(timeout=20)
    assert broker.returncode == 0, said
    assert f"clients   {ready['listen']}" in told
    assert f"try: quiver topic create orders --servers {ready['listen']}" in said
    assert "Traceback" not in said
    assert not ready_file.exists()


def test_serve_stops_when_its_input_ends_if_told_to(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    broker = serve("--ready-file", str(ready_file), "--stop-on-eof", data_dir=tmp_path / "data")
    wait_for(ready_file)
    broker.communicate(timeout=20)
    assert broker.returncode == 0


def test_a_data_directory_in_use_is_one_clear_line(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    broker = serve("--ready-file", str(ready_file), "--stop-on-eof", data_dir=tmp_path / "data")
    wait_for(ready_file)
    second = quiver(
        "serve", "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--http", "",
        "--data-dir", tmp_path / "data",
    )  # fmt: skip
    assert "another process uses" in error_line(second, 1)
    broker.communicate(timeout=20)


def test_an_address_in_use_is_one_clear_line(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    broker = serve("--ready-file", str(ready_file), "--stop-on-eof", data_dir=tmp_path / "data")
    taken = wait_for(ready_file)["listen"]
    second = quiver(
        "serve", "--listen", taken, "--peer-listen", "127.0.0.1:0", "--http", "",
        "--data-dir", tmp_path / "other",
    )  # fmt: skip
    assert taken.partition(":")[2] in error_line(second, 1)
    broker.communicate(timeout=20)
