"""Users and their grants, and the audit log; brokers show them to admins."""

import json
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from quivermq.client import Message
from quivermq.errors import InvalidRequest, TopicNotFound
from quivermq.portal.asking import Asker, Given, done, duration_of, text_of
from quivermq.portal.browsing import Filter, Page, read_back
from quivermq.portal.rendering import render

router = APIRouter()
_AUDIT: Final = "_audit"
_ACTIONS: Final = ("produce", "consume", "admin")


@router.get("/users")
async def users(request: Request, client: Asker) -> HTMLResponse:
    return render(request, "users.html", users=await client.users.all(), grantable=_ACTIONS)


@router.post("/users/add")
async def add(client: Asker, given: Given) -> dict[str, Any]:
    name = text_of(given, "name")
    token = await client.users.add(name, expires=duration_of(given, "expires"))
    action = text_of(given, "action")
    if action:
        await client.users.grant(
            name, action, topic=text_of(given, "topic"), group=text_of(given, "group")
        )
    return done(f"User {name} is added", secret=token)


@router.post("/users/{name}/token")
async def new_token(client: Asker, name: str, given: Given) -> dict[str, Any]:
    _check(given, name)
    token = await client.users.add(name, new_token=True)
    return done(f"The former token of {name} has ended", secret=token)


@router.post("/users/{name}/grant")
async def grant(client: Asker, name: str, given: Given) -> dict[str, Any]:
    action = text_of(given, "action")
    topic, group = text_of(given, "topic"), text_of(given, "group")
    await client.users.grant(name, action, topic=topic, group=group)
    return done(f"{name} may {action}")


@router.post("/users/{name}/revoke")
async def revoke(client: Asker, name: str, given: Given) -> dict[str, Any]:
    action = text_of(given, "action")
    topic, group = text_of(given, "topic"), text_of(given, "group")
    await client.users.revoke(name, action, topic=topic, group=group)
    return done(f"{name} may {action} no more, as far as this grant went")


@router.post("/users/{name}/remove")
async def remove(client: Asker, name: str, given: Given) -> dict[str, Any]:
    _check(given, name)
    await client.users.remove(name)
    return done(f"User {name} is removed")


def _check(given: dict[str, Any], name: str) -> None:
    if text_of(given, "confirm") != name:
        raise InvalidRequest(f"type the name of the user, {name}, to confirm")


@router.get("/audit")
async def audit(
    request: Request,
    client: Asker,
    before: Annotated[int, Query(ge=0, lt=2**63)] = 2**62,
    q: Annotated[str, Query(max_length=200)] = "",
) -> HTMLResponse:
    """The audit log, the newest first."""
    try:
        page = await read_back(client, _AUDIT, 0, before, Filter(q, "value"))
    except TopicNotFound:
        page = Page(0, 0)
    records = [_record(message) for message in reversed(page.messages)]
    return render(request, "audit.html", records=records, page=page, q=q, newest=before >= 2**62)


def _record(message: Message) -> dict[str, Any]:
    try:
        found = json.loads(message.value)
    except ValueError:
        found = {}
    return {"time_ms": message.timestamp} | (found if isinstance(found, dict) else {})
