"""A plain connection to one broker, that follows no leader and retries nothing.

Tests use it to look at one broker's state and to send requests that no client would. One request
at a time.
"""

import socket
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from quivermq.batches import Frame
from quivermq.errors import ConnectionFailed, Timeout
from quivermq.tls import ClientTls, client_context
from quivermq.wire import (
    PROTOCOL,
    PROTOCOL_MIN,
    Receiver,
    error_from_proto,
    frames_of,
    packet,
    parse_response,
    proto,
)

_PACKET_BYTES_MAX = 64 << 20
_TOO_LONG = "{} did not answer in time"


class DirectAnswer(NamedTuple):
    """A broker's response, and the batches behind it."""

    response: proto.Response
    frames: list[Frame]


class DirectConnection:
    """A socket, after the handshake."""

    def __init__(self, address: str, timeout: float = 5.0, *, tls: ClientTls = False) -> None:
        self.address = address
        self._receiver = Receiver(_PACKET_BYTES_MAX)
        self._next_id = 1
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), timeout)
            if (context := client_context(tls)) is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except TimeoutError as error:
            raise Timeout(_TOO_LONG.format(address)) from error
        except OSError as error:
            raise ConnectionFailed(f"{address}: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = proto.Hello(protocol=PROTOCOL, protocol_min=PROTOCOL_MIN, client="testing")
            welcome = self.ask(proto.Request(hello=hello)).response.welcome
            self._receiver.check_protocol(welcome.protocol)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: proto.Request, frames: Sequence[Frame] = ()) -> DirectAnswer:
        """Ask and wait for the answer; raises the refusal, `ConnectionFailed` or `Timeout`."""
        self.send(request, frames)
        return self.take(request.id)

    def send(self, request: proto.Request, frames: Sequence[Frame] = ()) -> None:
        """Send a request, and do not wait."""
        self._next_id += 1
        request.id = self._next_id
        try:
            for buffer in packet(request.SerializeToString(), frames):
                self._socket.sendall(buffer)
        except TimeoutError as error:
            raise Timeout(_TOO_LONG.format(self.address)) from error
        except OSError as error:
            raise ConnectionFailed(f"{self.address}: {error}") from error

    def take(self, number: int) -> DirectAnswer:
        """The answer to request `number`; answers to others are thrown away."""
        while True:
            try:
                count = self._socket.recv_into(self._receiver.get_buffer())
            except TimeoutError as error:
                raise Timeout(_TOO_LONG.format(self.address)) from error
            except OSError as error:
                raise ConnectionFailed(f"{self.address}: {error}") from error
            if not count:
                raise ConnectionFailed(f"{self.address} closed the connection")
            for found in self._receiver.received(count):
                response = parse_response(found.envelope)
                # An answer to no request is the last word before the connection is closed.
                if response.id not in {number, 0}:
                    continue
                if response.WhichOneof("body") == "error":
                    raise error_from_proto(response.error)
                return DirectAnswer(response, frames_of(found) if found.batches else [])
