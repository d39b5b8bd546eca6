"""Addresses as people write them: `host:port`, an IPv6 host in brackets."""

from quivermq.errors import InvalidRequest


def split_address(address: str) -> tuple[str, int]:
    """Host and port; raises `InvalidRequest` for what is no address."""
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = port.isascii() and port.isdigit() and int(port) <= 65_535
    if not colon or not bare or not is_port or any(c.isspace() or c in "/@" for c in bare):
        raise InvalidRequest(f"{address!r} is not an address: write host:port, like 127.0.0.1:7600")
    if ":" in bare and bare == host:
        raise InvalidRequest(f"an IPv6 address stands in brackets, like [::1]:7600: {address!r}")
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """The other way round."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
