"""Envelopes to messages of the protocol: what cannot be read is the peer's fault, never ours."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from quivermq.batches import Buffer
from quivermq.errors import InvalidRequest
from quivermq.wire.generated import quiver_pb2 as proto

_M = TypeVar("_M", bound=Message)


def parse_request(envelope: Buffer) -> proto.Request:
    """What a client asks; `InvalidRequest` if it is no request, or one that this build lacks."""
    request = _parsed(proto.Request, envelope)
    if request.WhichOneof("body") is None:
        raise InvalidRequest(
            f"request {request.id} asks for nothing that this broker knows: "
            "use only what its `welcome` offers, or upgrade it"
        )
    return request


def parse_response(envelope: Buffer) -> proto.Response:
    """What a broker answers."""
    response = _parsed(proto.Response, envelope)
    if response.WhichOneof("body") is None:
        raise InvalidRequest(f"response {response.id} says nothing that this client knows")
    return response


def parse_peer_hello(envelope: Buffer) -> proto.PeerHello:
    """The first word of another broker."""
    return _parsed(proto.PeerHello, envelope)


def parse_parcel(envelope: Buffer) -> proto.Parcel:
    """Everything else that another broker says; each letter is checked when it is opened."""
    return _parsed(proto.Parcel, envelope)


def _parsed(kind: type[_M], envelope: Buffer) -> _M:
    try:
        # It takes any buffer; its type hints name only one kind.
        return kind.FromString(envelope)  # type: ignore[arg-type]
    except DecodeError as error:
        raise InvalidRequest(f"no {kind.DESCRIPTOR.name} can be read: {error}") from error
