"""Messages: browse a partition by offset and time, look inside, follow, publish again; delayed
ones."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response

from quivermq.batches import EXPIRES
from quivermq.client import Message
from quivermq.errors import InvalidRequest
from quivermq.portal.asking import Asker, Given, done, whole_of
from quivermq.portal.browsing import FIELDS, PAGE, Filter, read_back, read_forward, read_one
from quivermq.portal.payloads import VIEWS, preview
from quivermq.portal.rendering import render, render_part
from quivermq.quantities import count, parse_duration

router = APIRouter()
_FOLLOW_SECONDS: Final = 10.0
_DELAYED: Final = 500

Position = Annotated[int, Query(ge=0, lt=2**63)]
Number = Annotated[int, Query(ge=0, lt=2**31)]
Words = Annotated[str, Query(max_length=500)]


@dataclass(frozen=True, slots=True)
class Browse:
    """The query of the page."""

    partition: int
    offset: int | None
    q: str
    where: str
    view: str
    order: str

    def link(self, **changed: Any) -> str:
        """The query with some of it changed."""
        fields = {
            "partition": self.partition, "offset": self.offset, "q": self.q, "where": self.where,
            "view": self.view, "order": self.order,
        } | changed  # fmt: skip
        default = {"q": "", "where": "anywhere", "view": "auto", "order": "newer", "offset": None}
        return "?" + urlencode(
            {name: value for name, value in fields.items() if value != default.get(name, "none")}
        )


@router.get("/topics/{name}/messages")
async def messages(
    request: Request,
    client: Asker,
    name: str,
    partition: Number = 0,
    offset: Annotated[str, Query(max_length=20)] = "",
    at: Annotated[str, Query(max_length=40)] = "",
    q: Words = "",
    where: str = "anywhere",
    view: str = "auto",
    order: str = "newer",
    *,
    follow: bool = False,
) -> HTMLResponse:
    if offset and not (offset.isascii() and offset.isdigit()):
        raise InvalidRequest(f"an offset is a whole number: {offset!r}")
    browse = Browse(
        partition,
        int(offset) if offset else None,
        q,
        where if where in FIELDS else "anywhere",
        view if view in VIEWS else "auto",
        order if order in {"newer", "older"} else "newer",
    )
    total = (await client.offsets(name, [])).count
    if partition >= total:
        raise InvalidRequest(f"{name} has {count(total, 'partition')}, counted from 0")
    wanted = Filter(browse.q, browse.where)
    if at:
        place = await client.offset_at(name, partition, _moment_of(at))
        page = await read_forward(client, name, partition, place, wanted)
    elif browse.offset is None or follow:
        page = await read_back(client, name, partition, 2**62, wanted)
    elif browse.order == "older":
        page = await read_back(client, name, partition, browse.offset, wanted)
    else:
        page = await read_forward(client, name, partition, browse.offset, wanted)
    return render(
        request,
        "messages.html",
        name=name,
        partitions=total,
        browse=browse,
        page=page,
        rows=page.messages[::-1] if follow else page.messages,
        at=at,
        views=VIEWS,
        fields=FIELDS,
        follow=follow,
        preview=preview,
    )


@router.get("/data/topics/{name}/newer")
async def newer(
    client: Asker, name: str, partition: Number, offset: Position, view: str = "auto"
) -> dict[str, Any]:
    """Messages from an offset on, the newest first; waits for a while until there are some."""
    found = await client.await_offsets({name: {partition: offset}}, wait=_FOLLOW_SECONDS)
    rows: list[Message] = []
    skipped = 0
    if name in found:
        page = await read_back(client, name, partition, 2**62, Filter())
        rows = [message for message in page.messages if message.offset >= offset]
        skipped = max(0, page.end - offset - PAGE)
        offset = max(offset, page.last)
    text = f"Following partition {partition} at {offset:,}"
    return {
        "next": f"/data/topics/{name}/newer?partition={partition}&offset={offset}&view={view}",
        "text": text + (f"; {skipped:,} messages came too fast to be shown" if skipped else ""),
        "rows": render_part(
            "message_rows.html",
            name=name,
            rows=rows[::-1],
            view=view if view in VIEWS else "auto",
            preview=preview,
        ),
    }


@router.get("/topics/{name}/messages/{partition}/{offset}/raw")
async def raw(client: Asker, name: str, partition: int, offset: int) -> Response:
    """The value as it is, to be saved: a browser must not take it for a page."""
    message = await read_one(client, name, partition, offset)
    file = f"{name}-{partition}-{offset}.bin"
    return Response(
        message.value,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{file}"'},
    )


@router.post("/topics/{name}/messages/{partition}/{offset}/again")
async def publish_again(client: Asker, name: str, partition: int, offset: int) -> dict[str, Any]:
    message = await read_one(client, name, partition, offset)
    # Not with the end of its time to live, which may have passed.
    headers = {key: value for key, value in message.headers.items() if key != EXPIRES}
    receipt = await client.produce(
        name,
        message.value,
        key=message.key,
        headers=headers,
        priority=message.priority,
        partition=partition,
    )
    return done(f"Published again, in partition {receipt.partition} as {receipt.offset:,}")


@router.get("/topics/{name}/delayed")
async def delayed(request: Request, client: Asker, name: str) -> HTMLResponse:
    found = await client.delayed(name, _DELAYED)
    return render(request, "delayed.html", name=name, delayed=found, limit=_DELAYED)


@router.post("/topics/{name}/delayed/cancel")
async def cancel_delayed(client: Asker, name: str, given: Given) -> dict[str, Any]:
    partition, offset = whole_of(given, "partition"), whole_of(given, "offset")
    many = whole_of(given, "count", 1) or 1
    if partition is None or offset is None:
        raise InvalidRequest("name the partition and the offset")
    if many > 100_000:
        raise InvalidRequest("cancel at most 100,000 messages at a time")
    cancelled = await client.cancel_delayed(name, partition, range(offset, offset + many))
    return done(f"{count(cancelled, 'delayed message')} cancelled")


def _moment_of(text: str) -> int:
    """Milliseconds since 1970 of a date, a time, or a duration that is counted back from now."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        pass
    else:
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        return max(0, round(found.timestamp() * 1000))
    try:
        return round((datetime.now(UTC).timestamp() - parse_duration(text)) * 1000)
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is no time: write 2026-01-31, 2026-01-31T12:00 (UTC), or 2h for two hours "
            "ago"
        ) from None
