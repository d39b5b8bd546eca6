"""Maps errors to gRPC statuses, with details that programs in other languages can read."""

from collections.abc import Mapping, Sequence
from typing import Final

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from quivermq.errors import (
    ConnectionFailed,
    Corrupt,
    Fenced,
    Forbidden,
    InvalidRequest,
    LeaseLost,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    OutOfSequence,
    Overloaded,
    QuiverError,
    SequenceReused,
    StorageFull,
    StoredBefore,
    Timeout,
    TopicExists,
    TopicNotFound,
    Unauthenticated,
    UnknownError,
    UnsupportedFormat,
)
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import proto

Code = grpc.StatusCode
Metadata = tuple[tuple[str, str | bytes], ...]

STATUSES: Final[Mapping[type[QuiverError], grpc.StatusCode]] = {
    InvalidRequest: Code.INVALID_ARGUMENT,
    StoredBefore: Code.ALREADY_EXISTS,
    SequenceReused: Code.ALREADY_EXISTS,
    TopicNotFound: Code.NOT_FOUND,
    TopicExists: Code.ALREADY_EXISTS,
    OffsetOutOfRange: Code.OUT_OF_RANGE,
    NotLeader: Code.UNAVAILABLE,
    NotEnoughReplicas: Code.UNAVAILABLE,
    ConnectionFailed: Code.UNAVAILABLE,
    Timeout: Code.DEADLINE_EXCEEDED,
    Overloaded: Code.RESOURCE_EXHAUSTED,
    StorageFull: Code.RESOURCE_EXHAUSTED,
    OutOfSequence: Code.FAILED_PRECONDITION,
    LeaseLost: Code.FAILED_PRECONDITION,
    Fenced: Code.ABORTED,
    Unauthenticated: Code.UNAUTHENTICATED,
    Forbidden: Code.PERMISSION_DENIED,
    Corrupt: Code.DATA_LOSS,
    UnsupportedFormat: Code.UNIMPLEMENTED,
    UnknownError: Code.UNKNOWN,
    QuiverError: Code.INTERNAL,
}
"""The nearest ancestor counts: whatever is not listed is a failure of the broker."""

_DOMAIN: Final = "quivermq"
_TEXT_CHARACTERS: Final = 500
"""Of a message for people: gRPC libraries refuse trailers of 8 KiB, and a character may take nine
bytes, three of UTF-8 that are each written as `%XX`. It is said three times."""
_LOST_RANGES: Final = 50
"""Of lost messages that are named, for the same reason."""
_DETAILS: Final = "grpc-status-details-bin"


def status_of(error: QuiverError) -> grpc.StatusCode:
    """The status of a call that failed so."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def public_error(error: proto.Error, lost: Sequence[api.Selection] = ()) -> api.Error:
    """An error in the words of the public API."""
    return api.Error(
        code=error.code,
        message=error.message,
        retriable=error.retriable,
        leader=error.leader,
        leader_address=error.leader_address,
        earliest=error.earliest,
        end=error.end,
        expected=error.expected,
        lost=lost,
    )


def short(error: api.Error) -> api.Error:
    """The error as it fits into the trailers of a call."""
    found = api.Error()
    found.CopyFrom(error)
    found.message = error.message[:_TEXT_CHARACTERS]
    del found.lost[:]
    left = _LOST_RANGES
    for selection in error.lost[:_LOST_RANGES]:
        found.lost.add(lease=selection.lease, ranges=selection.ranges[:left])
        left -= len(selection.ranges)
        if left <= 0:
            break
    return found


def trailers(error: api.Error, status: grpc.StatusCode) -> Metadata:
    """The trailing metadata of a call that failed: for programs, and for people who look at it."""
    details = Status(code=status.value[0], message=error.message)
    info = ErrorInfo(reason=error.code, domain=_DOMAIN)
    info.metadata["retriable"] = _text(error.retriable)
    if error.leader:
        info.metadata["leader"] = str(error.leader)
        info.metadata["leader_address"] = error.leader_address
    for detail in (info, error):
        packed = AnyMessage()
        packed.Pack(detail)
        details.details.append(packed)
    found: list[tuple[str, str | bytes]] = [
        ("quiver-code", error.code),
        ("quiver-retriable", _text(error.retriable)),
    ]
    if error.leader:
        found.append(("quiver-leader", str(error.leader)))
        if error.leader_address.isascii():
            found.append(("quiver-leader-address", error.leader_address))
    found.append((_DETAILS, details.SerializeToString()))
    return tuple(found)


def _text(value: bool) -> str:  # noqa: FBT001  (it is what is written)
    return "true" if value else "false"
