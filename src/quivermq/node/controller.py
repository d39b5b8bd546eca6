"""Runs the cluster in the background, on the broker that leads the metadata partition.

One thing at a time, each of which may be repeated: found the cluster, keep the members of the
metadata partition in line with the brokers, move one replica, let a broker that is empty go. So a
new leader goes on wherever the last one stopped.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from quivermq.cluster import (
    LEAVING,
    LeaderMove,
    Move,
    View,
    end_rebalance,
    finish_moves,
    found_cluster,
    is_rebalancing,
    metadata_voters,
    node_of,
    partition_id,
    rebalance_leaders,
    remove_broker,
)
from quivermq.errors import NotEnoughReplicas, QuiverError, Timeout
from quivermq.node.metadata import Metadata
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.reconfiguration import reconfigure
from quivermq.node.service import Answer
from quivermq.node.tasks import end_tasks
from quivermq.wire import error_from_proto, proto

logger = logging.getLogger("quivermq.controller")

_LOOK_AGAIN_S: Final = 0.25
_MOVE_S: Final = 30.0
_LEADER_S: Final = 3.0
_TRANSFER_S: Final = 10.0
_LASTING_S: Final = 2.0
"""A broker that has just come is let in, and heard, a moment later: before this it is not called
down."""


class Troubles:
    """Failures of the passes, each reported once for as long as it comes again with every pass."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._reported: set[str] = set()
        self._met: set[str] = set()

    def report(self, error: QuiverError, now: float) -> str:
        """The text for people; "" if it may be over in a moment."""
        text = str(error)
        self._met.add(text)
        since = self._since.setdefault(text, now)
        if isinstance(error, NotEnoughReplicas) and now - since < _LASTING_S:
            return ""
        if text not in self._reported:
            self._reported.add(text)
            logger.warning("%s", text)
        return text

    def end_pass(self) -> set[str]:
        """Forget what the pass did not meet again, and return it."""
        over = self._since.keys() - self._met
        for text in over:
            del self._since[text]
        self._reported &= self._met
        self._met = set()
        return over


