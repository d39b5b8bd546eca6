"""Groups: how far each is, who works for it, and how to move it."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from quivermq.client import DeadLetter
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.portal.asking import Asker, Given, Polled, Visible, done, text_of, whole_of
from quivermq.portal.rendering import render
from quivermq.portal.waiting import explain

router = APIRouter()
PAGE: Final = 100
_LOOKED_AT: Final = 1_000
_LEASED: Final = 50


@router.get("/groups")
async def groups(
    request: Request,
    visible: Visible,
    poller: Polled,
    q: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> HTMLResponse:
    """The groups of all topics that the asker may see, those with the most to do first."""
    wanted = q.lower()
    found = [
        (topic, group, figures)
        for (topic, group), figures in poller.snapshot.busiest_groups
        if topic in visible.known and wanted in f"{topic} {group}".lower()
    ]
    pages = max(1, -(-len(found) // PAGE))
    page = min(page, pages)
    return render(
        request,
        "groups.html",
        groups=found[(page - 1) * PAGE : page * PAGE],
        total=len(found),
        q=q,
        page=page,
        pages=pages,
    )


@router.get("/topics/{name}/groups")
async def groups_of_topic(request: Request, client: Asker, name: str) -> HTMLResponse:
    return render(request, "topic_groups.html", name=name, groups=await client.groups(name))


@router.get("/topics/{name}/groups/{group}")
async def group_page(
    request: Request, client: Asker, poller: Polled, name: str, group: str
) -> HTMLResponse:
    found = await client.group(name, group)
    leased = await client.in_flight(name, group, _LEASED) if found.in_flight else []
    return render(
        request,
        "group.html",
        name=name,
        group=found,
        figures=poller.snapshot.groups.get((name, group)),
        leased=leased,
    )


@router.post("/topics/{name}/groups/{group}/seek")
async def seek(client: Asker, name: str, group: str, given: Given) -> dict[str, Any]:
    to: Any = text_of(given, "to")
    if to == "offset":
        to = whole_of(given, "offset")
        if to is None:
            raise InvalidRequest("name the offset to move the group to")
    elif to == "time":
        to = text_of(given, "time")
        if not to:
            raise InvalidRequest("name the time to move the group to")
        to = _in_utc(to)
    elif to not in {"earliest", "latest"}:
        raise InvalidRequest("move a group to the earliest or latest message, an offset, or a time")
    moved = await client.seek(name, group, to, whole_of(given, "partition"))
    places = ", ".join(f"{offset:,} in {partition}" for partition, offset in sorted(moved.items()))
    return done(f"Group {group} goes on at {places}")


@router.post("/topics/{name}/groups/{group}/delete")
async def delete(client: Asker, name: str, group: str, given: Given) -> dict[str, Any]:
    if text_of(given, "confirm") != group:
        raise InvalidRequest(f"type the name of the group, {group}, to delete it")
    await client.delete_group(name, group)
    return done(f"Group {group} is deleted", to=f"/topics/{name}/groups")


@router.post("/topics/{name}/groups/{group}/why")
async def why(client: Asker, name: str, group: str, given: Given) -> dict[str, Any]:
    """Why a message waits, in a sentence."""
    partition, offset = whole_of(given, "partition", 0), whole_of(given, "offset")
    if offset is None:
        raise InvalidRequest("name the offset of the message")
    topic, found, delayed = await asyncio.gather(
        client.topic(name), client.group(name, group), client.delayed(name, _LOOKED_AT)
    )
    leased = await client.in_flight(name, group, _LOOKED_AT) if found.in_flight else []
    try:
        letters: list[DeadLetter] = await client.dead_letters(name, _LOOKED_AT)
    except QuiverError:
        letters = []
    text = explain(
        topic, found, partition or 0, offset, delayed, letters, leased, datetime.now(UTC)
    )
    return done("", answer=text)


def _in_utc(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{text!r} is no time: write 2026-01-31T12:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
