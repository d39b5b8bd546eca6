"""The first words on a connection, the same behind both doors."""

from typing import Final

import quivermq
from quivermq.batches.limits import MIB
from quivermq.errors import QuiverError, UnsupportedFormat
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

PACKET_BYTES_MAX: Final = 64 * MIB
"""The largest answer that a client takes."""

HELLO_ID: Final = 1
FIRST_ID: Final = HELLO_ID + 1


def hello(token: str | None, client_name: str) -> proto.Request:
    """What a client says first."""
    request = proto.Request(id=HELLO_ID)
    request.hello.protocol, request.hello.protocol_min = PROTOCOL, PROTOCOL_MIN
    request.hello.client = client_name
    request.hello.version = quivermq.__version__
    if token is not None:
        request.hello.token = token
    return request


def welcome_of(response: proto.Response, address: str) -> proto.Welcome:
    """What the broker answers to it; raises what it refused with."""
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
    """What cuts a broker's bytes into packets."""
    return Receiver(PACKET_BYTES_MAX, BROKER_ENVELOPE_BYTES_MAX, BROKER_FIRST_BYTES)


def _with_address(error: QuiverError, address: str) -> QuiverError:
    error.add_note(f"said by {address} to this client's hello")
    return error
