"""Certificates of a broker: files that do not fit, and files that change while it serves."""

import asyncio
import hashlib
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import quivermq.aio
from quivermq.addresses import split_address
from quivermq.errors import InvalidRequest
from quivermq.tls import BrokerTls
from quivermq.tls.certificates import CLIENT
from quivermq.transports import Server
from tests.tls.stage import Certificates
from tests.transports.stage import Talker, make_topic, on_served_loop, serving, settings, store


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "tls")


def refusal(certificates: Certificates, **changes: Any) -> str:
    """Why a broker does not start with these files."""
    with pytest.raises(InvalidRequest) as error:
        BrokerTls.of(settings(Path(), **{**certificates.settings(mutual=True), **changes}))
    return str(error.value)


def test_files_that_do_not_fit_are_refused_with_what_to_do(certificates: Certificates) -> None:
    folder = certificates.folder
    assert BrokerTls.of(settings(Path(), **certificates.settings(mutual=True))) is not None
    assert "there is no file nowhere.pem; `quiver cert" in refusal(
        certificates, tls_cert="nowhere.pem"
    )
    assert "tls_key: there is no file" in refusal(certificates, tls_key="nowhere.key")
    assert "tls_ca: there is no file" in refusal(certificates, tls_ca="nowhere.pem")
    assert "tls_key: cannot read" in refusal(certificates, tls_key=str(folder))
    assert "is not the key of the certificate" in refusal(
        certificates, tls_key=str(folder / "client.key")
    )
    (folder / "no.pem").write_text("-----BEGIN NONSENSE-----\n")
    assert "in PEM format" in refusal(certificates, tls_cert=str(folder / "no.pem"))
    assert "holds no CA certificate" in refusal(certificates, tls_ca=str(folder / "no.pem"))


def test_certificates_that_others_would_not_accept_are_refused(
    certificates: Certificates, tmp_path: Path
) -> None:
    certificates.make("old", days=1, age=timedelta(days=2))
    assert "has expired" in refusal(certificates, **certificates.settings("old"))
    alone = {**certificates.settings("old"), "tls_ca": "", "peer_tls": False}
    assert "has expired" in refusal(certificates, **alone)
    certificates.make("early", age=timedelta(days=-1))
    assert "is not valid yet" in refusal(certificates, **certificates.settings("early"))
    certificates.make("visitor", usages=CLIENT)
    assert "purpose" in refusal(certificates, **certificates.settings("visitor"))
    foreign = Certificates(tmp_path / "foreign")
    assert "is not accepted by" in refusal(certificates, tls_ca=foreign.ca)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(
    certificates: Certificates,
) -> None:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    key = certificates.authority.key
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (certificates.folder / "secret.key").write_bytes(secret)
    said = refusal(certificates, tls_key=str(certificates.folder / "secret.key"))
    assert "without a password" in said


@pytest.mark.parametrize(
    "wrong", [{"tls_key": "x.key"}, {"peer_tls": True}, {"peer_tls": True, "tls_cert": "x.pem"}]
)
def test_settings_that_name_half_of_it_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="tls_cert"):
        BrokerTls.of(settings(Path(), **wrong))


def test_key_and_certificate_may_be_in_one_file(certificates: Certificates) -> None:
    both = certificates.folder / "both.pem"
    both.write_bytes(
        b"".join((certificates.folder / f"server.{kind}").read_bytes() for kind in ("key", "pem"))
    )
    found = BrokerTls.of(settings(Path(), tls_cert=str(both), tls_ca=certificates.ca))
    assert found is not None
    assert found.pem.key == found.pem.chain == both.read_bytes()


