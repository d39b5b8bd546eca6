"""Options of a connection, addresses of servers, and the first packets on a connection."""

import os
import ssl
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

import quivermq
from quivermq.addresses import split_address
from quivermq.batches import MIB
from quivermq.client.checks import check_number
from quivermq.client.producer.sequencer import ProducerIdentity
from quivermq.client_file import ClientFile, read_client_file
from quivermq.errors import InvalidRequest, QuiverError, UnsupportedFormat
from quivermq.names import check_zone_name
from quivermq.tls import TLS_CA_VARIABLE, ClientTls, client_context
from quivermq.tracing import Tracing, client_tracer
from quivermq.wire import (
    BROKER_ENVELOPE_BYTES_MAX,
    BROKER_FIRST_BYTES,
    PROTOCOL,
    PROTOCOL_MIN,
    Receiver,
    error_from_proto,
    proto,
    protocols,
)

if TYPE_CHECKING:
    from quivermq.tracing import ClientTracer

DEFAULT_SERVERS: Final = "127.0.0.1:7600"
DEFAULT_TIMEOUT_SECONDS: Final = 10.0
SERVERS_VARIABLE: Final = "QUIVER_SERVERS"
"""Of the environment: the brokers of clients that are given none."""

TOKEN_VARIABLE: Final = "QUIVER_TOKEN"  # noqa: S105 - a name
"""Of the environment: the token of clients that are given none."""

ZONE_VARIABLE: Final = "QUIVER_ZONE"
"""Of the environment: the zone of this machine; brokers read the same one."""

D_co = TypeVar("D_co", covariant=True)


class TransportFactory(Protocol[D_co]):
    """The class of a transport."""

    def __call__(
        self,
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        client_name: str,
        busy_poll: bool,
    ) -> D_co: ...


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """The parameters of `connect`."""

    servers: list[str]
    token: str | None
    tls: ssl.SSLContext | None
    timeout: float
    tracer: "ClientTracer | None" = None
    zone: str = ""
    """Replicas of this zone are read from first; "": it is not known."""
    busy_poll: bool = True
    """Look for an answer that comes at once, before sleeping until it comes."""

    @classmethod
    def of(
        cls,
        servers: str | Iterable[str] | None,
        *,
        token: str | None,
        tls: ClientTls,
        timeout: float | None,
        tracing: Tracing = None,
        zone: str | None = None,
        busy_poll: bool = True,
    ) -> Self:
        """The same, checked; what is None is as the environment says, then the user's file."""
        is_told_all = None not in (servers, token, tls, timeout, zone)
        file = ClientFile() if is_told_all else read_client_file()
        if timeout is None:
            timeout = file.timeout or DEFAULT_TIMEOUT_SECONDS
        check_number("timeout", timeout, least=0.001)
        if token is not None and not isinstance(token, str):
            raise InvalidRequest(f"a token is text, not {type(token).__name__}")
        if token is None:
            token = os.environ.get(TOKEN_VARIABLE) or file.token
        if servers is None:
            servers = os.environ.get(SERVERS_VARIABLE) or file.servers or DEFAULT_SERVERS
        if tls is None:
            tls = os.environ.get(TLS_CA_VARIABLE) or file.tls_ca
        if zone is None:
            zone = os.environ.get(ZONE_VARIABLE) or file.zone or ""
        check_zone_name(zone)
        tracer = client_tracer(tracing)
        return cls(
            parse_servers(servers), token, client_context(tls), timeout, tracer, zone, busy_poll
        )

    def transport(self, make: TransportFactory[D_co]) -> D_co:
        """A transport that connects with them."""
        return make(
            token=self.token,
            tls=self.tls,
            client_name=program_name(),
            busy_poll=self.busy_poll,
        )


def chosen_identity(producer_id: int | None, epoch: int) -> ProducerIdentity | None:
    """The identity that a user gave; None: there is none."""
    if producer_id is None:
        return None
    check_number("producer_id", producer_id, least=1, whole=True)
    check_number("epoch", epoch, least=0, whole=True)
    return ProducerIdentity(producer_id, epoch)


def program_name() -> str:
    """How this client shows up at the broker: the program's name and process."""
    # Every poll sends it, and a fork is another process.
    return _name_of(sys.argv[0], os.getpid())


@lru_cache(maxsize=4)
def _name_of(program: str, process: int) -> str:
    return f"{PurePath(program or 'python').name}[{process}]"


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


PACKET_BYTES_MAX: Final = 64 * MIB
"""The largest answer that a client takes."""

HELLO_ID: Final = 1
FIRST_ID: Final = HELLO_ID + 1


def hello(token: str | None, client_name: str) -> proto.Request:
    """The first request of a client."""
    request = proto.Request(id=HELLO_ID)
    request.hello.protocol, request.hello.protocol_min = PROTOCOL, PROTOCOL_MIN
    request.hello.client = client_name
    request.hello.version = quivermq.__version__
    if token is not None:
        request.hello.token = token
    return request


def welcome_of(response: proto.Response, address: str, receiver: Receiver) -> proto.Welcome:
    """The broker's answer to it, which came out of `receiver`; raises the error that it refused
    with."""
    receiver.check_protocol(response.welcome.protocol)
    match response.WhichOneof("body"):
        case "welcome" if PROTOCOL_MIN <= response.welcome.protocol <= PROTOCOL:
            return response.welcome
        case "welcome":
            raise UnsupportedFormat(
                f"{address} (release {response.welcome.version or 'unknown'}) speaks protocol "
                f"{response.welcome.protocol}, this client (release {quivermq.__version__}) "
                f"{protocols(PROTOCOL_MIN, PROTOCOL)}: upgrade the older one"
            )
        case "error":
            raise _with_address(error_from_proto(response.error), address)
    raise UnsupportedFormat(f"{address} answers hello with {response.WhichOneof('body')}")


def receiver() -> Receiver:
    """A receiver, which cuts a broker's bytes into packets."""
    return Receiver(PACKET_BYTES_MAX, BROKER_ENVELOPE_BYTES_MAX, BROKER_FIRST_BYTES)


def _with_address(error: QuiverError, address: str) -> QuiverError:
    error.add_note(f"the answer of {address} to this client's hello")
    return error
