"""TLS: the contexts of clients and brokers, made from files, and certificates for development.

Knows files and `ssl`, and the settings of a broker; must never know what travels inside.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quivermq.tls.broker_tls import BrokerTls, Pem, shows_broker
    from quivermq.tls.certificates import Authority, is_for_servers, make_certificates
    from quivermq.tls.client_contexts import TLS_CA_VARIABLE, ClientTls, client_context, explain

# By module: a client needs no certificates to be made, and a broker without TLS nothing at all.
_PLACES = {
    "Authority": "certificates",
    "BrokerTls": "broker_tls",
    "ClientTls": "client_contexts",
    "Pem": "broker_tls",
    "TLS_CA_VARIABLE": "client_contexts",
    "client_context": "client_contexts",
    "explain": "client_contexts",
    "is_for_servers": "certificates",
    "make_certificates": "certificates",
    "shows_broker": "broker_tls",
}

__all__ = [
    "TLS_CA_VARIABLE",
    "Authority",
    "BrokerTls",
    "ClientTls",
    "Pem",
    "client_context",
    "explain",
    "is_for_servers",
    "make_certificates",
    "shows_broker",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{_PLACES[name]}", fromlist=[name])
    value = globals()[name] = getattr(module, name)
    return value
