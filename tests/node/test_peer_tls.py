"""Brokers that show each other certificates, and strangers at their port."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import quivermq.aio
from quivermq.addresses import split_address
from quivermq.errors import InvalidRequest
from quivermq.tls.certificates import CLIENT
from quivermq.transports import Server
from quivermq.wire import PROTOCOL, Receiver, packet, parse_peer_hello, proto
from tests.node.cluster_stage import Brokers, cluster
from tests.tls.stage import Certificates
from tests.transports.stage import PATIENT, on_served_loop, serving, settings, until


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("tls"))
    made.make("visitor", usages=CLIENT)
    made.make("expired", days=1, age=timedelta(days=2))
    return made


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("foreign"))


async def greet(server: Server, context: ssl.SSLContext | None) -> proto.PeerHello | None:
    """Pose as broker 2 at the peer port; its answer, or None if it says nothing at all."""
    try:
        reader, writer = await asyncio.open_connection(
            *split_address(server.peer_listen), ssl=context
        )
    except OSError:
        return None
    try:
        hello = proto.PeerHello(protocol=PROTOCOL, protocol_min=PROTOCOL, node=2)
        writer.writelines(packet(hello.SerializeToString()))
        receiver = Receiver(1 << 20)
        while said := await reader.read(1 << 16):
            receiver.get_buffer()[: len(said)] = said
            for found in receiver.received(len(said)):
                return parse_peer_hello(found.envelope)
    except OSError:
        pass
    finally:
        writer.transport.abort()
    return None


async def greet_at_once(server: Server, context: ssl.SSLContext) -> bytes:
    """The same with the hello in the last packet of the handshake; all that is said to it."""
    reader, writer = await asyncio.open_connection(*split_address(server.peer_listen))
    inwards, outwards = ssl.MemoryBIO(), ssl.MemoryBIO()
    end = context.wrap_bio(inwards, outwards, server_hostname="127.0.0.1")
    answer = b""
    try:
        while True:
            try:
                end.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outwards.read())
                inwards.write(await reader.read(1 << 16))
        hello = proto.PeerHello(protocol=PROTOCOL, protocol_min=PROTOCOL, node=2)
        end.write(b"".join(packet(hello.SerializeToString())))
        writer.write(outwards.read())
        while not answer and (said := await reader.read(1 << 16)):
            inwards.write(said)
            with suppress(ssl.SSLWantReadError):
                answer += end.read(1 << 16)
    except OSError:
        pass
    finally:
        writer.transport.abort()
    return answer


@asynccontextmanager
async def secure(folder: Path, certificates: Certificates, **more: Any) -> AsyncIterator[Brokers]:
    given = {**PATIENT, **certificates.settings(mutual=True), **more}
    async with cluster(folder, **given) as brokers:
        yield brokers


@on_served_loop
async def test_a_cluster_works_with_tls_everywhere(
    tmp_path: Path, certificates: Certificates
) -> None:
    async with secure(tmp_path, certificates) as brokers:
        for server in brokers.running.values():
            # By whichever broker it is asked, a request reaches its leader.
            async with quivermq.aio.connect(server.listen, tls=certificates.ca) as client:
                name = f"by-{server.settings.node_id}"
                await client.create_topic(name, replication=3)
                await client.produce(name, b"x" * 100_000)
        links = [link for s in brokers.running.values() for p in s.broker.links.peers.values()
                 for link in p.lanes.values()]  # fmt: skip
        assert len(links) == 12
        for link in links:
            assert link.connection is not None
            transport = link.connection.transport
            assert transport is not None
            assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        await brokers.stop(1)
        async with quivermq.aio.connect(brokers.running[2].listen, tls=certificates.ca) as client:
            await client.produce("by-1", b"after one is gone")


@on_served_loop
async def test_strangers_get_nowhere_at_the_peer_port(
    tmp_path: Path, certificates: Certificates, foreign: Certificates
) -> None:
    async with serving(tmp_path, **certificates.settings(mutual=True)) as server:
        refused = await greet(server, None)
        assert refused is not None
        assert "expects TLS" in refused.refusal
        assert not refused.cluster_id
        assert await greet(server, certificates.client()) is None
        assert await greet(server, certificates.client("expired")) is None
        # A certificate of our CA, for a client: it is no broker.
        assert await greet(server, certificates.client("visitor")) is None
        stranger = certificates.client()
        stranger.load_cert_chain(foreign.folder / "server.pem", foreign.folder / "server.key")
        assert await greet(server, stranger) is None
        assert not list(server.broker.links._incoming)
        assert await greet_at_once(server, certificates.client("visitor")) == b""
        assert not list(server.broker.links._incoming)
        # All that hinders them is the certificate.
        assert await greet_at_once(server, certificates.client("server"))
        welcome = await greet(server, certificates.client("server"))
        assert welcome is not None
        assert welcome.cluster_id


@on_served_loop
async def test_a_handshake_at_the_peer_port_that_never_ends_is_ended(
    tmp_path: Path, certificates: Certificates
) -> None:
    given = certificates.settings(mutual=True)
    async with serving(tmp_path, hello_timeout_ms=200, **given) as server:
        for said in (b"", b"\x16\x03\x01"):
            reader, writer = await asyncio.open_connection(*split_address(server.peer_listen))
            writer.write(said)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        # Past the handshake too.
        context = certificates.client("server")
        reader, writer = await asyncio.open_connection(
            *split_address(server.peer_listen), ssl=context
        )
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("mutual", [True, False])
@on_served_loop
async def test_a_broker_that_others_do_not_accept_says_why(
    tmp_path: Path,
    certificates: Certificates,
    foreign: Certificates,
    caplog: pytest.LogCaptureFixture,
    mutual: bool,
) -> None:
    async with secure(tmp_path, certificates) as brokers:
        await brokers.stop(3)
        # Of another CA, or without TLS between brokers.
        brokers._changes.update((foreign if mutual else certificates).settings(mutual=mutual))
        await brokers.start(3)
        peers = brokers.running[3].broker.links.peers
        await until(lambda: all(peer.refusal for peer in peers.values()))
        expected = "its certificate is not accepted" if mutual else "start all brokers with --peer"
        assert all(expected in peer.refusal for peer in peers.values())
        assert expected in caplog.text
        assert not brokers.running[3].broker.is_ready
        await brokers.stop(3)
        brokers._changes.update(certificates.settings(mutual=True))
        await brokers.start(3)
        await brokers.until_ready(3)


@on_served_loop
async def test_a_broker_that_cannot_register_for_want_of_tls_says_so(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path / "1", **certificates.settings()) as server:
        joining = Server(settings(tmp_path / "2", node_id=2, join=server.listen))
        await joining.start()
        await until(lambda: "node 2 cannot register with its cluster" in caplog.text)
        await joining.stop()
    assert "this broker expects TLS" in caplog.text


@on_served_loop
async def test_a_broker_whose_certificate_names_another_host_does_not_start(
    tmp_path: Path, certificates: Certificates
) -> None:
    certificates.make("elsewhere", hosts=["elsewhere.example"])
    given = certificates.settings("elsewhere")
    with pytest.raises(InvalidRequest, match=r"quiver cert --host 127\.0\.0\.1"):
        async with serving(tmp_path, **given):
            pass
    advertised = {"advertise": "elsewhere.example:1", "peer_tls": True}
    with pytest.raises(InvalidRequest, match="set advertise_peer"):
        async with serving(tmp_path, **{**given, **advertised}):
            pass
