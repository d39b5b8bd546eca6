"""Answers in JSON: models, and errors with their statuses."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

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
from quivermq.log_context import current_request_id
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

REFUSED: Final = "refused"
"""In the state of a request: the code of the error that answers it."""

_TEXTS: Final = {
    400: "The request makes no sense, or is past a limit.",
    401: "No user, or one that is not known.",
    403: "The user may not do this.",
    404: "There is no such thing.",
    408: "The request was not complete in time.",
    409: "Another has it, or it is there with other settings.",
    413: "The body, or a message in it, is too large.",
    415: "Send application/json, not compressed.",
    416: "The offset is not kept; the message says what is.",
    429: "The broker has too much to do: try again later.",
    431: "The headers are too large.",
    500: "The broker failed.",
    503: "There is no leader, or no majority, or the broker stops: try again.",
    504: "The outcome is unknown: it may still take effect.",
    507: "The disk of the leader is full.",
}
_ANYWHERE: Final = (400, 401, 403, 408, 413, 415, 429, 431, 500, 503, 504, 507)


def refusals(*more: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for its documentation: those of all routes, and its own."""
    return {
        status: {"model": ErrorAnswer, "description": _TEXTS[status]}
        for status in sorted({*_ANYWHERE, *more})
    }


def status_of(error: QuiverError) -> int:
    """The status to answer with."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def error_answer(error: proto.Error, request_id: str = "") -> ErrorAnswer:
    """An error as JSON shows it; by default of the request that this task works for."""
    return ErrorAnswer(
        error=ErrorDetails(
            code=error.code,
            message=error.message,
            retriable=error.retriable,
            request_id=request_id or current_request_id(),
        )
    )


class Json(Response):
    """A model as it is: it was checked when it was made."""

    media_type = "application/json"

    def __init__(self, model: BaseModel, status: int = 200) -> None:
        super().__init__(model.model_dump_json(), status)


class ErrorJson(Json):
    """An error; the connection is told its code, which it counts."""

    def __init__(self, error: proto.Error, status: int) -> None:
        super().__init__(error_answer(error), status)
        self._code = error.code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"][REFUSED] = self._code
        await super().__call__(scope, receive, send)


def refused(error: proto.Error, status: int, headers: Mapping[str, str] | None = None) -> Json:
    """An error as an answer."""
    answer = ErrorJson(error, status)
    for name, value in (headers or {}).items():
        answer.headers[name] = value
    return answer
