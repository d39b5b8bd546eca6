"""Errors on the wire: the name of their class, and the fields that a client needs to go on."""

from collections.abc import Mapping
from typing import Final

from quivermq import errors
from quivermq.errors import (
    NotLeader,
    OffsetOutOfRange,
    OutOfSequence,
    QuiverError,
    UnknownError,
)
from quivermq.wire.generated import quiver_pb2 as proto

MESSAGE_CHARACTERS_MAX: Final = 4_096

BY_CODE: Final[Mapping[str, type[QuiverError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, QuiverError) and kind is not UnknownError
}
"""The public errors; those of single rooms travel as the public one that they are a kind of."""

# The number of a Raft member ends in that of its broker; users know brokers only.
_NODE_BITS: Final = 0xFFFF


def error_to_proto(error: QuiverError, leader_address: str = "") -> proto.Error:
    """The error as it is sent in place of an answer. `leader_address` completes a `NotLeader`."""
    sent = proto.Error(
        code=_public_code(error), message=_sendable(str(error)), retriable=error.retriable
    )
    match error:
        case NotLeader():
            sent.leader = error.leader & _NODE_BITS
            sent.leader_address = _sendable(leader_address or error.leader_address)
        case OffsetOutOfRange():
            sent.earliest, sent.end = error.earliest, error.end
        case OutOfSequence():
            sent.expected, sent.may_be_forgotten = error.expected, error.may_be_forgotten
    return sent


def error_from_proto(error: proto.Error) -> QuiverError:
    """The error to raise at the user; one of a later release is an `UnknownError`."""
    kind = BY_CODE.get(error.code)
    if kind is None:
        return UnknownError(error.message, code=error.code, retriable=error.retriable)
    if kind is NotLeader:
        return NotLeader(error.message, leader=error.leader, leader_address=error.leader_address)
    if kind is OffsetOutOfRange:
        return OffsetOutOfRange(error.message, earliest=error.earliest, end=error.end)
    if kind is OutOfSequence:
        return OutOfSequence(
            error.message, expected=error.expected, may_be_forgotten=error.may_be_forgotten
        )
    return kind(error.message)


def _public_code(error: QuiverError) -> str:
    if isinstance(error, UnknownError):
        return error.code
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in BY_CODE)


def _sendable(text: str) -> str:
    """Cut a text, and make it UTF-8: names of files need not be."""
    return text[:MESSAGE_CHARACTERS_MAX].encode(errors="replace").decode()
