"""The overview: how the cluster is, what needs attention, what goes in and out."""

import time
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from quivermq.portal.asking import Asker, Polled, Visible
from quivermq.portal.poller import ClusterPoller
from quivermq.portal.rendering import render
from quivermq.portal.truth import Tally

router = APIRouter()
_TALLIES: Final = 8
_SERIES: Final = 24
_OF_THE_CLUSTER: Final = frozenset(
    {"in", "out", "acked", "bytes_in", "bytes_out", "fsync", "produce", "lag", "in_flight",
     "connections"}
)  # fmt: skip


@router.get("/")
async def overview(
    request: Request, client: Asker, visible: Visible, poller: Polled
) -> HTMLResponse:
    cluster = await client.cluster()
    return render(
        request,
        "overview.html",
        cluster=cluster,
        topic_count=visible.own_count,
        notices=[each for each in poller.snapshot.notices if each.topics <= visible.known],
        tallies=_chosen(poller, visible.known),
    )


def _chosen(poller: ClusterPoller, visible: frozenset[str]) -> list[Tally]:
    """The topics that are wrong, then those with the most traffic."""
    topics = poller.snapshot.topics

    def rank(tally: Tally) -> tuple[int, float, int]:
        figures = topics.get(tally.topic)
        rate = figures.rates.get("in", 0.0) + figures.rates.get("out", 0.0) if figures else 0.0
        return (-len(tally.faults), -rate, -tally.stored)

    found = [tally for name, tally in poller.truth.tallies.items() if name in visible]
    return sorted(found, key=rank)[:_TALLIES]


@router.get("/data/live")
async def live(request: Request, _: Asker) -> HTMLResponse:
    """The samples that a page keeps fresh: all that is asked for where it shows nothing else."""
    return render(request, "live.html")


@router.get("/data/series")
async def series(
    visible: Visible,
    poller: Polled,
    s: Annotated[list[str], Query(max_length=_SERIES)],
    seconds: Annotated[float, Query(ge=30, le=3600)] = 900.0,
) -> dict[str, Any]:
    """Points for charts: of the cluster, and of topics that the asker may see."""
    wanted = [name for name in s if _may_see(visible.known, name)]
    now = time.time()
    return {
        "now": now,
        "seconds": seconds,
        "series": {
            name: [[round(at, 1), value] for at, value in poller.history.points(name, now, seconds)]
            for name in wanted
        },
    }


def _may_see(visible: frozenset[str], name: str) -> bool:
    return name.split("@")[1] in visible if "@" in name else name in _OF_THE_CLUSTER
