"""Signing in by token, and out; and the colours that a browser wants."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from quivermq.errors import QuiverError, Unauthenticated
from quivermq.portal.access import COOKIE
from quivermq.portal.asking import Given, done, text_of
from quivermq.portal.rendering import THEMES, render

router = APIRouter()


@router.get("/login")
async def login(request: Request, to: str = "/") -> HTMLResponse:
    return render(request, "login.html", to=_own_path(to))


@router.post("/login")
async def sign_in(request: Request, given: Given) -> Response:
    portal = request.app.state.portal
    try:
        name = await portal.access.sign_in(text_of(given, "token"))
    except Unauthenticated:
        return JSONResponse({"error": "The brokers do not accept this token."}, 401)
    except QuiverError as error:
        return JSONResponse({"error": str(error) or error.code}, 503)
    response = JSONResponse(done("", to=_own_path(text_of(given, "to", "/"))))
    response.set_cookie(
        COOKIE, name, httponly=True, samesite="lax", secure=portal.settings.is_https, path="/"
    )
    return response


@router.post("/logout")
async def sign_out(request: Request) -> Response:
    request.app.state.portal.access.sign_out(request.cookies.get(COOKIE, ""))
    response = JSONResponse(done("", to="/login"))
    response.delete_cookie(COOKIE, path="/")
    return response


@router.post("/theme")
async def choose_theme(given: Given) -> Response:
    theme = text_of(given, "theme")
    response = JSONResponse(done(""))
    if theme in THEMES:
        response.set_cookie("theme", theme, samesite="lax", path="/", max_age=365 * 86_400)
    else:
        response.delete_cookie("theme", path="/")
    return response


def _own_path(to: str) -> str:
    """A path of this portal: another site's address would lead people away."""
    return to if to.startswith("/") and not to.startswith(("//", "/\\")) else "/"
