"""A broker that stops hands over what it leads.

No broker ticks meanwhile, so that none holds an election by itself.
"""

import time
from pathlib import Path

from quivermq.cluster import node_of
from quivermq.node.hosted_replica import HostedReplica
from quivermq.transports import Server
from tests.node.cluster_stage import Brokers, cluster
from tests.transports.stage import on_loop, until

BUSY_S = 0.5
NOWHERE = "127.0.0.1:1"


def metadata_of(server: Server) -> HostedReplica:
    (found,) = server.broker.scheduler.replicas.values()
    return found


async def leader_of(brokers: Brokers) -> int:
    """The one who leads the metadata, and whom the others follow."""

    def leaders() -> set[int]:
        return {metadata_of(server).replica.leader for server in brokers.running.values()}

    await until(lambda: len(leaders()) == 1 and 0 not in leaders())
    (found,) = leaders()
    return node_of(found)


def stop_ticking(brokers: Brokers) -> None:
    for server in brokers.running.values():
        server.broker.scheduler.stop_ticking()


@on_loop
async def test_the_successor_is_one_that_can_be_told(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        leading = await leader_of(brokers)
        # Both have everything: the first of them would be chosen.
        first, second = sorted({1, 2, 3} - {leading})
        links = brokers.running[leading].broker.links
        await until(lambda: links.reaches(first) and links.reaches(second))
        stop_ticking(brokers)
        links.peers[first].move(NOWHERE)
        await until(lambda: not links.reaches(first))
        assert brokers.running[leading].broker.is_alive(first)
        await brokers.stop(leading)
        assert await leader_of(brokers) == second


@on_loop
async def test_the_successor_is_one_that_can_ask_for_votes(tmp_path: Path) -> None:
    """One that has just started can be told before it has connections of its own."""
    async with cluster(tmp_path) as brokers:
        leading = await leader_of(brokers)
        first, second = sorted({1, 2, 3} - {leading})
        links = brokers.running[leading].broker.links
        for node in (first, second):
            await until(lambda node=node: links.reaches(node) and links.is_reached_by(node))
        stop_ticking(brokers)
        for peer in brokers.running[first].broker.links.peers.values():
            peer.move(NOWHERE)
        await until(lambda: not links.is_reached_by(first))
        assert links.reaches(first)
        assert brokers.running[leading].broker.is_alive(first)
        await brokers.stop(leading)
        assert await leader_of(brokers) == second


@on_loop
async def test_the_vote_for_the_successor_is_waited_for(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        leading = await leader_of(brokers)
        successor, away = sorted({1, 2, 3} - {leading})
        await brokers.stop(away)
        await until(lambda: not brokers.running[leading].broker.is_alive(away))
        assert await leader_of(brokers) == leading
        stop_ticking(brokers)
        disk_thread = brokers.running[leading].broker.disk_thread
        disk_thread.submit(lambda: time.sleep(BUSY_S), lambda _: None)
        await brokers.stop(leading)
        assert await leader_of(brokers) == successor
