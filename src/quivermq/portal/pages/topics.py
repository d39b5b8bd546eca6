"""Topics: the list, one topic with its partitions and settings, and what can be done to it."""

import binascii
from collections.abc import Iterable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from quivermq.aio import AsyncClient
from quivermq.client import RateLimit, Retention, Retry, TopicInfo
from quivermq.cluster_findings import brokers_down, partition_problems
from quivermq.errors import InvalidRequest, TopicNotFound
from quivermq.portal.access import VisibleTopics
from quivermq.portal.asking import (
    Asker,
    Given,
    Polled,
    Visible,
    decimal_of,
    done,
    duration_of,
    flag_of,
    size_of,
    text_of,
    whole_of,
)
from quivermq.portal.poller import ClusterPoller
from quivermq.portal.rendering import render

router = APIRouter()
PAGE: Final = 50
_SORTS: Final = ("name", "in", "out", "size")
_HEADERS: Final = 64


@router.get("/topics")
async def topics(
    request: Request,
    client: Asker,
    visible: Visible,
    poller: Polled,
    q: Annotated[str, Query(max_length=200)] = "",
    sort: str = "name",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    *,
    system: bool = False,
) -> HTMLResponse:
    """Of ten thousand topics only those of the page are described."""
    sort = sort if sort in _SORTS else "name"
    wanted = q.lower()
    names = [
        name
        for name in _ordered(visible, sort, poller)
        if wanted in name.lower() and (system or not name.startswith("_"))
    ]
    pages = max(1, -(-len(names) // PAGE))
    page = min(page, pages)
    shown = await _described(client, names[(page - 1) * PAGE : page * PAGE])
    return render(
        request,
        "topics.html",
        topics=shown,
        figures=poller.snapshot.topics,
        total=len(names),
        every=visible.own_count,
        q=q,
        sort=sort,
        page=page,
        pages=pages,
        system=system,
    )


def _ordered(visible: VisibleTopics, sort: str, poller: ClusterPoller) -> Iterable[str]:
    """All names: those that the sample ranks first, then those that it does not know yet."""
    if sort == "name":
        return visible.names
    ranked = poller.snapshot.ranked(sort)
    first = [name for name in ranked if name in visible.known]
    known = poller.snapshot.topics
    return [*first, *(name for name in visible.names if name not in known)]


async def _described(client: AsyncClient, names: list[str]) -> list[TopicInfo]:
    try:
        found = await client.topics(names)
    except TopicNotFound:  # one was deleted meanwhile
        left = set(await client.topic_names())
        found = await client.topics([name for name in names if name in left])
    by_name = {topic.name: topic for topic in found}
    return [by_name[name] for name in names if name in by_name]


@router.get("/topics/{name}")
async def topic(request: Request, client: Asker, poller: Polled, name: str) -> HTMLResponse:
    found = poller.settled(await client.topic(name))
    cluster = await client.cluster()
    down = brokers_down(cluster)
    behind = poller.snapshot.behind
    rows = [
        (each, partition_problems(each, down), behind((name, each.partition)))
        for each in found.partitions
    ]
    return render(
        request,
        "topic.html",
        topic=found,
        rows=rows,
        figures=poller.snapshot.topics.get(name),
        tally=poller.truth.tallies.get(name),
    )


@router.post("/topics")
async def create(request: Request, client: Asker, given: Given) -> dict[str, Any]:
    name = text_of(given, "name")
    made = await client.create_topic(
        name,
        partitions=whole_of(given, "partitions"),
        replication=whole_of(given, "replication"),
        **_settings(given),
    )
    request.app.state.portal.access.forget_visible()
    return done(f"Topic {made.name} is created", to=f"/topics/{made.name}")


@router.post("/topics/{name}/alter")
async def alter(client: Asker, name: str, given: Given) -> dict[str, Any]:
    before = await client.topic(name)
    partitions = whole_of(given, "partitions")
    settings = _settings(given)
    if not settings["dead_letter"]:
        settings["dead_letter"] = None
    more = partitions if partitions != len(before.partitions) else None
    await client.alter_topic(name, partitions=more, **settings)
    return done(f"The settings of {name} are changed")


@router.post("/topics/{name}/delete")
async def delete(request: Request, client: Asker, name: str, given: Given) -> dict[str, Any]:
    if text_of(given, "confirm") != name:
        raise InvalidRequest(f"type the name of the topic, {name}, to delete it")
    await client.delete_topic(name)
    request.app.state.portal.access.forget_visible()
    return done(f"Topic {name} is deleted", to="/topics")


@router.post("/topics/{name}/publish")
async def publish(client: Asker, name: str, given: Given) -> dict[str, Any]:
    key = given.get("key", "")
    receipt = await client.produce(
        name,
        _bytes_of(given.get("value", ""), text_of(given, "encoding", "text")),
        key=str(key).encode() if key else None,
        headers=_headers_of(text_of(given, "headers")),
        priority=whole_of(given, "priority", 0) or 0,
        delay=duration_of(given, "delay") or 0.0,
        ttl=duration_of(given, "ttl"),
        content_type=text_of(given, "content_type") or None,
        partition=whole_of(given, "partition"),
    )
    return done(f"Stored in partition {receipt.partition} as message {receipt.offset:,}")


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    per_second = decimal_of(given, "rate_limit")
    retry = {
        part: value
        for part in ("first", "base", "longest")
        if (value := duration_of(given, f"retry_{part}")) is not None
    }
    settings: dict[str, Any] = {
        "retention": Retention(
            max_age=duration_of(given, "max_age"),
            max_messages=whole_of(given, "max_messages"),
            max_bytes=size_of(given, "max_bytes"),
            delete_acked=flag_of(given, "delete_acked"),
            keep_until_archived=flag_of(given, "keep_until_archived"),
        ),
        "rate_limit": RateLimit(per_second, burst=whole_of(given, "burst", 1) or 1)
        if per_second
        else None,
        "max_deliveries": whole_of(given, "max_deliveries", 5) or 5,
        "dead_letter": text_of(given, "dead_letter") or None,
        "retry": Retry(**retry),
        "drop_expired": flag_of(given, "drop_expired"),
    }
    if "group_idle_retention" in given:
        settings["group_idle_retention"] = duration_of(given, "group_idle_retention")
    return settings


def _bytes_of(value: Any, encoding: str) -> bytes:
    text = str(value)
    try:
        if encoding == "hex":
            return bytes.fromhex(text)
        if encoding == "base64":
            return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise InvalidRequest(f"the value is not {encoding}: {error}") from None
    return text.encode()


def _headers_of(text: str) -> dict[str, bytes]:
    """Lines `name: value`."""
    found: dict[str, bytes] = {}
    for line in text.splitlines():
        if line.strip():
            name, colon, value = line.partition(":")
            if not colon or not name.strip():
                raise InvalidRequest(f"write a header as name: value, not {line.strip()!r}")
            found[name.strip()] = value.strip().encode()
    if len(found) > _HEADERS:
        raise InvalidRequest(f"the form takes at most {_HEADERS} headers")
    return found
