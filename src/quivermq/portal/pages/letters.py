"""Dead letters: by reason, looked inside, redriven and purged."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from quivermq.aio import AsyncClient
from quivermq.client import DeadLetter
from quivermq.errors import InvalidRequest, QuiverError, TopicNotFound
from quivermq.portal.asking import Asker, Given, Polled, Visible, done, text_of
from quivermq.portal.payloads import SHOWN_BYTES, preview
from quivermq.portal.poller import ClusterPoller
from quivermq.portal.rendering import render
from quivermq.quantities import count

router = APIRouter()
_LISTED: Final = 500
_BODIES_BYTES: Final = 256 * 1024
"""Of the values of all letters on a page: an open page is made again every two seconds."""
_TOPICS: Final = 30
_COUNTED: Final = 200


@router.get("/dead-letters")
async def overview(
    request: Request, client: Asker, visible: Visible, poller: Polled
) -> HTMLResponse:
    """The topics with dead letters, each with its reasons."""
    chosen = _candidates(visible.known, poller)[:_TOPICS]
    found = await asyncio.gather(*(_letters(client, name, _COUNTED) for name in chosen))
    topics = [
        (name, letters, Counter(_reason(letter) for letter in letters).most_common(3))
        for name, letters in zip(chosen, found, strict=True)
        if letters
    ]
    return render(request, "letters_overview.html", topics=topics, limit=_COUNTED)


def _candidates(known: frozenset[str], poller: ClusterPoller) -> list[str]:
    """Topics that may have some: a dead-letter topic of theirs exists, or brokers counted one."""
    counted = {
        topic for (topic, _), figures in poller.snapshot.groups.items() if figures.dead
    } & known
    by_name = {name.removesuffix(".dlq") for name in known if name.endswith(".dlq")} & known
    return sorted(counted | by_name)


async def _letters(client: AsyncClient, name: str, limit: int) -> list[DeadLetter]:
    try:
        return await client.dead_letters(name, limit)
    except QuiverError:
        return []


def _reason(letter: DeadLetter) -> str:
    return letter.reason or "no reason"


@router.get("/topics/{name}/dead-letters")
async def letters_page(
    request: Request, client: Asker, name: str, reason: str = ""
) -> HTMLResponse:
    topic = await client.topic(name)
    try:
        letters = await client.dead_letters(name, _LISTED)
    except TopicNotFound:
        letters = []
    reasons = Counter(map(_reason, letters)).most_common()
    shown = [letter for letter in letters if not reason or _reason(letter) == reason]
    return render(
        request,
        "letters.html",
        name=name,
        topic=topic,
        letters=shown,
        total=len(letters),
        reasons=reasons,
        reason=reason,
        limit=_LISTED,
        preview=preview,
        most=min(SHOWN_BYTES, _BODIES_BYTES // max(len(shown), 1)),
    )


@router.post("/topics/{name}/dead-letters/redrive")
async def redrive(client: Asker, name: str, given: Given) -> dict[str, Any]:
    """To the group that failed, or to all; letters whose original is gone stay where they are."""
    to = text_of(given, "to", "group")
    if to not in {"group", "all"}:
        raise InvalidRequest("redrive to the group that failed, or to all")
    redriven = await _apply(partial(client.redrive, to=to), name, given)
    moved, stayed = sum(redriven), sum(getattr(each, "stayed", 0) for each in redriven)
    left = f"; {stayed:,} stay, their originals or groups are gone: redrive them to every group"
    return done(f"{count(moved, 'dead letter')} of {name} redriven{left if stayed else ''}")


@router.post("/topics/{name}/dead-letters/purge")
async def purge(client: Asker, name: str, given: Given) -> dict[str, Any]:
    if not given.get("letters") and text_of(given, "confirm") != name:
        raise InvalidRequest(f"type the name of the topic, {name}, to drop all its dead letters")
    dropped = sum(await _apply(client.purge_dead_letters, name, given))
    return done(f"{count(dropped, 'dead letter')} dropped")


async def _apply(act: Callable[..., Awaitable[int]], name: str, given: dict[str, Any]) -> list[int]:
    """To those that are chosen, as `partition:offset`; without any, to all."""
    chosen: dict[int, list[int]] = {}
    letters = given.get("letters") or []
    for each in letters if isinstance(letters, list) else [letters]:
        partition, _, offset = str(each).partition(":")
        if not (partition.isdecimal() and offset.isdecimal() and len(offset) < 20):
            raise InvalidRequest(f"{each!r} is no dead letter")
        chosen.setdefault(int(partition), []).append(int(offset))
    if not chosen:
        if text_of(given, "all") != "yes":
            raise InvalidRequest("choose dead letters, or all")
        return [await act(name)]
    return [await act(name, offsets, number) for number, offsets in sorted(chosen.items())]