async def shown(address: str, context: ssl.SSLContext) -> str:
    """The fingerprint of the certificate that a listener shows."""
    _, writer = await asyncio.open_connection(*split_address(address), ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(True)
    writer.transport.abort()
    return hashlib.sha256(found).hexdigest()


def fingerprint(certificates: Certificates, name: str = "server") -> str:
    pem = (certificates.folder / f"{name}.pem").read_text()
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def of_each_listener(
    server: Server, certificates: Certificates
) -> Callable[[], asyncio.Future[list[str]]]:
    contexts = [certificates.client(), certificates.client("server"), certificates.client()]
    addresses = [server.listen, server.peer_listen, server.http]
    return lambda: asyncio.gather(*map(shown, addresses, contexts))


QUICK = {"tls_reload_ms": 20, "http": "127.0.0.1:0"}


@on_served_loop
async def test_a_changed_certificate_is_loaded_and_connections_stay(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    given = {**certificates.settings(mutual=True), **QUICK}
    async with serving(tmp_path / "data", **given) as server:
        look = of_each_listener(server, certificates)
        assert set(await look()) == {fingerprint(certificates)}
        async with quivermq.aio.connect(server.listen, tls=certificates.ca) as client:
            talker = await Talker.by_socket(server, ssl=certificates.client())
            await make_topic(talker)
            pem = server.broker.tls.pem  # type: ignore[union-attr]
            certificates.make("server")
            wanted = {fingerprint(certificates)}
            sent = 0
            async with asyncio.timeout(20):
                while set(await look()) != wanted:
                    # Traffic in the middle of it.
                    await client.produce("orders", b"x" * 10_000)
                    sent += 1
            await store(talker, b"on the connection of before")
            assert not talker.lost.is_set()
            async with quivermq.aio.connect(server.listen, tls=certificates.ca) as newcomer:
                values = [message.value async for message in newcomer.read("orders")]
            assert len(values) == sent + 1
            assert server.broker.tls.pem != pem  # type: ignore[union-attr]
            talker.close()
    assert "closed" not in caplog.text


@on_served_loop
async def test_broken_files_change_nothing_and_are_reported(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    given = {**certificates.settings(mutual=True), **QUICK}
    good = shutil.copytree(certificates.folder, tmp_path / "good")
    certificates.make("elsewhere", hosts=["elsewhere.example"])
    certificates.make("old", days=1, age=timedelta(days=2))
    folder = certificates.folder

    async def reported(words: str) -> None:
        async with asyncio.timeout(20):
            while words not in caplog.text:  # noqa: ASYNC110  (there is no event for that)
                await asyncio.sleep(0.01)
        caplog.clear()
        assert set(await look()) == {before}

    async with serving(tmp_path / "data", **given) as server:
        look, before = of_each_listener(server, certificates), fingerprint(certificates)
        (folder / "server.pem").write_text("half a certif")
        await reported("the certificates stay as they were: tls_cert")
        (folder / "server.pem").unlink()
        await reported("there is no file")
        for name, words in (("old", "has expired"), ("elsewhere", "does not name 127.0.0.1")):
            shutil.copy(folder / f"{name}.key", folder / "server.key")
            shutil.copy(folder / f"{name}.pem", folder / "server.pem")
            await reported(words)
        # Once they are whole again, they are loaded.
        caplog.set_level("INFO", "quivermq.tls")
        shutil.copy(good / "server.key", folder / "server.key")
        shutil.copy(good / "server.pem", folder / "server.pem")
        await reported("certificates are loaded, valid until")


@on_served_loop
async def test_a_signal_loads_the_files_at_once(tmp_path: Path, certificates: Certificates) -> None:
    given = {**certificates.settings(mutual=True), **QUICK, "tls_reload_ms": 3_600_000}
    async with serving(tmp_path / "data", **given) as server:
        look = of_each_listener(server, certificates)
        certificates.make("server")
        assert set(await look()) != {fingerprint(certificates)}
        assert server.broker.tls is not None
        server.broker.tls.reload()
        async with asyncio.timeout(20):
            while set(await look()) != {fingerprint(certificates)}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@on_served_loop
async def test_a_ca_that_is_no_longer_trusted_lets_nobody_in(
    tmp_path: Path, certificates: Certificates
) -> None:
    given = {**certificates.settings(mutual=True), **QUICK}
    async with serving(tmp_path / "data", **given) as server:
        former = certificates.client("server")
        async with asyncio.timeout(20):
            assert await is_heard(server, former)
            for name in ("ca.pem", "ca.key"):
                (certificates.folder / name).unlink()
            certificates.make("server")
            former.load_verify_locations(certificates.ca)
            while await is_heard(server, former):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert await is_heard(server, certificates.client("server"))


async def is_heard(server: Server, context: ssl.SSLContext) -> bool:
    """Whether the peer port keeps a connection with this certificate."""
    reader, writer = await asyncio.open_connection(*split_address(server.peer_listen), ssl=context)
    try:
        async with asyncio.timeout(0.2):
            return await reader.read(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        writer.transport.abort()


@on_served_loop
async def test_a_certificate_that_will_soon_expire_is_reported(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    certificates.make("server", days=5)
    async with serving(tmp_path / "data", **certificates.settings()):
        pass
    assert "expires in 5.0 days: replace the file" in caplog.text


def test_neither_a_client_nor_a_broker_without_tls_loads_cryptography() -> None:
    script = (
        "import sys, quivermq.transports, quivermq.client.client\n"
        "sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
