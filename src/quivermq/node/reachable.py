"""What to tell others to connect to, if nobody said: no listener's "everywhere" is a place."""

import logging
import socket
from ipaddress import ip_address
from typing import Final

from quivermq.addresses import join_address, split_address

logger = logging.getLogger("quivermq.broker")

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
