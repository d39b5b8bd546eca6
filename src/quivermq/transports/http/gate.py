"""Looks at every request before the application does: who asks, from where, in which format."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from quivermq.errors import Forbidden, InvalidRequest, QuiverError, TooLarge, Unauthenticated
from quivermq.transports.http.arrow_body import ARROW_STREAM
from quivermq.transports.http.statuses import Json, error_answer, status_of
from quivermq.wire import error_to_proto

_WITH_BODY: Final = {"POST", "PATCH"}
SMALL_BODY_BYTES_MAX: Final = 256 << 10
"""Of a body without messages: to read many small things takes longer than a few large ones."""


class Gate:
    """Lets requests through to the application, or refuses them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        path = scope["path"]
        if path.startswith("/v1/"):
            try:
                check_token(headers)
                _check_site(headers)
            except QuiverError as error:
                await _refused(error, status_of(error))(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyRoute(APIRoute):
    """A route that reads its body only if it is what it says: JSON, or an Arrow stream."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        read = super().get_route_handler()

        async def checked(request: Request) -> Response:
            problem = _misfit(request.method, request.url.path, request.headers)
            if problem:
                return _refused(InvalidRequest(problem), 415)
            if request.method in _WITH_BODY and not _takes_messages(request.url.path):
                size = len(await request.body())
                if size > SMALL_BODY_BYTES_MAX:
                    raise TooLarge(
                        f"a body of {size:,} bytes is above {SMALL_BODY_BYTES_MAX:,}: send less at "
                        "once; of what a poll answered, only its leases"
                    )
            return await read(request)

        return checked


def check_token(headers: Headers) -> None:
    """The one place where the token of a request is read."""
    if "authorization" in headers:
        # A token that is not checked would look like protection.
        raise Unauthenticated(
            "this broker has no users, and cannot check a token: ask without one, and let only "
            "those reach its ports who may use it"
        )


def _check_site(headers: Headers) -> None:
    """A page of another site must not use the broker that its visitor can reach."""
    if headers.get("sec-fetch-site") == "cross-site":
        raise Forbidden("pages of other sites may not use this broker")


def _takes_messages(path: str) -> bool:
    return path.endswith("/messages")


def _misfit(method: str, path: str, headers: Headers) -> str:
    """Why a body is not read; empty: it is."""
    if headers.get("content-encoding", "identity").lower() not in {"identity", ""}:
        return "send the body without content-encoding: compressed bodies are not read"
    if method not in _WITH_BODY:
        return ""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    # Browsers send other types to other sites without asking.
    takes_arrow = _takes_messages(path)
    if kind == "application/json" or (takes_arrow and kind == ARROW_STREAM):
        return ""
    arrow = f" or {ARROW_STREAM}" if takes_arrow else ""
    return f"send content-type: application/json{arrow}, not {kind[:100] or 'none'!r}"


def _refused(error: QuiverError, status: int) -> Json:
    return Json(error_answer(error_to_proto(error)), status)
