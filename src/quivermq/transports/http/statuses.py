"""Maps errors to HTTP statuses and JSON."""

from collections.abc import Mapping
from typing import Final

from quivermq.errors import (
    ConnectionFailed,
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
    TooLarge,
    TopicExists,
    TopicNotFound,
    Unauthenticated,
)
from quivermq.transports.http.models import ErrorAnswer, ErrorDetails
from quivermq.wire import proto

STATUSES: Final[Mapping[type[QuiverError], int]] = {
    InvalidRequest: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    TopicNotFound: 404,
    TopicExists: 409,
    OutOfSequence: 409,
    LeaseLost: 409,
    Fenced: 409,
    StoredBefore: 409,
    SequenceReused: 409,
    TooLarge: 413,
    OffsetOutOfRange: 416,
    Overloaded: 429,
    QuiverError: 500,
    NotLeader: 503,
    NotEnoughReplicas: 503,
    ConnectionFailed: 503,
    Timeout: 504,
    StorageFull: 507,
}
"""The nearest ancestor counts: whatever is not listed is a failure of the broker."""


def status_of(error: QuiverError) -> int:
    """The status to answer with."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def error_answer(error: proto.Error) -> ErrorAnswer:
    """An error as JSON shows it."""
    return ErrorAnswer(
        error=ErrorDetails(code=error.code, message=error.message, retriable=error.retriable)
    )
