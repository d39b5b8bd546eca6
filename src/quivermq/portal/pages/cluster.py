"""The cluster: brokers, replicas and leaders, and how to change them."""

from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from quivermq.client import NodeInfo, RebalanceInfo, UpgradeInfo
from quivermq.cluster_samples import STATES, Scrape
from quivermq.errors import Forbidden, InvalidRequest
from quivermq.portal.asking import Asker, Given, Polled, done, flag_of, text_of, whole_of
from quivermq.portal.poller import ClusterSample
from quivermq.portal.rendering import render
from quivermq.quantities import count

router = APIRouter()
_LISTED: Final = 200


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A partition, with its replica on each broker."""

    topic: str
    partition: int
    term: int
    states: dict[int, str]
    lags: dict[int, float]

    @property
    def is_calm(self) -> bool:
        """One leads, the others follow and lack nothing."""
        states = sorted(self.states.values())
        return states.count("leader") == 1 and not any(self.lags.values())


@router.get("/cluster")
async def cluster_page(
    request: Request, client: Asker, poller: Polled, *, every: bool = False
) -> HTMLResponse:
    cluster = await client.cluster()
    visible = {*await client.topic_names(), "_quiver"}
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
    rows = [row for row in _replicas(poller.snapshot) if row.topic in visible]
    shown = rows if every else [row for row in rows if row.topic == "_quiver" or not row.is_calm]
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
        topics=sorted(name for name in visible if not name.startswith("_"))[:_LISTED],
    )


def _state_of(node: NodeInfo, leader: int) -> tuple[str, str]:
    if not node.alive:
        return "bad", "down"
    if node.state not in {"", "serving"}:
        return "warn", node.state
    return ("accent", "leads the cluster") if node.id == leader else ("ok", "serving")


def _replicas(snapshot: ClusterSample) -> list[ReplicaRow]:
    places: dict[tuple[str, int], dict[int, Scrape]] = {}
    for node, scrape in snapshot.scrapes.items():
        for place in scrape.partitions.get("quiver_raft_state", {}):
            places.setdefault(place, {})[node] = scrape
    rows = []
    for place, scrapes in sorted(places.items()):
        states = {node: scrape.state_of(place) for node, scrape in scrapes.items()}
        terms = [scrape.partitions["quiver_raft_term"].get(place, 0) for scrape in scrapes.values()]
        leader = next((node for node, state in states.items() if state == STATES[4]), 0)
        followers = scrapes[leader].followers if leader else {}
        lags = {
            member: lag
            for (topic, partition, member), lag in followers.items()
            if (topic, partition) == place
        }
        rows.append(ReplicaRow(*place, int(max(terms)), states, lags))
    return rows


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
