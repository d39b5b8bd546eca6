"""The listener for clients with TLS: the clients that get in, and all those that must not."""

import asyncio
import contextlib
import socket
import ssl
from datetime import timedelta
from pathlib import Path

import pytest

import quivermq
import quivermq.aio
from quivermq.addresses import split_address
from quivermq.errors import ConnectionFailed
from quivermq.transports import Server
from tests.client.stand_in import StandIn
from tests.node.cluster_stage import free_addresses
from tests.tls.stage import Certificates
from tests.transports.stage import (
    Talker,
    make_topic,
    on_loop,
    on_served_loop,
    serving,
    store,
    until,
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("foreign"))


async def connect_blocking(server: Server, **options: object) -> None:
    """Connect in a thread, as a program without an event loop would, and use the connection."""

    def work() -> None:
        with quivermq.connect(server.listen, **options) as client:  # type: ignore[arg-type]
            client.cluster()

    await asyncio.to_thread(work)


async def failure(server: Server, **options: object) -> str:
    """Why neither client gets in."""
    found = []
    for attempt in (connect_blocking, connect_aio):
        with pytest.raises(ConnectionFailed) as error:
            await attempt(server, timeout=1.0, **options)
        found.append(str(error.value))
    assert "TLS" in found[0]
    assert "TLS" in found[1]
    return "\n".join(found)


async def connect_aio(server: Server, **options: object) -> None:
    async with quivermq.aio.connect(server.listen, **options) as client:  # type: ignore[arg-type]
        await client.cluster()


@on_served_loop
async def test_everything_passes_through_tls(tmp_path: Path, certificates: Certificates) -> None:
    values = [b"x" * 1_000] * 20_000
    async with serving(tmp_path, **certificates.settings()) as server:
        async with quivermq.aio.connect(server.listen, tls=certificates.ca) as client:
            await client.create_topic("orders")
            await client.produce_many("orders", values)
            assert [m.value async for m in client.read("orders")] == values
        await connect_blocking(server, tls=certificates.ca)
        await connect_blocking(server, tls=Path(certificates.ca))
        await connect_blocking(server, tls=certificates.client())


@on_loop
async def test_the_same_on_the_event_loop_of_asyncio(
    tmp_path: Path, certificates: Certificates
) -> None:
    async with serving(tmp_path, **certificates.settings()) as server:
        talker = await Talker.by_socket(server, ssl=certificates.client())
        await make_topic(talker)
        await store(talker, b"v" * 200_000)
        talker.close()


@on_served_loop
async def test_the_variable_names_the_ca(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, **certificates.settings()) as server:
        monkeypatch.setenv("QUIVER_TLS_CA", certificates.ca)
        await connect_blocking(server)
        await connect_aio(server)
        assert "expects TLS" in await failure(server, tls=False)


@on_served_loop
async def test_a_client_without_tls_is_told_that_tls_is_expected(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, **certificates.settings()) as server:
        told = await failure(server)
        assert told.count("this broker expects TLS: connect(tls='ca.pem')") == 2
        await connect_aio(server, tls=certificates.ca)
    assert "it does not speak TLS" in caplog.text


@on_served_loop
async def test_a_client_with_tls_is_told_that_the_broker_has_none(
    tmp_path: Path, certificates: Certificates
) -> None:
    async with serving(tmp_path) as server:
        told = await failure(server, tls=certificates.ca)
        assert told.count("does not speak TLS: connect without tls") == 2
        await connect_aio(server)


@on_served_loop
async def test_a_broker_of_another_ca_is_not_trusted(
    tmp_path: Path, certificates: Certificates, foreign: Certificates
) -> None:
    async with serving(tmp_path, **certificates.settings()) as server:
        assert "its certificate is not accepted" in await failure(server, tls=foreign.ca)
        assert "its certificate is not accepted" in await failure(server, tls=True)
        await connect_aio(server, tls=certificates.ca)


