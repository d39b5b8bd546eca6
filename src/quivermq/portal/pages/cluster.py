"""The cluster: brokers, replicas and leaders, and how to change them."""

from itertools import islice
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from quivermq.client import NodeInfo, RebalanceInfo, UpgradeInfo
from quivermq.errors import Forbidden, InvalidRequest
from quivermq.portal.asking import Asker, Given, Polled, Visible, done, flag_of, text_of, whole_of
from quivermq.portal.cluster_sample import METADATA
from quivermq.portal.rendering import render
from quivermq.quantities import count

router = APIRouter()
_LISTED: Final = 200


@router.get("/cluster")
async def cluster_page(
    request: Request, client: Asker, visible: Visible, poller: Polled, *, every: bool = False
) -> HTMLResponse:
    cluster = await client.cluster()
    rebalance: RebalanceInfo | None = None
    upgrade: UpgradeInfo | None = None
    access = request.app.state.portal.access
    if access.is_admin(request.state.token):
        try:
            rebalance = await client.rebalance_status()
            if cluster.level_possible > cluster.level:
                upgrade = await client.upgrade_cluster(dry_run=True)
        except Forbidden:
            access.note_refusal(request.state.token)
    rows = [
        row
        for row in poller.snapshot.replicas
        if row.topic == METADATA or row.topic in visible.known
    ]
    shown = rows if every else [row for row in rows if row.topic == METADATA or not row.is_calm]
    return render(
        request,
        "cluster.html",
        cluster=cluster,
        scrapes=poller.snapshot.scrapes,
        rebalance=rebalance,
        upgrade=upgrade,
        replicas=shown[:_LISTED],
        replica_count=len(rows),
        left_out=max(0, len(shown) - _LISTED),
        every=every,
        state_of=_state_of,
        topics=list(islice((n for n in visible.names if not n.startswith("_")), _LISTED)),
    )


def _state_of(node: NodeInfo, leader: int) -> tuple[str, str]:
    if not node.alive:
        return "bad", "down"
    if node.state not in {"", "serving"}:
        return "warn", node.state
    return ("accent", "leads the cluster") if node.id == leader else ("ok", "serving")


@router.post("/cluster/rebalance")
async def rebalance(client: Asker, given: Given) -> dict[str, Any]:
    found = await client.rebalance(leaders_only=flag_of(given, "leaders_only"))
    if found.done:
        return done("Balanced: nothing is left to move")
    replicas, leaders = count(found.moves_left, "replica"), count(found.leaders_left, "leader")
    return done(f"Moving {replicas} and {leaders}")


@router.post("/cluster/transfer")
async def transfer(client: Asker, given: Given) -> dict[str, Any]:
    topic, to = text_of(given, "topic") or None, whole_of(given, "to")
    if to is None:
        raise InvalidRequest("name the broker that is to lead")
    partition = whole_of(given, "partition", 0) or 0
    await client.transfer(topic, partition, to=to)
    what = f"partition {partition} of {topic}" if topic else "the cluster"
    return done(f"Broker {to} leads {what}")


@router.post("/cluster/add")
async def add(client: Asker, given: Given) -> dict[str, Any]:
    address = text_of(given, "address")
    cluster = await client.add_broker(address)
    added = next((node.id for node in cluster.nodes if node.address == address), "?")
    return done(f"Broker {added} joined. It holds nothing yet: rebalance gives it its share")


@router.post("/cluster/remove")
async def remove(client: Asker, given: Given) -> dict[str, Any]:
    node = _confirmed(given)
    await client.remove_broker(node, force=flag_of(given, "force"))
    return done(f"Broker {node} is leaving: its partitions move to the others first")


@router.post("/cluster/replace")
async def replace(client: Asker, given: Given) -> dict[str, Any]:
    node = _confirmed(given)
    await client.replace_broker(node)
    return done(f"Broker {node} may start with an empty data directory")


@router.post("/cluster/upgrade")
async def upgrade(client: Asker, given: Given) -> dict[str, Any]:
    if text_of(given, "confirm") != "upgrade":
        raise InvalidRequest("type upgrade to confirm: there is no way back")
    found = await client.upgrade_cluster()
    return done(f"The cluster is at feature level {found.level}")


def _confirmed(given: dict[str, Any]) -> int:
    node = whole_of(given, "node")
    if node is None or text_of(given, "confirm") != str(node):
        raise InvalidRequest("type the number of the broker to confirm")
    return node
