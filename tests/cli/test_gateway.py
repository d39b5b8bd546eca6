"""`quiver serve --gateway`, and commands that know gateways only."""

import re
import time
from pathlib import Path

from tests.cli.commands import error_line, quiver, quiver_json
from tests.cli.conftest import RunningUp, start_serve


def test_a_gateway_without_brokers_to_join_is_a_mistake(tmp_path: Path) -> None:
    said = error_line(quiver("serve", "--gateway", cwd=tmp_path), 2)
    assert "--join HOST:PORT,..." in said
    said = error_line(quiver("serve", "--join", "a:1,b:2", cwd=tmp_path), 2)
    assert "only a gateway" in said
    said = error_line(quiver("serve", "--gateway", "--join", "a:1,b", cwd=tmp_path), 2)
    assert "--join" in said
    helped = quiver("serve", "--help").stdout
    assert "--gateway" in helped
    assert "holds no data" in helped


def test_commands_work_through_a_gateway(cluster: RunningUp, tmp_path: Path) -> None:
    with start_serve(tmp_path, "--gateway", "--join", cluster.servers) as gateway:
        servers = ("--servers", gateway.ready["listen"])
        assert gateway.ready["node_id"] == 0
        assert gateway.ready["peer_listen"] == ""
        quiver_json("topic", "create", "by-gateway", "--partitions", "3", *servers)
        assert quiver("produce", "by-gateway", "a", "b", "c", *servers).returncode == 0
        read = quiver("consume", "by-gateway", "--group", "g", "--max", "3", *servers)
        assert sorted(read.stdout.split()) == ["a", "b", "c"]
        status = quiver_json("cluster", "status", *servers)
        assert {node["address"] for node in status["nodes"]} == set(cluster.servers.split(","))
        assert status["by_gateway"]
        findings = quiver_json("doctor", *servers)
        (connection,) = [each for each in findings if each["check"] == "connection"]
        assert "is a gateway" in connection["text"]
        quiver("topic", "delete", "by-gateway", "--yes", *servers)
        # Nothing is on its disk.
        assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]
        said, _ = gateway.end()
        assert "a gateway is serving" in said
        assert gateway.process.returncode == 0


def test_a_gateway_whose_brokers_do_not_answer_says_so_and_keeps_asking(tmp_path: Path) -> None:
    with start_serve(tmp_path, "--gateway", "--join", "127.0.0.1:1") as gateway:
        said = ""
        deadline = time.monotonic() + 30
        assert gateway.process.stderr is not None
        while not re.search("no client can be served.*127.0.0.1:1", said):
            assert time.monotonic() < deadline, said
            said += gateway.process.stderr.readline()
        assert gateway.process.poll() is None
        gateway.end()
        assert gateway.process.returncode == 0
