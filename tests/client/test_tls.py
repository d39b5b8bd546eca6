"""TLS over both transports, and the errors where it does not fit."""

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import quivermq
import quivermq.aio
from quivermq.client.blocking_transport import BlockingTransport
from quivermq.client.transport import run
from quivermq.errors import ConnectionFailed, Timeout
from tests.client.group_stand_in import GroupStandIn
from tests.client.stand_in import STORE_AND_HANG, StandIn

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificate for these tests"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of 127.0.0.1 in one file."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(folder / "key"), "-out", str(folder / "cert")],
        check=True, capture_output=True,
    )  # fmt: skip
    both = folder / "both"
    both.write_text((folder / "key").read_text() + (folder / "cert").read_text())
    return both


@pytest.fixture
def guarded(certificate: Path) -> Iterator[StandIn]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with StandIn(tls=context) as started:
        yield started


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


def test_everything_passes_through_tls(guarded: StandIn, certificate: Path) -> None:
    values = [b"x" * 1000] * 5_000
    with quivermq.connect(guarded.address, tls=trusting(certificate)) as client:
        client.produce("t", b"v")
        client.produce_many("t", values)
        with client.producer() as producer:
            producer.send("t", b"w")
        assert [message.value for message in client.read("t")] == [b"v", *values, b"w"]


def test_time_limits_hold_with_tls(guarded: StandIn, certificate: Path) -> None:
    with quivermq.connect(guarded.address, tls=trusting(certificate), timeout=3) as client:
        guarded.script("produce", STORE_AND_HANG)
        assert client.produce("t", b"v").offset == 0
    assert guarded.log().values == [b"v"]


def test_everything_passes_through_tls_on_an_event_loop(
    guarded: StandIn, certificate: Path
) -> None:
    async def work() -> None:
        async with quivermq.aio.connect(guarded.address, tls=trusting(certificate)) as client:
            await client.produce_many("t", [b"x" * 1000] * 5_000)
            assert len([m async for m in client.read("t")]) == 5_000

    asyncio.run(work())


def test_a_connection_that_the_broker_closed_while_idle_is_replaced(
    guarded: StandIn, certificate: Path
) -> None:
    transport = BlockingTransport(token=None, tls=trusting(certificate), client_name="test")
    connection = run(transport.connection(guarded.address, time.monotonic() + 10))
    transport.release(connection)
    connection.used_at = -1e9  # idle for long
    assert connection.is_alive(time.monotonic())
    guarded.drop_all()
    while connection.is_alive(time.monotonic()):
        time.sleep(0.001)
    other = run(transport.connection(guarded.address, time.monotonic() + 10))
    assert other is not connection
    transport.release(other)
    run(transport.close())


def test_an_untrusted_certificate_is_refused(guarded: StandIn) -> None:
    with pytest.raises(ConnectionFailed, match="certificate"):
        quivermq.connect(guarded.address, tls=ssl.create_default_context(), timeout=1.0)


def test_a_plain_client_does_not_get_through(guarded: StandIn) -> None:
    with pytest.raises((ConnectionFailed, Timeout)):
        quivermq.connect(guarded.address, timeout=0.3)


def test_the_first_of_several_answers_is_waited_for_with_tls(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with (
        GroupStandIn(topics={"t": 2}, node=1, tls=context) as one,
        GroupStandIn(topics={"t": 2}, node=2, tls=context) as two,
    ):
        for each, other in ((one, two), (two, one)):
            each.addresses[other.node] = other.address
            each.leaders.update({0: 1, 1: 2})
        with quivermq.connect(one.address, tls=trusting(certificate)) as client:
            assert client.poll("t", group="g", wait=0.1) == []
            assert two.count("await_ready") >= 1
            client.produce_many("t", [b"v"] * 3, partition=1)
            client.ack(client.poll("t", group="g", wait=5))
        assert two.lot(1).done == {0, 1, 2}
