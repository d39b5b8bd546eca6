"""The cluster of processes itself: what it offers, and that it leaves nothing behind."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quivermq.testing import Cluster, ClusterError

ONE = {"tick_ms": 20}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_dead(pids: list[int], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"still alive: {[p for p in pids if is_alive(p)]}"
        time.sleep(0.01)


def test_a_cluster_serves_and_leaves_no_process_file_or_port() -> None:
    with Cluster(nodes=1, settings=ONE) as cluster:
        node = cluster.nodes[1]
        with cluster.connect() as client:
            client.create_topic("orders")
            client.produce("orders", b"first")
            assert [message.value for message in client.read("orders")] == [b"first"]
        pid, folder, address = node.pid, node.data_dir, node.address
        assert is_alive(pid)
        assert folder.is_dir()
        assert cluster.leader("orders") == 1
    assert not is_alive(pid)
    assert not folder.exists()
    host, port = address.split(":")
    with socket.create_server((host, int(port))):
        pass


def test_files_stay_in_a_directory_of_your_own_and_serve_again(tmp_path: Path) -> None:
    with Cluster(nodes=1, settings=ONE, data_dir=tmp_path) as cluster, cluster.connect() as client:
        client.create_topic("orders")
        client.produce("orders", b"kept")
    with Cluster(nodes=1, settings=ONE, data_dir=tmp_path) as cluster, cluster.connect() as client:
        assert [message.value for message in client.read("orders")] == [b"kept"]


def test_a_node_keeps_its_address_over_kills_stops_and_starts() -> None:
    with Cluster(nodes=1, settings=ONE) as cluster:
        node = cluster.nodes[1]
        for end in (node.kill, node.stop):
            end()
            assert not node.is_running
            cluster.start()
        with cluster.connect() as client:
            assert client.cluster().nodes[0].address == node.address


def test_it_works_from_asyncio() -> None:
    async def use() -> int:
        async with Cluster(nodes=1, settings=ONE) as cluster:
            return cluster.nodes[1].pid

    assert not is_alive(asyncio.run(use()))


def test_a_broker_that_cannot_start_says_why() -> None:
    cluster = Cluster(nodes=1, settings={"listen": "127.0.0.1:0", "segment_bytes": 1})
    with pytest.raises(ClusterError, match="segment_bytes"):
        cluster.__enter__()
    assert not cluster.nodes[1].is_running
    assert not cluster.nodes[1].data_dir.parent.exists()


def test_a_failure_in_the_block_carries_the_logs_of_the_brokers() -> None:
    def is_member() -> bool:
        return "is a member of cluster" in cluster.nodes[1].log_text()

    with pytest.raises(KeyError) as failure, Cluster(nodes=1, settings=ONE) as cluster:  # noqa: PT012
        cluster.wait_until(is_member, "it serves, and does not say that it is a member")
        raise KeyError
    assert any("is a member of cluster" in note for note in failure.value.__notes__)


HOLDER = """
import sys, time
from quivermq.testing import Cluster
cluster = Cluster(nodes=2, settings={"tick_ms": 20}, data_dir=sys.argv[1])
cluster.start()
cluster.nodes[2].pause()
print("pids", *(node.pid for node in cluster.nodes.values()), flush=True)
time.sleep(600)
"""


def test_brokers_die_with_their_parent_process_even_paused_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        pids = [int(pid) for pid in re.findall(r"\d+", holder.stdout.readline())]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
    finally:
        holder.kill()
        holder.communicate()
    try:
        wait_dead(pids)
    finally:
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_a_paused_node_stands_still_and_goes_on() -> None:
    with Cluster(nodes=1, settings=ONE) as cluster:
        with cluster.paused(1):
            assert Path(f"/proc/{cluster.nodes[1].pid}/stat").read_text().split()[2] == "T"
            assert cluster.describe(1, "orders") is None
        cluster.wait_ready()


def test_a_slow_disk_and_a_stalled_loop_are_felt() -> None:
    with Cluster(nodes=1, settings=ONE) as cluster, cluster.connect() as client:
        client.create_topic("orders")
        cluster.nodes[1].slow_disk(300)
        began = time.monotonic()
        client.produce("orders", b"slow")
        assert time.monotonic() - began > 0.3
        cluster.nodes[1].slow_disk(0)
        began = time.monotonic()
        cluster.nodes[1].stall(0.3)
        client.stats()
        assert time.monotonic() - began > 0.3