class Controller:
    """Runs on every broker, and works on the one that leads the metadata partition."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: PartitionLookup,
        is_alive: Callable[[int], bool],
        call: Callable[[proto.Request], Awaitable[Answer]],
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._is_alive = is_alive
        self._call = call
        self._is_due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.moving = ""
        """The move that is under way, for people."""
        self.trouble = ""
        """The last failure, for people."""
        self._troubles = Troubles()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="controller")

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)

    def schedule(self) -> None:
        """Something changed: run a pass now."""
        self._is_due.set()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self._is_due.wait()
            self._is_due.clear()
            if not self._metadata.is_leader:
                self.moving = ""
                continue
            try:
                await self._work()
            except QuiverError as error:
                self._note(error)
                await asyncio.sleep(_LOOK_AGAIN_S)
            except Exception:
                logger.exception("the controller failed, and goes on")
                await asyncio.sleep(1.0)
            if self.trouble in self._troubles.end_pass():
                self.trouble = ""

    def _note(self, error: QuiverError) -> None:
        now = asyncio.get_running_loop().time()
        self.trouble = self._troubles.report(error, now) or self.trouble

    async def _work(self) -> None:
        view = self._metadata.view
        if view.cluster is None:
            cluster_id = secrets.token_hex(8)
            now_ms = self._metadata.leading_replica().now_ms()
            await self._metadata.edit(
                lambda view: None if view.cluster else found_cluster(cluster_id, now_ms, ())
            )
            return
        try:
            await self._keep_members(view)
        except (NotEnoughReplicas, Timeout) as error:
            # A broker that is down must not hold up moves: they may be what lets it go.
            self._note(error)
        if await self._move_one(view):
            self.schedule()
            return
        if is_rebalancing(view):
            await self._move_leaders(view)
            self.moving = ""
            return
        for broker in view.brokers.values():
            if broker.state == LEAVING:
                await self._let_go(broker.id)
        self.moving = ""

    async def _keep_members(self, view: View) -> None:
        """Give the metadata partition all brokers as members, and those alone."""
        if not view.brokers:
            return
        hosted = self._metadata.leading_replica()
        configuration = hosted.replica.configuration
        voters, learners = metadata_voters(view, configuration.voters)
        # Founders that never came are kept until they register: the founding set was given.
        unregistered = {
            member
            for member in configuration.voters
            if node_of(member) not in view.brokers and node_of(member) not in view.retired
        }
        if (set(configuration.voters), set(configuration.learners)) != (
            {*voters, *unregistered},
            set(learners),
        ):
            await reconfigure(
                hosted,
                {*voters, *unregistered},
                learners,
                is_alive=self._is_alive,
                timeout_s=_MOVE_S,
            )

    async def _move_one(self, view: View) -> bool:
        """Move the first partition that can be moved; False if there is none to move."""
        stuck: QuiverError | None = None
        for topic, partition, placement in view.moving():
            nodes = ", ".join(str(node_of(member)) for member in placement.target)
            self.moving = f"{topic.name}/{partition} to nodes {nodes}"
            body = proto.Reconfigure(
                topic=topic.name,
                topic_id=bytes.fromhex(topic.id),
                partition=partition,
                members=placement.target,
            )
            wanted = partition_id(topic.id, partition)
            try:
                await self._ask(wanted, proto.Request(reconfigure=body), _MOVE_S)
            except QuiverError as error:
                # One that cannot move must not hold up the others.
                stuck = error
                continue
            await self._finish(Move(topic.name, partition, placement.target))
            return True
        if stuck is not None:
            raise stuck
        return False

    async def _finish(self, move: Move) -> None:
        await self._metadata.edit(lambda view: finish_moves(view, [move]))

    async def _ask(self, wanted: bytes, request: proto.Request, timeout_s: float) -> None:
        """Ask the leader of a partition; raises its refusal."""
        loop = asyncio.get_running_loop()
        patience = loop.time() + _LEADER_S
        while not self._partitions.leader_of(wanted):
            if loop.time() > patience:
                raise NotEnoughReplicas("a partition that is to move has no leader")
            await asyncio.sleep(0.05)
        request.timeout_ms = round(timeout_s * 1000)
        response, _ = await self._call(request)
        if response.WhichOneof("body") == "error":
            raise error_from_proto(response.error)

    # Leaders.

    async def _move_leaders(self, view: View) -> None:
        """Each once, after all replicas are where they should be; then the rebalance is over."""
        trouble = ""
        for move in self._leader_moves(view):
            self.moving = f"the leader of {move.topic}/{move.partition} to node {move.to}"
            body = proto.Transfer(topic=move.topic, partition=move.partition, to=move.to)
            wanted = partition_id(view.topic(move.topic).id, move.partition)
            try:
                await self._ask(wanted, proto.Request(transfer=body), _TRANSFER_S)
            except QuiverError as error:
                trouble = f"{move.topic}/{move.partition} stays with its leader: {error}"
                logger.warning("%s", trouble)
        await self._metadata.edit(end_rebalance)
        self.trouble = trouble

    def _leader_moves(self, view: View) -> list[LeaderMove]:
        ids = [partition_id(topic.id, partition) for topic, partition, _ in view.partitions()]
        leaders = {wanted: self._partitions.leader_of(wanted) for wanted in ids}
        return rebalance_leaders(view, leaders, set(filter(self._is_alive, view.brokers)))

    def progress(self) -> proto.RebalanceProgress:
        """How far the moves are that were asked for."""
        view = self._metadata.view
        return proto.RebalanceProgress(
            moves_left=len(view.moving()),
            leaders_left=len(self._leader_moves(view)) if is_rebalancing(view) else 0,
            moving=[self.moving] if self.moving else [],
            trouble=self.trouble,
        )

    async def _let_go(self, node: int) -> None:
        """A broker that leaves and holds nothing any more."""
        view = self._metadata.view
        if any(True for _ in view.hosted(node)):
            return
        configuration = self._metadata.leading_replica().replica.configuration
        if view.broker(node).member in configuration.all_voters:
            # It still votes, as another broker that is down holds up the change of members. Who
            # sees it leave the catalog switches it off: the others may be no majority.
            return
        # The catalog says it while the broker still hears: that is how it learns that it may stop.
        await self._metadata.edit(lambda view: remove_broker(view, node))
        logger.info("node %d has left the cluster", node)
        self.schedule()
