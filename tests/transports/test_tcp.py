"""Clients on sockets: slow ones, stuck ones, and those that speak something else."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from quivermq.addresses import split_address
from quivermq.errors import ConnectionFailed
from quivermq.transports import Server
from quivermq.wire import proto
from tests.tls.stage import Certificates
from tests.transports.stage import (
    Talker,
    make_topic,
    on_served_loop,
    serving,
    settings,
    store,
    until,
)

BATCH_BYTES = 64 << 10
UNREAD_BYTES = 512 << 10


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def tls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The settings of a broker, without TLS or with it."""
    return Certificates(tmp_path_factory.mktemp("tls")).settings() if request.param else {}


def options(server: Server, **more: str) -> dict[str, Any]:
    """How a client connects to a broker that has TLS or not."""
    if not server.settings.tls_ca:
        return {}
    return {"ssl": ssl.create_default_context(cafile=server.settings.tls_ca), **more}


async def lazy_talker(server: Server) -> Talker:
    """A client whose system takes little before it is asked to read."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    place.setblocking(False)
    await asyncio.get_running_loop().sock_connect(place, split_address(server.listen))
    talker = Talker()
    await asyncio.get_running_loop().create_connection(
        lambda: talker, sock=place, **options(server, server_hostname="127.0.0.1")
    )
    await talker.greet()
    return talker


def unread(server: Server) -> int:
    """The answers that wait in the broker for the client that has most."""
    assert server.client_connections is not None
    return max(
        connection.session.backlog.unread for connection in server.client_connections.connections
    )


async def fill(server: Server, batches: int) -> None:
    talker = await Talker.in_memory(server)
    await make_topic(talker)
    for _ in range(batches):
        await store(talker, b"x" * BATCH_BYTES)


@on_served_loop
async def test_what_a_client_does_not_read_does_not_grow(
    tmp_path: Path, tls: dict[str, Any]
) -> None:
    async with serving(tmp_path, unread_bytes_max=UNREAD_BYTES, **tls) as server:
        await fill(server, 4)
        talker = await lazy_talker(server)
        talker.transport.pause_reading()
        asked = range(100, 400)
        for number in asked:
            fetch = proto.Fetch(topic="orders", bytes_max=BATCH_BYTES)
            talker.say(proto.Request(id=number, fetch=fetch))
        await until(lambda: unread(server) > UNREAD_BYTES // 2)
        # Everything that could be made without room would be made in this time.
        most = 0
        for _ in range(50):
            await asyncio.sleep(0.005)
            most = max(most, unread(server))
        talker.transport.resume_reading()
        while len(talker.heard) < len(asked):
            most = max(most, unread(server))
            await asyncio.sleep(0.002)
        assert sorted(answer.id for answer in talker.heard) == list(asked)
        assert talker.batches_bytes > len(asked) * BATCH_BYTES
        assert most <= UNREAD_BYTES + 2 * BATCH_BYTES
        talker.close()


@on_served_loop
async def test_a_client_that_reads_nothing_is_disconnected_and_others_are_served(
    tmp_path: Path, tls: dict[str, Any]
) -> None:
    limits = {"unread_bytes_max": UNREAD_BYTES, "idle_timeout_ms": 500, "hello_timeout_ms": 5_000}
    async with serving(tmp_path, **limits, **tls) as server:
        await fill(server, 4)
        talker = await lazy_talker(server)
        talker.transport.pause_reading()
        for number in range(100, 400):
            fetch = proto.Fetch(topic="orders", bytes_max=BATCH_BYTES)
            talker.say(proto.Request(id=number, fetch=fetch))
        await until(lambda: unread(server) > UNREAD_BYTES // 2)
        other = await Talker.by_socket(server, **options(server))
        assert server.client_connections is not None
        while any(one.session.backlog.unread for one in server.client_connections.connections):
            await store(other, b"others go on")
        # It had hundreds of requests open: they are given up with it.
        talker.transport.resume_reading()
        await talker.until_lost()
        assert len(talker.heard) < 300
        other.close()


@on_served_loop
async def test_a_broker_that_stops_parts_with_a_client_that_reads_nothing(
    tmp_path: Path, tls: dict[str, Any]
) -> None:
    async with serving(tmp_path, unread_bytes_max=UNREAD_BYTES, **tls) as server:
        await fill(server, 4)
        talker = await lazy_talker(server)
        talker.transport.pause_reading()
        for number in range(100, 400):
            fetch = proto.Fetch(topic="orders", bytes_max=BATCH_BYTES)
            talker.say(proto.Request(id=number, fetch=fetch))
        await until(lambda: unread(server) > UNREAD_BYTES // 2)
        assert server.client_connections is not None
        await server.client_connections.close()
        assert not server.client_connections.connections
        talker.close()


@on_served_loop
async def test_a_browser_that_strays_here_is_told_and_closed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        reader, writer = await asyncio.open_connection(*split_address(server.listen))
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        said = await reader.read()
        assert b"no QuiverMQ client" in said
        writer.close()
        await writer.wait_closed()


@on_served_loop
async def test_an_address_that_is_taken_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    async with serving(tmp_path / "1") as server:
        for name in ("listen", "peer_listen", "http"):
            taken = getattr(server, name) or server.listen
            other = Server(settings(tmp_path / name, **{name: taken}))
            with pytest.raises(ConnectionFailed, match=f"cannot listen at {taken}"):
                await other.start()
            # Its directory is free again.
            async with serving(tmp_path / name):
                pass


@on_served_loop
async def test_a_directory_that_is_in_use_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path):
        other = Server(settings(tmp_path))
        with pytest.raises(Exception, match="another process uses"):
            await other.start()
        await other.stop()


@on_served_loop
async def test_ipv6_addresses_keep_their_brackets(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("this system has no IPv6")
    try:
        async with serving(tmp_path, listen="[::1]:0", http="[::1]:0") as server:
            assert server.listen.startswith("[::1]:")
            assert server.http.startswith("[::1]:")
            talker = await Talker.by_socket(server)
            talker.close()
    except ConnectionFailed as error:
        pytest.skip(f"this system has no IPv6: {error}")