@on_served_loop
async def test_a_certificate_of_another_host_is_not_accepted(
    tmp_path: Path, certificates: Certificates
) -> None:
    certificates.make("elsewhere", hosts=["localhost"])
    given = certificates.settings("elsewhere")
    (address,) = free_addresses(1)
    advertised = address.replace("127.0.0.1", "localhost")
    async with serving(tmp_path, listen=address, advertise=advertised, **given) as server:
        assert "mismatch" in await failure(server, tls=certificates.ca)


def test_an_expired_certificate_is_not_accepted(certificates: Certificates) -> None:
    certificates.make("old", days=1, age=timedelta(days=2))
    with (
        StandIn(tls=certificates.server("old")) as broker,
        pytest.raises(ConnectionFailed, match="certificate has expired"),
    ):
        quivermq.connect(broker.address, tls=certificates.ca, timeout=1.0)


@on_served_loop
async def test_versions_before_1_2_are_refused(tmp_path: Path, certificates: Certificates) -> None:
    old = certificates.client()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    async with serving(tmp_path, **certificates.settings()) as server:
        with pytest.raises(OSError):  # noqa: PT011  (an alert or a reset, as the loop has it)
            await Talker.by_socket(server, ssl=old)
        await connect_aio(server, tls=certificates.ca)


@on_served_loop
async def test_a_handshake_that_never_ends_is_ended(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, hello_timeout_ms=200, **certificates.settings()) as server:
        for said in (b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"):
            began = asyncio.get_running_loop().time()
            reader, writer = await asyncio.open_connection(*split_address(server.listen))
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            assert 0.1 < asyncio.get_running_loop().time() - began < 5
            writer.close()
        # Past the handshake the hello is still awaited, not for ever.
        talker = await Talker.by_socket(server, hello=False, ssl=certificates.client())
        await talker.until_lost()
        await connect_aio(server, tls=certificates.ca)


@on_served_loop
async def test_nonsense_instead_of_a_handshake_hurts_nobody_else(
    tmp_path: Path, certificates: Certificates
) -> None:
    async with serving(tmp_path, **certificates.settings()) as server:
        for said in (b"\x16\x03\x01\xff\xff" + b"\xff" * 100, b"\x16" * 20_000, b"GET / HTTP/1.1"):
            reader, writer = await asyncio.open_connection(*split_address(server.listen))
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
            writer.close()
        await connect_aio(server, tls=certificates.ca)


@on_served_loop
async def test_silent_connections_take_no_place_of_a_client(
    tmp_path: Path, certificates: Certificates
) -> None:
    given = certificates.settings()
    async with serving(tmp_path, connections_max=20, **given) as server:
        place = split_address(server.listen)
        silent = [socket.create_connection(place) for _ in range(60)]
        try:
            await connect_aio(server, tls=certificates.ca)
            # 80 % of 20 may wait, from one address; of these the newcomer closed one.
            await until(lambda: sum(map(is_closed, silent)) == 60 - 15)
        finally:
            for each in silent:
                each.close()


def is_closed(end: socket.socket) -> bool:
    try:
        return end.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


@on_served_loop
async def test_many_handshakes_at_once_do_not_hold_the_loop(
    tmp_path: Path, certificates: Certificates
) -> None:
    # The budget for stalls of all tests watches this one too.
    async with serving(tmp_path, **certificates.settings()) as server:
        context = certificates.client()
        talkers = await asyncio.gather(*(Talker.by_socket(server, ssl=context) for _ in range(100)))
        # And the broker itself.
        assert server.broker.counters.connections == 101
        for talker in talkers:
            talker.close()
        await until(lambda: server.broker.counters.connections == 1)


@on_served_loop
async def test_a_broker_that_stops_ends_handshakes(
    tmp_path: Path, certificates: Certificates
) -> None:
    async with serving(tmp_path, **certificates.settings()) as server:
        reader, writer = await asyncio.open_connection(*split_address(server.listen))
        other = await Talker.by_socket(server, ssl=certificates.client())
    assert await reader.read() == b""
    await other.until_lost()
    writer.close()
