"""Addresses as people write them: `host:port`."""

from collections.abc import Iterator
from contextlib import contextmanager

from quivermq.errors import ConnectionFailed, InvalidRequest


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`; raises `InvalidRequest` for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InvalidRequest(f"{address!r} is no address: write host:port, as in 127.0.0.1:7600")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def join_address(host: str, port: int) -> str:
    """The other way round."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def listening_at(address: str) -> Iterator[None]:
    """The system's refusal to listen there, as one of ours."""
    try:
        yield
    except OSError as error:
        raise ConnectionFailed(
            f"cannot listen at {address}: {error.strerror or error}; stop what uses the address, "
            "or choose another"
        ) from error
