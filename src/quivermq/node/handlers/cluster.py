"""Answers requests about the cluster: brokers that come and go, replicas and leaders that move."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from quivermq.cluster import (
    LEAVING,
    METADATA_PARTITION,
    Edit,
    Levels,
    View,
    drain,
    member_of,
    node_of,
    plan_upgrade,
    raise_level,
    register_broker,
    replace,
    replace_broker,
    set_broker_state,
    set_targets,
    start_rebalance,
)
from quivermq.errors import InvalidRequest, NotEnoughReplicas, QuiverError, Timeout
from quivermq.node.cluster_maps import ClusterMaps
from quivermq.node.controller import Controller
from quivermq.node.forwarding import Forwarding
from quivermq.node.handlers.topics import done
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.metadata import Metadata
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.reconfiguration import reconfigure
from quivermq.node.replica_scheduler import ReplicaScheduler
from quivermq.node.service import Handler
from quivermq.wire import error_from_proto, proto

logger = logging.getLogger("quivermq.cluster")

_TRANSFER_S: Final = 5.0
_MOVE_S: Final = 30.0
_JOIN_S: Final = 30.0
_NUMBER_S: Final = 2.0


@dataclass(slots=True)
class ClusterParts:
    """The parts of a broker that these requests use."""

    metadata: Metadata
    partitions: PartitionLookup
    scheduler: ReplicaScheduler
    forwarding: Forwarding
    maps: ClusterMaps
    controller: Controller
    is_alive: Callable[[int], bool]
    join: Callable[[str], Awaitable[None]]
    """Give up the cluster of one that this broker is, and join another."""
    level_noted: Callable[[], Awaitable[None]]
    """Return when this broker acts by the feature level of the catalog."""
    stats: Callable[[], dict[str, float]]


class ClusterHandlers:
    """Operating a cluster."""

    def __init__(self, parts: ClusterParts) -> None:
        self._parts = parts
        self._metadata = parts.metadata

    def handlers(self) -> dict[str, Handler]:
        return {
            "stats": self.stats,
            "bootstrap": self.bootstrap,
            "join_cluster": self.join_cluster,
            "register_broker": self.register_broker,
            "remove_broker": self.remove_broker,
            "replace_broker": self.replace_broker,
            "rebalance": self.rebalance,
            "transfer": self.transfer,
            "reconfigure": self.reconfigure,
            "upgrade_cluster": self.upgrade_cluster,
        }

    async def stats(self, request: proto.Request) -> proto.Response:  # noqa: ARG002
        return proto.Response(stats_report=proto.StatsReport(values=self._parts.stats()))

    async def register_broker(self, request: proto.Request) -> proto.Response:
        body = request.register_broker

        def build(view: View) -> Edit | None:
            configuration = self._metadata.leading_replica().replica.configuration
            is_founder = member_of(body.id, 0) in configuration.voters
            return register_broker(
                view,
                id=body.id,
                directory_id=body.directory_id.hex(),
                boot=body.boot,
                lives=[life.hex() for life in body.lives],
                address=body.address,
                peer_address=body.peer_address,
                http_address=body.http_address,
                version=body.version,
                joining=body.joining or (is_founder and body.id not in view.brokers),
                cluster_id=body.cluster_id,
                levels=Levels(body.level_min, body.level_max),
                zone=body.zone,
            )

        view = await self._metadata.edit(build)
        self._parts.controller.schedule()
        brokers = await self._parts.maps.brokers(view)
        return proto.Response(
            broker_registered=proto.BrokerRegistered(
                cluster_id=view.cluster.id if view.cluster else "",
                member=view.broker(body.id).member,
                brokers=brokers,
            )
        )

    async def remove_broker(self, request: proto.Request) -> proto.Response:
        body = request.remove_broker

        def build(view: View) -> Edit | None:
            if not body.force:
                self._check_nothing_is_lost(view, body.id)
            leave = set_broker_state(view, body.id, LEAVING)
            moves = set_targets(view, drain(view, body.id))
            return (leave or Edit()) | (moves or Edit()) if leave or moves else None

        await self._metadata.edit(build)
        self._parts.controller.schedule()
        return done()

    def _check_nothing_is_lost(self, view: View, node: int) -> None:
        """A broker that is down cannot hand over what only it has."""
        if self._parts.is_alive(node):
            return
        for topic, partition, placement, _ in view.hosted(node):
            if len(placement.replicas) == 1:
                raise InvalidRequest(
                    f"only broker {node}, which is down, has {topic.name}/{partition}: start it, "
                    "delete the topic, or use --force"
                )

    async def replace_broker(self, request: proto.Request) -> proto.Response:
        node = request.replace_broker.id

        def build(view: View) -> Edit | None:
            # Asked here and not before: only who leads knows; the broker itself is always alive.
            if self._parts.is_alive(node):
                raise InvalidRequest(
                    f"broker {node} is alive with its data directory: stop it before it is replaced"
                )
            fresh = replace_broker(view, node)
            member = int(fresh.put[view.broker(node).key]["member"])
            # Where too few others are left, no quorum can decide to let it go.
            moves = [move for move in replace(view, node, member) if move.keeps_majority]
            return fresh | (set_targets(view, moves) or Edit())

        await self._metadata.edit(build)
        self._parts.controller.schedule()
        return done()

    async def rebalance(self, request: proto.Request) -> proto.Response:
        body = request.rebalance
        self._metadata.leading_replica()
        if not body.status_only:
            await self._metadata.edit(
                lambda view: start_rebalance(view, leaders_only=body.leaders_only)
            )
            self._parts.controller.schedule()
        return proto.Response(rebalance_progress=self._parts.controller.progress())

    async def transfer(self, request: proto.Request) -> proto.Response:
        body = request.transfer
        if body.metadata:
            hosted = self._metadata.leading_replica()
        else:
            hosted = self._parts.partitions.leading(body.topic, b"", body.partition, restoring=True)
        await transfer(hosted, body.to, self._parts.is_alive)
        return done()

    async def reconfigure(self, request: proto.Request) -> proto.Response:
        body = request.reconfigure
        hosted = self._parts.partitions.leading(
            body.topic, body.topic_id, body.partition, restoring=True
        )
        # Only the catalog decides.
        await self._metadata.catch_up()
        planned = self._metadata.view.placement(body.topic, body.partition).planned
        if set(body.members) != set(planned):
            raise InvalidRequest(
                f"{hosted.name} is to have members {sorted(planned)}, says the catalog, and not "
                f"{sorted(body.members)}"
            )
        timeout_s = request.timeout_ms / 1000 or _MOVE_S
        is_alive = self._parts.is_alive
        await reconfigure(hosted, list(body.members), is_alive=is_alive, timeout_s=timeout_s)
        return done()

    async def upgrade_cluster(self, request: proto.Request) -> proto.Response:
        """Raise the feature level, or tell whether that is possible."""
        body = request.upgrade_cluster
        self._metadata.leading_replica()
        # Who leads must know of every broker that registered, also to tell.
        await self._metadata.catch_up()
        upgrade = plan_upgrade(self._metadata.view, body.to)
        if not body.dry_run:
            await self._metadata.edit(lambda view: raise_level(view, upgrade.level))
            # Its maps tell the level that it acts by: who asks next shall hear of the new one.
            await self._parts.level_noted()
            logger.info("the cluster is at feature level %d", upgrade.level)
        return proto.Response(
            cluster_upgraded=proto.ClusterUpgraded(
                before=upgrade.before,
                level=upgrade.level,
                levels=[
                    proto.FeatureLevel(level=level, release=level.release, brings=level.brings)
                    for level in upgrade.levels
                ],
            )
        )

    async def bootstrap(self, request: proto.Request) -> proto.Response:
        """Let the brokers at these addresses join this one, one after another."""
        own = {broker.address for broker in self._metadata.view.brokers.values()}
        here = self._parts.partitions.address_of(node_of(self._own_member()))
        for address in dict.fromkeys(request.bootstrap.addresses):
            if address in own:
                continue
            ask = proto.Request(join_cluster=proto.JoinCluster(address=here))
            response, _ = await self._parts.forwarding.send(address, ask, (), _JOIN_S)
            if response.WhichOneof("body") == "error":
                raise error_from_proto(response.error)
        return done()

    def _own_member(self) -> int:
        hosted = self._parts.scheduler.replicas.get(METADATA_PARTITION)
        return hosted.member if hosted else 0

    async def join_cluster(self, request: proto.Request) -> proto.Response:
        view = self._metadata.view
        if view.topics or len(view.brokers) > 1:
            raise InvalidRequest(
                f"this broker is part of a cluster with {len(view.brokers)} brokers and "
                f"{len(view.topics)} topics: only one that holds nothing can join another"
            )
        hosted = self._metadata.hosted
        if hosted is not None and hosted.replica.configuration.members != (hosted.member,):
            # It may have voted, whatever it knows of the catalog so far.
            raise InvalidRequest("this broker founds a cluster with others, and cannot leave it")
        await self._check_number(request.join_cluster.address)
        await self._parts.join(request.join_cluster.address)
        return done()

    async def _check_number(self, address: str) -> None:
        """Raise `InvalidRequest` if a live broker of the cluster there has this one's number: it
        would never be let in."""
        ask = proto.Request(map=proto.MapQuery(brokers_only=True))
        try:
            response, _ = await self._parts.forwarding.send(address, ask, (), _NUMBER_S)
        except QuiverError:
            # Registering tries for longer, and says why it does not succeed.
            return
        node = self._parts.maps.node_id
        here = self._parts.partitions.address_of(node)
        for broker in response.map.brokers:
            if broker.id == node and broker.alive and broker.address != here:
                raise InvalidRequest(
                    f"the broker at {here} is number {node}, and so is the one at "
                    f"{broker.address}: start each with a --node-id of its own"
                )


async def transfer(hosted: HostedReplica, node: int, is_alive: Callable[[int], bool]) -> None:
    """Hand leadership to a node, and wait until it has it.

    It is tried once: until a target takes over, or the leader gives it up, nothing is stored.
    """
    replica = hosted.replica
    members = [m for m in replica.configuration.members if node_of(m) == node]
    if not members:
        nodes = ", ".join(str(node_of(member)) for member in replica.configuration.voters)
        raise InvalidRequest(f"node {node} has no replica of {hosted.name}; nodes {nodes} have")
    # A node that is being replaced has two.
    target = max(members)
    if target not in replica.configuration.voters or not is_alive(node):
        raise NotEnoughReplicas(
            f"node {node} cannot lead {hosted.name} now: it is away, or still being caught up"
        )
    if replica.is_leader:
        hosted.transfer_leader(target)
    deadline = asyncio.get_running_loop().time() + _TRANSFER_S
    while node_of(replica.leader) != node:
        status = replica.status
        is_over = status is not None and replica.is_leader and status.transferee != target
        if is_over or asyncio.get_running_loop().time() > deadline:
            raise Timeout(f"node {node} did not take {hosted.name} over in time; try again")
        await asyncio.sleep(0.05)
