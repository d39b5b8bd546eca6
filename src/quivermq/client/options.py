"""How to connect: the same for both clients."""

import os
import ssl
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Protocol, Self, TypeVar

from quivermq.client.infos import check_number
from quivermq.client.outlets import Identity
from quivermq.client.servers import parse_servers
from quivermq.errors import InvalidRequest

D_co = TypeVar("D_co", covariant=True)


class MakesDoor(Protocol[D_co]):
    """The class of a door."""

    def __call__(
        self, *, token: str | None, tls: ssl.SSLContext | None, client_name: str
    ) -> D_co: ...


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """What `connect` was told."""

    servers: list[str]
    token: str | None
    tls: ssl.SSLContext | None
    timeout: float

    @classmethod
    def of(
        cls,
        servers: str | Iterable[str],
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        timeout: float,
    ) -> Self:
        """The same, checked."""
        check_number("timeout", timeout, least=0.001)
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise InvalidRequest(
                "tls must be an ssl.SSLContext, as from ssl.create_default_context(cafile=...), "
                f"not {type(tls).__name__}"
            )
        if token is not None and not isinstance(token, str):
            raise InvalidRequest(f"a token is text, not {type(token).__name__}")
        return cls(parse_servers(servers), token, tls, timeout)

    def door(self, make: MakesDoor[D_co]) -> D_co:
        """A door that opens with them."""
        return make(token=self.token, tls=self.tls, client_name=program_name())


def chosen_identity(producer_id: int | None, epoch: int) -> Identity | None:
    """The identity that a user gave; None: there is none."""
    if producer_id is None:
        return None
    check_number("producer_id", producer_id, least=1, whole=True)
    check_number("epoch", epoch, least=0, whole=True)
    return Identity(producer_id, epoch)


def program_name() -> str:
    """How this client shows up at the broker: the program's name and process."""
    # Every poll tells, and a fork is another process.
    return _name_of(sys.argv[0], os.getpid())


@lru_cache(maxsize=4)
def _name_of(program: str, process: int) -> str:
    return f"{PurePath(program or 'python').name}[{process}]"
