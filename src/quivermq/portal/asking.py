"""Dependencies of pages and actions: the asker's client, and the answer to an action.

The asker's own token is used for everything that a page shows or does, so brokers decide what is
allowed, and record it.
"""

from typing import Annotated, Any

from fastapi import Body, Depends, Request

from quivermq.aio import AsyncClient
from quivermq.errors import InvalidRequest
from quivermq.portal.access import COOKIE, VisibleTopics
from quivermq.portal.poller import ClusterPoller
from quivermq.quantities import parse_duration, parse_size


async def _asker(request: Request) -> AsyncClient:
    access = request.app.state.portal.access
    request.state.token = access.token_of(request.cookies.get(COOKIE, ""))
    client: AsyncClient = await access.client(request.state.token)
    return client


async def _visible(request: Request, _: Annotated[AsyncClient, Depends(_asker)]) -> VisibleTopics:
    found: VisibleTopics = await request.app.state.portal.access.visible(request.state.token)
    return found


def _poller(request: Request) -> ClusterPoller:
    poller: ClusterPoller = request.app.state.portal.poller
    return poller


Asker = Annotated[AsyncClient, Depends(_asker)]
Visible = Annotated[VisibleTopics, Depends(_visible)]
Polled = Annotated[ClusterPoller, Depends(_poller)]
Given = Annotated[dict[str, Any], Body()]
"""The fields of a form, as the page's script sends them."""


def done(message: str, to: str = "", **more: Any) -> dict[str, Any]:
    """The answer to an action: what to tell, and which page to go to; empty: stay."""
    return {"message": message, "to": to, **more}


def text_of(given: dict[str, Any], name: str, default: str = "") -> str:
    """A field as text without spaces around it."""
    value = given.get(name, default)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be text")
    return value.strip()


def whole_of(given: dict[str, Any], name: str, default: int | None = None) -> int | None:
    """A field as a whole number; the default if it is empty."""
    text = text_of(given, name).replace(",", "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidRequest(f"{name.replace('_', ' ')} must be a whole number: {text!r}")
    return int(text)


def decimal_of(given: dict[str, Any], name: str) -> float | None:
    """A field as a number; None if it is empty."""
    text = text_of(given, name)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(f"{name.replace('_', ' ')} must be a number: {text!r}") from None


def duration_of(given: dict[str, Any], name: str) -> float | None:
    """A field as seconds: `7d`, `12h`; None if it is empty."""
    return _quantity(given, name, parse_duration)


def size_of(given: dict[str, Any], name: str) -> int | None:
    """A field as bytes: `10GB`; None if it is empty."""
    found = _quantity(given, name, parse_size)
    return None if found is None else int(found)


def flag_of(given: dict[str, Any], name: str) -> bool:
    return given.get(name) in {True, "on", "true"}


def _quantity(given: dict[str, Any], name: str, parse: Any) -> float | None:
    text = text_of(given, name)
    if not text or text.lower() == "none":
        return None
    try:
        return float(parse(text))
    except ValueError as error:
        raise InvalidRequest(f"{name.replace('_', ' ')}: {error}") from None
