"""Listening sockets: addresses to bind and to advertise, connection limits, open files."""

import asyncio
import logging
import math
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Final, Generic, Protocol, TypeVar

from quivermq.addresses import join_address, split_address
from quivermq.errors import ConnectionFailed


def raise_file_limit() -> None:
    """A partition keeps a few files open; the usual limit of 1,024 is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in file_limits(soft, hard):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


def file_limits(soft: int, hard: int) -> list[int]:
    """Limits to try, the best first. macOS says that there is none, and takes only a few."""
    if hard != resource.RLIM_INFINITY:
        return [hard] if soft < hard else []
    if soft == resource.RLIM_INFINITY:
        return []
    return [hard, *(limit for limit in _FILE_LIMITS if limit > soft)]


logger = logging.getLogger("quivermq.broker")

_FILE_LIMITS: Final = (1 << 20, 1 << 16, 24_576, 10_240)

_LOOPBACK: Final = "127.0.0.1"


def reachable(address: str, setting: str) -> str:
    """The address of a listener as others can use it; `setting` is what would say it better."""
    host, port = split_address(address)
    if not _is_everywhere(host):
        return address
    told = join_address(_own_name(), port)
    logger.warning("%s is everywhere; others are told %s: set %s", address, told, setting)
    return told


def _is_everywhere(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _own_name() -> str:
    """The name of this host, if it leads anywhere."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return _LOOPBACK
    return name


ADDRESS_SHARE: Final = 0.8
"""Of all connections that a listener accepts, what one address may have: the rest is for others."""


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


class Closable(Protocol):
    """A listener, as far as is needed here."""

    def close(self) -> None: ...


async def close_listener(server: Closable) -> None:
    """Accept no more connections; those that are open stay.

    Python 3.11 forgets a connection that it has accepted and not yet made when its server is
    closed, and leaves the socket open: so these are made first.
    """
    if isinstance(server, asyncio.Server):
        loop = asyncio.get_running_loop()
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)
    server.close()


class HasPeerName(Protocol):
    """A transport, as far as is needed here."""

    def get_extra_info(self, name: str) -> object: ...


def address_of(transport: HasPeerName) -> str:
    """The host that a connection comes from; "" if its transport has none."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else ""


_C = TypeVar("_C")


class Accepted(Generic[_C]):
    """The connections of one listener, the oldest first, counted in all and by address."""

    def __init__(self, most: int, from_one_address: int | None = None) -> None:
        self.most = most
        self.from_one_address = from_one_address or math.ceil(most * ADDRESS_SHARE)
        self._addresses: dict[_C, str] = {}
        self._by_address: dict[str, dict[_C, None]] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def enter(self, connection: _C, address: str) -> None:
        self._addresses[connection] = address
        self._by_address.setdefault(address, {})[connection] = None

    def leave(self, connection: _C) -> None:
        address = self._addresses.pop(connection, None)
        if address is not None:
            mine = self._by_address[address]
            del mine[connection]
            if not mine:
                del self._by_address[address]

    def objection(self, address: str) -> str:
        """Why no more are accepted from an address; "" if there may be another."""
        if len(self) >= self.most:
            return f"{self.most} are connected; try again later"
        if address and len(self._by_address.get(address, ())) >= self.from_one_address:
            return f"{self.from_one_address} are connected from {address}; close some of those"
        return ""

    def surplus(self, address: str) -> _C | None:
        """The connection to close if another comes from an address: the oldest from there if these
        are too many, else the oldest of all if those are; None while there is room."""
        mine = self._by_address.get(address, {})
        if len(mine) >= self.from_one_address:
            return next(iter(mine))
        return next(iter(self._addresses)) if len(self) >= self.most else None
