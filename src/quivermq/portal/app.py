"""The portal as an ASGI application: its parts, its routes, and the rules that hold for all.

Rules: pages load nothing from elsewhere and run no script but ours (Content-Security-Policy); an
action is a JSON request from our own pages (a form of another site cannot send one); a browser that
asks by a foreign name is refused, so that no other site's name leads here.
"""

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

from quivermq.addresses import split_address
from quivermq.errors import (
    ConnectionFailed,
    Forbidden,
    InvalidRequest,
    OffsetOutOfRange,
    QuiverError,
    TopicNotFound,
    Unauthenticated,
)
from quivermq.portal import pages
from quivermq.portal.access import Access
from quivermq.portal.poller import ClusterPoller
from quivermq.portal.rendering import STATIC, render
from quivermq.portal.server import PortalSettings

logger = logging.getLogger("quivermq.portal")

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_BODY_BYTES_MAX: Final = 8 << 20
_STATUSES: Final[dict[type[QuiverError], int]] = {
    TopicNotFound: 404,
    InvalidRequest: 400,
    OffsetOutOfRange: 416,
    Forbidden: 403,
    Unauthenticated: 401,
}

Next = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Portal:
    """The parts of a portal."""

    settings: PortalSettings
    access: Access
    poller: ClusterPoller


def create_app(settings: PortalSettings) -> FastAPI:
    """The application; it samples from its start to its end."""
    access = Access(settings)
    portal = Portal(settings, access, ClusterPoller(access, settings))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        polling = asyncio.create_task(portal.poller.run())
        try:
            yield
        finally:
            polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await polling
            await access.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.portal = portal
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    for router in pages.ROUTERS:
        app.include_router(router)
    app.middleware("http")(_guard)
    app.add_exception_handler(QuiverError, _refused)
    app.add_exception_handler(HTTPException, _no_page)
    app.add_exception_handler(404, _no_page)
    app.add_exception_handler(RequestValidationError, _invalid)
    return app


async def _guard(request: Request, call_next: Next) -> Response:
    fault = _fault_of(request)
    response = JSONResponse({"error": fault}, 403) if fault else await call_next(request)
    for name, value in _HEADERS.items():
        response.headers[name] = value
    if not request.url.path.startswith("/static/"):
        response.headers["Cache-Control"] = "no-store"
    return response


def _fault_of(request: Request) -> str:
    """Why a request is refused before it is looked at; empty: it is not."""
    settings: PortalSettings = request.app.state.portal.settings
    host = request.headers.get("host", "")
    if not _is_own(host, settings):
        return f"this portal is not called {host!r}: see --host-name"
    if request.method in {"GET", "HEAD"}:
        return ""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return "actions are sent by the portal's own pages only"
    if not request.headers.get("content-type", "").startswith("application/json"):
        return "actions are JSON"
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) > _BODY_BYTES_MAX:
        return f"an action has at most {_BODY_BYTES_MAX:,} bytes, and says how many"
    return ""


def _is_own(host: str, settings: PortalSettings) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.strip("[]").lower()
    if name in {"localhost", split_address(settings.listen)[0], *settings.host_names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _wants_page(request: Request) -> bool:
    is_data = "x-portal" in request.headers or request.url.path.startswith("/data/")
    return request.method == "GET" and not is_data


async def _refused(request: Request, error: Exception) -> Response:
    """An error of the brokers, in words: on a page, or to the script that asked."""
    assert isinstance(error, QuiverError)  # noqa: S101
    status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 503)
    if isinstance(error, Unauthenticated):
        portal: Portal = request.app.state.portal
        token = getattr(request.state, "token", "")
        if token:
            portal.access.end_sessions(token)
        if _wants_page(request):
            return RedirectResponse(f"/login?to={quote(request.url.path, safe='/')}", 303)
    if _wants_page(request):
        return render(request, "error.html", status=status, words=words(error), code=status)
    return JSONResponse({"error": words(error)}, status)


def words(error: QuiverError) -> str:
    """An error as people read it."""
    text = str(error) or error.code
    if isinstance(error, Forbidden):
        return f"You may not do this: {text}"
    if isinstance(error, ConnectionFailed):
        return f"No broker answers: {text}"
    return f"{text[:1].upper()}{text[1:]}"


async def _no_page(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    text = "There is no such page" if status == 404 else str(getattr(error, "detail", error))
    if _wants_page(request):
        return render(request, "error.html", status=status, words=text, code=status)
    return JSONResponse({"error": text}, status)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    found: Any = error.errors()
    place = ".".join(str(part) for part in found[0]["loc"][1:]) if found else ""
    text = f"{place or 'The request'}: {found[0]['msg'] if found else 'is not valid'}"
    if _wants_page(request):
        return render(request, "error.html", status=400, words=text, code=400)
    return JSONResponse({"error": text}, 400)
