"""Envelopes to messages of the protocol: what cannot be read is the peer's fault, never ours."""

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
    """What a client asks; `InvalidRequest` if it is no request, `UnknownRequest` if it is none
    that this build knows."""
    request = _parsed(proto.Request, envelope)
    if request.WhichOneof("body") is None:
        raise UnknownRequest(
            f"request {request.id} asks for nothing that this broker knows: "
            "use only what its `welcome` offers, or upgrade it",
            id=request.id,
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
