"""Refuses to listen where strangers reach a broker that lets everybody in.

On loopback the machine's own accounts are the limit. On any other address clients need TLS and a
token, and brokers the secret of the cluster or certificates of each other; or the operator says
`insecure`, and is reminded of it.
"""

import logging
from collections.abc import Iterator
from typing import Final

from quivermq.addresses import split_address
from quivermq.errors import InvalidRequest
from quivermq.node.callers import is_loopback
from quivermq.settings import BrokerSettings

logger = logging.getLogger("quivermq.exposure")

_CLIENT_LISTENERS: Final = ("listen", "http", "grpc")


def check_exposure(settings: BrokerSettings) -> None:
    """Raise `InvalidRequest` for an open listener, or warn of it if `insecure` is set."""
    found = list(_open_listeners(settings))
    if not found:
        return
    if not settings.insecure:
        raise InvalidRequest(
            f"{'; '.join(found)}. Listen on 127.0.0.1, or set that, or --insecure if nobody else "
            "reaches these addresses"
        )
    for each in found:
        logger.warning("INSECURE: %s", each)


def _open_listeners(settings: BrokerSettings) -> Iterator[str]:
    has = {"TLS (--tls-cert)": bool(settings.tls_cert), "--users": settings.users}
    missing = [what for what in has if not has[what]]
    for name in _CLIENT_LISTENERS:
        address = getattr(settings, name)
        if address and missing and not _is_local(address):
            yield f"{name} {address} is open to other machines without {' and '.join(missing)}"
    has_secret = settings.cluster_secret.get_secret_value() or settings.cluster_secret_file
    if settings.gateway:
        # It has no peers.
        return
    if not (has_secret or settings.peer_tls or _is_local(settings.peer_listen)):
        yield (
            f"peer_listen {settings.peer_listen} lets any machine pose as a broker without a "
            "cluster_secret or --peer-tls"
        )


def _is_local(address: str) -> bool:
    return is_loopback(split_address(address)[0])
