"""Crowds and bombs against a broker in a process of its own: what they cost, and who is served."""

import asyncio
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from quivermq.addresses import split_address
from quivermq.testing import Cluster
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import PROTOCOL, proto
from tests.wire.samples import packed

CROWD = 10_000
PLACES = [f"127.0.0.{number}" for number in range(2, 6)]
"""Where they come from: one address may not have all connections."""
AT_ONCE = 200
MIB = 1 << 20
PATIENCE_S = 60.0
HELLO = packed(
    proto.Request(
        id=1, hello=proto.Hello(protocol=PROTOCOL, client="one of many")
    ).SerializeToString()
)
QUESTION = packed(
    proto.Request(
        id=2, describe_topics=proto.DescribeTopics(topics=["x" * 5_000])
    ).SerializeToString()
)
"""More than a connection that has not said hello has room for."""


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for so many sockets, here and in the broker, which inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CROWD + 1_000
    if hard < wanted:
        pytest.skip(f"a process may have {hard} files here, and this takes {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ten_thousand_idle_connections_cost_little_and_others_are_served(
    many_files: None, record_property: Callable[[str, object], None]
) -> None:
    settings = {"connections_max": 4 * CROWD, "hello_timeout_ms": 60_000}
    with Cluster(nodes=1, settings=settings) as cluster, cluster.connect() as client:
        client.create_topic("orders")
        node = cluster.nodes[1]
        before = node.memory_bytes()
        with asyncio.Runner() as runner:
            crowd = runner.run(gather_crowd(node.address))
            assert len(crowd) == CROWD
            each = (node.memory_bytes() - before) / CROWD
            record_property("bytes_per_connection", each)
            print(f"{each / 1024:.1f} KiB a connection")
            # Measured: 4.7 KiB; 133 KiB with a whole buffer for each.
            assert each < 32 << 10
            # An old client, and one that comes now.
            assert client.produce("orders", b"old").offset == 0
            with cluster.connect(timeout=20.0) as late:
                assert late.produce("orders", b"new").offset == 1
                (first, second) = late.poll("orders", group="g", max_messages=2, wait=20.0)
                assert (first.value, second.value) == (b"old", b"new")
            for end in crowd:
                end.close()


async def gather_crowd(address: str) -> list[socket.socket]:
    """Connections that said hello, asked something, were answered, and are silent from then on."""
    loop = asyncio.get_running_loop()
    places = asyncio.Semaphore(AT_ONCE)

    async def join(number: int) -> socket.socket:
        end = socket.socket()
        end.setblocking(False)
        end.bind((PLACES[number % len(PLACES)], 0))
        async with places:
            await loop.sock_connect(end, split_address(address))
            await loop.sock_sendall(end, HELLO)
            assert await loop.sock_recv(end, 1 << 12)
            await loop.sock_sendall(end, QUESTION)
            assert await loop.sock_recv(end, 1 << 12)
        return end

    return list(await asyncio.gather(*map(join, range(CROWD))))


def high_water_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the system does not tell")


def test_a_compressed_bomb_is_not_unpacked() -> None:
    with Cluster(nodes=1, settings={"grpc": "127.0.0.1:0"}) as cluster, cluster.connect() as client:
        client.create_topic("orders")
        node = cluster.nodes[1]
        with grpc.insecure_channel(node.grpc_address) as channel:
            produce = channel.unary_unary("/quiver.v1.Quiver/Produce")
            for algorithm in (grpc.Compression.Gzip, grpc.Compression.Deflate):
                small = request_of(b"x" * 5_000)
                assert produce(small, compression=algorithm, timeout=PATIENCE_S)
                before = high_water_bytes(node.pid)
                with pytest.raises(grpc.RpcError) as caught:
                    produce(request_of(bytes(96 * MIB)), compression=algorithm, timeout=PATIENCE_S)
                assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                # A hundred kilobytes on the wire.
                assert high_water_bytes(node.pid) - before < 48 * MIB
        assert client.produce("orders", b"after").offset == 2


def request_of(value: bytes) -> bytes:
    message = api.NewMessage(value=value)
    return api.ProduceRequest(topic="orders", messages=[message]).SerializeToString()
