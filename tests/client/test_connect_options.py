"""Addresses as people write them."""

import pytest

from quivermq.client.connect_options import ConnectOptions, parse_servers, split_address
from quivermq.errors import InvalidRequest


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("a:1", ["a:1"]),
        ("a", ["a:7600"]),
        (" a:1 , b:2,", ["a:1", "b:2"]),
        ("a:1,a:1", ["a:1"]),
        (["a:1", "b"], ["a:1", "b:7600"]),
        ("[::1]:80", ["[::1]:80"]),
        ("[::1]", ["[::1]:7600"]),
    ],
)
def test_servers_are_understood(written: str | list[str], meant: list[str]) -> None:
    assert parse_servers(written) == meant


@pytest.mark.parametrize(
    "written", ["", " , ", [], "a:b", "a:0", "a:70000", ":80", "http://a:80", "::1", "a b:1"]
)
def test_what_is_no_address_is_refused(written: str | list[str]) -> None:
    with pytest.raises(InvalidRequest):
        parse_servers(written)


def test_servers_that_are_not_given_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def servers(given: str | None) -> list[str]:
        return ConnectOptions.of(given, token=None, tls=False, timeout=1.0).servers

    monkeypatch.delenv("QUIVER_SERVERS", raising=False)
    assert servers(None) == ["127.0.0.1:7600"]
    monkeypatch.setenv("QUIVER_SERVERS", "b:1,c:2")
    assert servers(None) == ["b:1", "c:2"]
    assert servers("a:3") == ["a:3"]


def test_host_and_port_are_taken_apart() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address("a.example:7600") == ("a.example", 7600)
