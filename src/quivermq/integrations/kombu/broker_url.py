"""Broker URLs: `quiver://:TOKEN@HOST:PORT,HOST:PORT/VIRTUAL_HOST?tls_ca=FILE`, parsed and shown."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import parse_qsl, quote, unquote

from quivermq.errors import InvalidRequest

VIRTUAL_HOST: Final = "celery"
"""Of URLs that name none. It begins the names of all topics of the transport."""

_VIRTUAL_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
_OPTIONS: Final = frozenset({"tls_ca", "timeout"})


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """The parts of a URL. What it leaves out is None: the client's defaults hold."""

    servers: str | None = None
    virtual_host: str = VIRTUAL_HOST
    token: str | None = None
    tls: str | bool | None = None
    timeout: float = 10.0

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises `InvalidRequest` if it makes no sense."""
        scheme, _, rest = url.partition("://")
        rest, _, query = rest.partition("?")
        place, _, path = rest.partition("/")
        credentials, _, servers = place.rpartition("@")
        options = dict(parse_qsl(query))
        if unknown := options.keys() - _OPTIONS:
            raise InvalidRequest(
                f"a broker URL has no option {min(unknown)!r}: it has {', '.join(sorted(_OPTIONS))}"
            )
        user, _, password = credentials.partition(":")
        return cls(
            servers=unquote(servers) or None,
            virtual_host=_check_virtual_host(unquote(path).strip("/")),
            token=unquote(password or user) or None,
            tls=options.get("tls_ca") or (True if scheme == "quivers" else None),
            timeout=_seconds(options.get("timeout", "10")),
        )

    @classmethod
    def of_connection(cls, connection: Any) -> Self:
        """Of a `kombu.Connection`: its URL, or its parts where it has switched to another URL."""
        hostname = connection.hostname or ""
        if "://" in hostname:
            return cls.parse(hostname)
        return cls(
            servers=f"{hostname}:{connection.port}" if connection.port else hostname or None,
            virtual_host=_check_virtual_host((connection.virtual_host or "").strip("/")),
            token=connection.password or connection.userid or None,
            tls=True if connection.transport_cls == "quivers" else None,
        )

    def connect_arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of `quivermq.connect`; the transport's options win."""
        found = {
            "servers": self.servers,
            "token": self.token,
            "tls": self.tls,
            "timeout": self.timeout,
        }
        given = {"token": "token", "tls_ca": "tls", "timeout": "timeout"}
        return found | {
            argument: options[name] for name, argument in given.items() if name in options
        }


def show_url(url: str, *, include_password: bool, mask: str) -> str:
    """The URL for people: the token is hidden unless it is asked for."""
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    credentials, at, servers = place.rpartition("@")
    if at and not include_password:
        credentials = f":{quote(mask, safe='*')}"
    return f"{scheme}://{credentials}{at}{servers}{slash}{path}"


def _check_virtual_host(name: str) -> str:
    if name and not _VIRTUAL_HOST.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} is no virtual host: use letters of the Latin alphabet, digits and '-'; it "
            "begins the names of topics"
        )
    return name or VIRTUAL_HOST


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(f"a broker URL has timeout in seconds, not {text!r}") from None
