"""A broker does not listen for other machines by accident."""

import logging
from pathlib import Path

import pytest

from quivermq.errors import InvalidRequest
from quivermq.node import check_exposure
from quivermq.settings import BrokerSettings
from quivermq.transports import Server
from tests.transports.stage import on_loop, settings

SECRET = {"cluster_secret": "0123456789abcdef"}


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    check_exposure(BrokerSettings(listen=f"{host}:1", peer_listen=f"{host}:2", http=f"{host}:3"))


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.1.2.3", "broker-1"])
@pytest.mark.parametrize("listener", ["listen", "peer_listen", "http", "grpc"])
def test_a_listener_for_other_machines_is_refused_by_name(host: str, listener: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{listener} .*--insecure"):
        check_exposure(BrokerSettings.model_validate({listener: f"{host}:1"}))


def test_a_secret_is_enough_for_brokers_and_not_for_clients() -> None:
    check_exposure(BrokerSettings.model_validate({"peer_listen": "0.0.0.0:1", **SECRET}))
    with pytest.raises(InvalidRequest, match="TLS"):
        check_exposure(BrokerSettings.model_validate({"listen": "0.0.0.0:1", **SECRET}))


def test_users_alone_are_not_enough_since_tokens_travel_in_the_open() -> None:
    with pytest.raises(InvalidRequest, match=r"without TLS \(--tls-cert\)\."):
        check_exposure(BrokerSettings(listen="0.0.0.0:1", users=True))


def test_tls_and_users_are_enough() -> None:
    everywhere = {"listen": "0.0.0.0:1", "http": "0.0.0.0:2", "peer_listen": "0.0.0.0:3"}
    tls = {"tls_cert": "cert.pem", "tls_key": "key.pem", "tls_ca": "ca.pem", "peer_tls": True}
    check_exposure(BrokerSettings.model_validate({**everywhere, **tls, "users": True}))
    with pytest.raises(InvalidRequest, match=r"without --users;"):
        check_exposure(BrokerSettings.model_validate({**everywhere, **tls, **SECRET}))


def test_insecure_allows_it_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_exposure(BrokerSettings(listen="0.0.0.0:1", insecure=True))
    assert "INSECURE: listen 0.0.0.0:1" in caplog.text


def test_a_broker_that_would_be_open_does_not_start(tmp_path: Path) -> None:
    @on_loop
    async def start() -> None:
        await Server(settings(tmp_path, listen="0.0.0.0:0")).start()

    with pytest.raises(InvalidRequest, match="--insecure"):
        start()
    assert not list(tmp_path.iterdir()), "it touched its directory"
