"""Addresses of brokers, as people write them."""

from collections.abc import Iterable
from typing import Final

from quivermq.addresses import split_address
from quivermq.errors import InvalidRequest

DEFAULT_PORT: Final = 7600


def parse_servers(servers: str | Iterable[str]) -> list[str]:
    """`"a:7600,b:7600"`, or a sequence of such addresses, as a list; without a port it is 7600."""
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    found = [_checked(part.strip()) for part in parts if part.strip()]
    if not found:
        raise InvalidRequest("name at least one server, as in connect('127.0.0.1:7600')")
    return list(dict.fromkeys(found))


def _checked(address: str) -> str:
    if (address.startswith("[") and address.endswith("]")) or ":" not in address:
        address = f"{address}:{DEFAULT_PORT}"
    _, port = split_address(address)
    if not port:
        raise InvalidRequest(f"{address!r}: port 0 is nowhere to connect to")
    return address
