"""The controller: moves replicas and leaders, and goes on while a broker is down."""

from pathlib import Path

from quivermq.cluster import Edit, Move, set_targets
from quivermq.transports import Server
from tests.cluster.catalogs import broker as record_of
from tests.node.cluster_stage import Brokers, cluster
from tests.transports.stage import PATIENT, Talker, make_topic, on_loop, until


async def metadata_leader(brokers: Brokers) -> Server:
    servers = brokers.running.values()
    await until(lambda: any(server.broker.metadata.is_leader for server in servers))
    return next(server for server in servers if server.broker.metadata.is_leader)


async def move(server: Server, *moves: Move) -> None:
    await server.broker.metadata.edit(lambda view: set_targets(view, moves))


def replicas(server: Server, topic: str) -> tuple[int, ...]:
    return server.broker.metadata.view.placement(topic, 0).replicas


@on_loop
async def test_a_move_to_a_broker_that_is_down_holds_up_no_other(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PATIENT) as brokers:
        leader = await metadata_leader(brokers)
        talker = await Talker.in_memory(leader)
        for topic in ("a", "b"):
            await make_topic(talker, topic)
        talker.close()
        await move(leader, Move("a", 0, (1, 2)), Move("b", 0, (1, 2)))
        await until(lambda: replicas(leader, "a") == replicas(leader, "b") == (1, 2))
        await brokers.stop(3)
        leader = await metadata_leader(brokers)
        await until(lambda: not leader.broker.is_alive(3))

        await move(leader, Move("a", 0, (1, 3)), Move("b", 0, (2,)))
        await until(lambda: replicas(leader, "b") == (2,))
        await until(lambda: "node 3" in leader.broker.controller.trouble)
        assert replicas(leader, "a") == (1, 2)

        await brokers.start(3)
        await until(lambda: replicas(leader, "a") == (1, 3))


@on_loop
async def test_a_broker_that_registered_and_went_down_holds_up_no_move(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PATIENT) as brokers:
        leader = await metadata_leader(brokers)
        talker = await Talker.in_memory(leader)
        await make_topic(talker, "a")
        talker.close()
        gone = record_of(4)
        await leader.broker.metadata.edit(lambda _: Edit({gone.key: gone.to_json()}))
        await move(leader, Move("a", 0, (2, 3)))
        await until(lambda: replicas(leader, "a") == (2, 3))
