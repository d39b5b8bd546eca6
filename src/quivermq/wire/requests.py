"""Parses envelopes into requests and responses: an unreadable one is the peer's fault."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from quivermq.batches import Buffer
from quivermq.errors import InvalidRequest
from quivermq.wire.generated import quiver_pb2 as proto

_M = TypeVar("_M", bound=Message)


class UnknownRequest(InvalidRequest):
    """A request of a kind that this build lacks; its `id` can be answered all the same."""

    def __init__(self, message: str, *, id: int) -> None:  # noqa: A002  (as the field is named)
        super().__init__(message)
        self.id = id


def parse_request(envelope: Buffer) -> proto.Request:
    """Read a client's request; `InvalidRequest` if it is none, `UnknownRequest` if this build does
    not know it."""
    request = _parsed(proto.Request, envelope)
    if request.WhichOneof("body") is None:
        raise UnknownRequest(
            f"request {request.id} is of a kind that this broker does not know: "
            "use only what its `welcome` offers, or upgrade it",
            id=request.id,
        )
    return request


def parse_response(envelope: Buffer) -> proto.Response:
    """Read a broker's response."""
    response = _parsed(proto.Response, envelope)
    if response.WhichOneof("body") is None:
        raise InvalidRequest(f"response {response.id} is of a kind that this client does not know")
    return response


def parse_peer_hello(envelope: Buffer) -> proto.PeerHello:
    """The first word of another broker."""
    return _parsed(proto.PeerHello, envelope)


def parse_peer_packet(envelope: Buffer) -> proto.PeerPacket:
    """Everything else that another broker says; each letter is checked when it is opened."""
    return _parsed(proto.PeerPacket, envelope)


def _parsed(kind: type[_M], envelope: Buffer) -> _M:
    try:
        # It takes any buffer; its type hints name only one kind.
        return kind.FromString(envelope)  # type: ignore[arg-type]
    except DecodeError as error:
        raise InvalidRequest(f"no {kind.DESCRIPTOR.name} can be read: {error}") from error
