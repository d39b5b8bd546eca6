"""Addresses of brokers, as people write them."""

from collections.abc import Iterable
from typing import Final

from quivermq.errors import InvalidRequest

DEFAULT_PORT: Final = 7600


def parse_servers(servers: str | Iterable[str]) -> list[str]:
    """`"a:7600,b:7600"`, or a sequence of such addresses, as a list; without a port it is 7600."""
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    found = [_checked(part.strip()) for part in parts if part.strip()]
    if not found:
        raise InvalidRequest("name at least one server, as in connect('127.0.0.1:7600')")
    return list(dict.fromkeys(found))


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address that `parse_servers` or a broker gave."""
    host, _, port = address.rpartition(":")
    try:
        number = int(port)
    except ValueError:
        raise InvalidRequest(f"{address!r} is no address: write host:port") from None
    return host.removeprefix("[").removesuffix("]"), number


def _checked(address: str) -> str:
    if (address.startswith("[") and address.endswith("]")) or ":" not in address:
        address = f"{address}:{DEFAULT_PORT}"
    elif address.count(":") > 1 and not address.startswith("["):
        raise InvalidRequest(f"{address!r}: write an IPv6 address in brackets, as [::1]:7600")
    host, port = split_address(address)
    if not host or not 0 < port < 65_536 or any(mark in host for mark in "/@ "):
        raise InvalidRequest(f"{address!r} is no address: write host:port")
    return address
