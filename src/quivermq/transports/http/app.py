"""The HTTP API as an application: its routes, its errors, its documents."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path

import quivermq
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.transports.http.backend import Backend
from quivermq.transports.http.bodies import ProduceBody
from quivermq.transports.http.dead_letters import DeadLetterRoutes
from quivermq.transports.http.docs_page import docs_page
from quivermq.transports.http.events import EventRoute
from quivermq.transports.http.gate import Gate
from quivermq.transports.http.groups import GroupRoutes, status_override
from quivermq.transports.http.leases import Leases
from quivermq.transports.http.messages import MessageRoutes
from quivermq.transports.http.operating import OperatingRoutes
from quivermq.transports.http.statuses import refused, status_of
from quivermq.transports.http.stream import StreamRoute
from quivermq.transports.http.topics import TopicRoutes
from quivermq.transports.metrics import Metrics
from quivermq.validation import explain
from quivermq.wire import error_to_proto

logger = logging.getLogger("quivermq.http")

_DESCRIPTION: Final = (
    "Topics, messages and groups of a QuiverMQ cluster, and the state of its brokers. Every broker "
    "answers for the whole cluster. 64-bit numbers are strings. Errors have a fitting status and "
    "say what to do."
)
_PROBLEMS_MAX: Final = 10


def make_app(backend: Backend, metrics: Metrics) -> FastAPI:
    """The application of one broker. Takes a while: in a thread, not on the loop."""
    app = FastAPI(
        title="QuiverMQ",
        version=quivermq.__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        openapi_url=None,
    )
    methods: dict[str, set[str]] = {}
    leases = Leases(backend)
    for routes in (
        OperatingRoutes(backend, metrics),
        TopicRoutes(backend),
        MessageRoutes(backend),
        StreamRoute(backend, leases),
        EventRoute(backend),
        GroupRoutes(backend, leases),
        DeadLetterRoutes(backend),
    ):
        router = routes.router()
        # As they are: routers that are included are worked out anew at the first request.
        app.router.routes.extend(router.routes)
        for route in router.routes:
            if isinstance(route, APIRoute):
                methods.setdefault(route.path, set()).update(route.methods or ())
    _document(app)
    _add_pages(app)
    _add_errors(app, backend, methods)
    app.add_middleware(
        Gate,
        access=backend.broker.access,
        service=backend.service,
        tracer=backend.broker.tracer,
    )
    return app


def _add_pages(app: FastAPI) -> None:
    making = asyncio.Lock()

    async def document() -> dict[str, Any]:
        # It takes longer to make than the loop may be held.
        async with making:
            if app.openapi_schema is None:
                await asyncio.to_thread(app.openapi)
        return app.openapi()

    async def openapi() -> JSONResponse:
        return JSONResponse(await document())

    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(await document()))

    async def start() -> RedirectResponse:
        return RedirectResponse("/docs")

    app.add_api_route("/openapi.json", openapi, include_in_schema=False)
    app.add_api_route("/docs", docs, include_in_schema=False)
    app.add_api_route("/", start, include_in_schema=False)


def _document(app: FastAPI) -> None:
    """Complete the OpenAPI document: the errors that are answered, and no others."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            schemas = document["components"]["schemas"]
            for route in (each for path in document["paths"].values() for each in path.values()):
                # Answered with 400, in the shape of all errors.
                route["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            # Read from the body by the route itself, as one of two types.
            body = ProduceBody.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(body.pop("$defs"))
            schemas["ProduceBody"] = body
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation has it


def _add_errors(app: FastAPI, backend: Backend, methods: Mapping[str, set[str]]) -> None:
    """Whatever goes wrong looks the same."""

    async def quiver_error(_: Request, error: Exception) -> Response:
        known = error if isinstance(error, QuiverError) else QuiverError(str(error))
        status = status_override(known) or status_of(known)
        return refused(backend.service.refusal(known).error, status)

    async def http_error(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        what = f"{request.method} {request.url.path}"
        text = f"there is no {what}: see /docs for what there is"
        if status not in {404, 405}:
            text = str(getattr(error, "detail", error))
        allowed = _allowed(methods, request.url.path) if status == 405 else ""
        headers = {"allow": allowed} if allowed else getattr(error, "headers", None)
        return refused(error_to_proto(InvalidRequest(text)), status, headers)

    async def misfit(_: Request, error: Exception) -> Response:
        found = (
            error.errors() if isinstance(error, RequestValidationError | ValidationError) else []
        )
        text = "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {explain(one)}" for one in found[:_PROBLEMS_MAX]
        )
        return refused(error_to_proto(InvalidRequest(_printable(text))), 400)

    async def failure(request: Request, error: Exception) -> Response:
        if not isinstance(error, ConnectionError | ClientDisconnect):
            logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        known = QuiverError(f"the broker failed at this request: {error!r}")
        return refused(error_to_proto(known), 500)

    app.add_exception_handler(QuiverError, quiver_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, misfit)
    app.add_exception_handler(ValidationError, misfit)
    app.add_exception_handler(Exception, failure)


def _allowed(methods: Mapping[str, set[str]], path: str) -> str:
    """The methods of a path; each has a route of its own, which knows only itself."""
    for template, names in methods.items():
        if compile_path(template)[0].match(path):
            return ", ".join(sorted(names))
    return ""


def _printable(text: str) -> str:
    """Names of fields are the client's own, and may be no text that UTF-8 can hold."""
    return text.encode(errors="replace").decode()[:2_000]
