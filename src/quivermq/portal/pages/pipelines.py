"""Pipelines that report, and archives of topics."""

import time
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from quivermq.aio import AsyncClient
from quivermq.client import ARCHIVE_PREFIX
from quivermq.errors import TopicNotFound
from quivermq.pipelines import REPORTS_TOPIC, Heard, age_seconds, reports_by_name, state_of
from quivermq.portal.asking import Asker, Polled, Visible
from quivermq.portal.rendering import render

router = APIRouter()
_READ: Final = 2_000
"""Pipelines report every few seconds: those that run are among the last reports."""
_STATES: Final = {
    "running": "ok", "finished": "ok", "failed": "bad", "silent": "warn", "stopped": "",
    "starting": "accent",
}  # fmt: skip


@router.get("/pipelines")
async def pipelines(
    request: Request, client: Asker, visible: Visible, poller: Polled
) -> HTMLResponse:
    now = datetime.now(UTC)
    reports = await _reports(client)
    archives = [
        (topic, group.removeprefix(ARCHIVE_PREFIX), figures)
        for (topic, group), figures in sorted(poller.snapshot.groups.items())
        if group.startswith(ARCHIVE_PREFIX) and topic in visible.known
    ]
    rows = [
        (report, state_of(report, now), age_seconds(report, now)) for report in reports.values()
    ]
    return render(
        request,
        "pipelines.html",
        rows=rows,
        archives=archives,
        colours=_STATES,
        asked=time.time(),
    )


async def _reports(client: AsyncClient) -> dict[str, dict[str, Any]]:
    try:
        held = (await client.offsets(REPORTS_TOPIC, [0])).partitions[0]
    except TopicNotFound:
        return {}
    heard: dict[bytes, list[Heard]] = {}
    start = max(held.start, held.end - _READ)
    async with client.read(REPORTS_TOPIC, 0, start, held.end) as reader:
        async for message in reader:
            if message.key is not None:
                heard.setdefault(message.key, []).append((message.time, message.value))
    return reports_by_name(heard)
