"""Looks at every request before the application does: who asks, from where, in which format."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quivermq.errors import Forbidden, InvalidRequest, QuiverError, TooLarge
from quivermq.node import AccessControl, Service
from quivermq.transports.http.arrow_body import ARROW_STREAM
from quivermq.transports.http.statuses import refused, status_of
from quivermq.transports.signing_in import signed_in
from quivermq.wire import error_to_proto

if TYPE_CHECKING:
    from quivermq.tracing import BrokerTracer

_DOOR: Final = "http"
_WITH_BODY: Final = {"POST", "PATCH"}
SMALL_BODY_BYTES_MAX: Final = 256 << 10
"""Of a body without messages: to read many small things takes longer than a few large ones."""


class Gate:
    """Lets requests through to the application, or refuses them."""

    def __init__(
        self,
        app: ASGIApp,
        access: AccessControl,
        service: Service,
        tracer: "BrokerTracer | None" = None,
    ) -> None:
        self._app = app
        self._access = access
        self._service = service
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if not (path.startswith("/v1/") or path == "/metrics"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_started = False

        async def noting_start(message: Message) -> None:
            nonlocal is_started
            is_started = is_started or message["type"] == "http.response.body"
            await send(message)

        authorization, host = headers.get("authorization", ""), scope["client"][0]
        try:
            _check_site(headers)
            async with signed_in(self._access, authorization, host, _DOOR):
                if self._tracer is None:
                    await self._app(scope, receive, noting_start)
                    return
                with self._tracer.incoming(headers):
                    await self._app(scope, receive, noting_start)
        except QuiverError as error:
            if is_started:
                # Its user is gone, and the answer is on its way: it ends in the middle.
                raise ConnectionResetError(str(error)) from error
            answer = refused(self._service.refusal(error).error, status_of(error))
            await answer(scope, receive, send)


class BodyRoute(APIRoute):
    """A route that reads its body only if it is what it says: JSON, or an Arrow stream."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        read = super().get_route_handler()

        async def checked(request: Request) -> Response:
            problem = _misfit(request.method, request.url.path, request.headers)
            if problem:
                return refused(error_to_proto(InvalidRequest(problem)), 415)
            if request.method in _WITH_BODY and not _takes_messages(request.url.path):
                size = len(await request.body())
                if size > SMALL_BODY_BYTES_MAX:
                    raise TooLarge(
                        f"a body of {size:,} bytes is above {SMALL_BODY_BYTES_MAX:,}: send less at "
                        "once; of what a poll answered, only its leases"
                    )
            return await read(request)

        return checked


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
