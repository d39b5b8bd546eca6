"""Strangers at the door: whatever they send or hold, the broker serves everybody else."""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from quivermq.testing import Cluster
from quivermq.testing.cluster import DirectConnection
from quivermq.testing.trials import trial

SETTINGS = {"tick_ms": 50, "hello_timeout_ms": 500, "connections_max": 100}
MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, settings=SETTINGS) as cluster, cluster.connect() as client:
        client.create_topic("orders")
        yield cluster


def dial(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=10.0)


def is_closed(end: socket.socket) -> bool:
    """Whether the broker ends it, maybe after a last word."""
    try:
        while end.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def serves(cluster: Cluster) -> bool:
    with cluster.connect(timeout=5.0) as client:
        offset = client.produce("orders", b"meanwhile").offset
        return [m.offset for m in client.read("orders", start=offset)] == [offset]


LIES = {
    "4 GiB": struct.pack(">II", 0xFFFF_FFFF, 100),
    "4 GiB of envelope": struct.pack(">II", 0xFFFF_FFFF, 0xFFFF_FFF0),
    "an envelope larger than its packet": struct.pack(">II", 10, 1000),
    "an envelope of 16 MiB": struct.pack(">II", 17 * MIB, 16 * MIB),
    "nothing at all": struct.pack(">II", 4, 0),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(64),
    "zeros": bytes(4096),
    "noise": os.urandom(1 << 16),
    "an envelope of noise": struct.pack(">II", 104, 100) + os.urandom(100),
}


def client_door(cluster: Cluster) -> str:
    return cluster.nodes[1].address


def peer_door(cluster: Cluster) -> str:
    return cluster.nodes[1].peer_address


@pytest.mark.parametrize("door", [client_door, peer_door])
@pytest.mark.parametrize("lie", LIES)
def test_nonsense_ends_its_connection_and_costs_no_memory(
    cluster: Cluster, lie: str, door: Callable[[Cluster], str]
) -> None:  # F41
    node = cluster.nodes[1]
    before = node.memory_bytes()
    for _ in range(5):
        with dial(door(cluster)) as end:
            # It may be closed before it has all of it.
            with suppress(OSError):
                end.sendall(LIES[lie])
                end.shutdown(socket.SHUT_WR)
            assert is_closed(end)
    assert node.memory_bytes() - before < 16 * MIB
    assert serves(cluster)


@pytest.mark.parametrize("door", [client_door, peer_door])
def test_a_connection_that_never_says_hello_is_closed(
    cluster: Cluster, door: Callable[[Cluster], str]
) -> None:  # F41
    with dial(door(cluster)) as silent:
        assert is_closed(silent)


@pytest.mark.parametrize("door", [client_door, peer_door])
def test_a_hello_that_comes_byte_by_byte_is_not_waited_for(
    cluster: Cluster, door: Callable[[Cluster], str]
) -> None:  # F41
    deadline = time.monotonic() + 10.0
    with dial(door(cluster)) as slow:
        slow.settimeout(0.05)
        slow.sendall(struct.pack(">II", 100_004, 100_000))
        while not has_ended(slow):
            assert time.monotonic() < deadline, "the broker waits for the rest"
            with suppress(OSError):
                slow.sendall(b".")


def has_ended(end: socket.socket) -> bool:
    """Whether the broker has closed it; waits a little."""
    try:
        return end.recv(100) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_more_connections_than_allowed_are_refused_and_then_let_in_again(
    cluster: Cluster,
) -> None:  # F41
    with ExitStack() as stack:
        friend = stack.enter_context(DirectConnection(client_door(cluster)))
        crowd = [stack.enter_context(dial(client_door(cluster))) for _ in range(300)]
        assert sum(map(is_closed, crowd)) == len(crowd)
        assert friend.address
    cluster.wait_until(lambda: serves(cluster), "nobody is let in any more")


def test_large_packets_that_stop_half_way_hold_no_more_than_they_sent(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    before = node.memory_bytes()
    with ExitStack() as stack:
        for _ in range(20):
            end = stack.enter_context(dial(client_door(cluster)))
            end.sendall(struct.pack(">II", 16 * MIB, 100) + bytes(1000))
        assert serves(cluster)
        assert node.memory_bytes() - before < 100 * MIB


def test_strangers_at_all_doors_disturb_no_cluster() -> None:  # F41
    with Cluster(settings={"tick_ms": 50}) as cluster, trial(cluster) as load, ExitStack() as stack:
        for node in cluster.nodes.values():
            for address in (node.address, node.peer_address):
                for lie in LIES.values():
                    stack.enter_context(dial(address)).sendall(lie)
                stack.enter_context(dial(address))
        load.wait_progress(100)
