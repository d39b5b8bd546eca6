"""`quiver up` and `quiver serve`, as processes."""

import os
import shutil
import signal
import time
from pathlib import Path

from tests.cli.commands import error_line, quiver, quiver_json, quiver_process
from tests.cli.conftest import FREE_PORTS, RunningUp, Serving, is_running, start_up


def test_up_runs_the_brokers_it_names(cluster: RunningUp) -> None:
    nodes = cluster.told["nodes"]
    assert [node["node_id"] for node in nodes] == [1, 2, 3]
    assert all(is_running(node["pid"]) for node in nodes)
    status = quiver_json("cluster", "status", "--servers", cluster.servers)
    assert [node["address"] for node in status["nodes"]] == [node["listen"] for node in nodes]


def test_up_reports_a_dead_broker_and_removes_its_folder_at_the_end() -> None:
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
        assert time.monotonic() < deadline, "the broker outlives its parent"
        time.sleep(0.05)
    shutil.rmtree(running.told["data_dir"])


def test_a_data_directory_keeps_its_messages_and_ports(tmp_path: Path) -> None:
    first = start_up("--nodes", "1", "--data-dir", str(tmp_path))
    quiver("topic", "create", "kept", "--servers", first.servers)
    quiver("produce", "kept", "hello", "--servers", first.servers)
    assert first.stop()[0] == 0
    second = start_up("--nodes", "1", "--data-dir", str(tmp_path))
    assert second.servers == first.servers
    assert quiver("consume", "kept", "--servers", second.servers).stdout == "hello\n"
    assert second.stop()[0] == 0
    refused = quiver_process("up", "--nodes", "3", "--data-dir", tmp_path)
    assert "holds a cluster of 1: write --nodes 1" in error_line(refused, 1)


def test_serve_reports_its_real_addresses_and_stops_in_order(serving: Serving) -> None:
    listen = serving.ready["listen"]
    assert serving.ready["pid"] == serving.process.pid
    assert not listen.endswith(":0")
    quiver("topic", "create", "orders", "--servers", listen)
    status = quiver_json("cluster", "status", "--servers", listen)
    assert [node["id"] for node in status["nodes"]] == [1]
    serving.process.send_signal(signal.SIGTERM)
    assert serving.process.wait(30) == 0
    told, said = serving.end()
    assert f"clients   {listen}" in told
    assert f"try: quiver topic create orders --servers {listen}" in said
    assert "Traceback" not in said
    assert not serving.ready_file.exists()


def test_serve_stops_when_its_input_ends_if_told_to(serving: Serving) -> None:
    serving.end()
    assert serving.process.returncode == 0


def test_a_data_directory_in_use_is_one_error_line(serving: Serving, tmp_path: Path) -> None:
    second = quiver_process("serve", *FREE_PORTS, "--data-dir", tmp_path / "data")
    assert "another process uses" in error_line(second, 1)


def test_an_address_in_use_is_one_error_line(serving: Serving, tmp_path: Path) -> None:
    taken = serving.ready["listen"]
    second = quiver_process(
        "serve", *FREE_PORTS, "--listen", taken, "--data-dir", tmp_path / "other"
    )
    assert taken in error_line(second, 1)
