"""The controller: moves replicas and leaders, and goes on while a broker is down."""

import asyncio
from pathlib import Path

import pytest

from quivermq.cluster import Edit, Move, delete_topic, set_broker_state, set_targets
from quivermq.errors import NotEnoughReplicas, Timeout
from quivermq.node.controller import Troubles
from quivermq.transports import Server
from quivermq.wire import proto
from tests.cluster.catalogs import broker as record_of
from tests.cluster.catalogs import only_copy
from tests.node.cluster_stage import Brokers, cluster
from tests.transports.stage import PATIENT, Talker, make_topic, on_loop, serving, until


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
        # What is over is not told any more.
        await until(lambda: leader.broker.controller.trouble == "")


def test_troubles_that_take_turns_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    troubles = Troubles()
    for second in range(10):
        for topic in ("a", "b"):
            error = NotEnoughReplicas(f"{topic}/0 waits for node 3, which is down")
            # A broker that has just come may be heard a moment later.
            assert bool(troubles.report(error, second)) == (second >= 2)
        assert not troubles.end_pass()
    assert caplog.messages == [f"{topic}/0 waits for node 3, which is down" for topic in "ab"]
    assert len(troubles.end_pass()) == 2
    assert troubles.report(NotEnoughReplicas("a/0 waits for node 3, which is down"), 11) == ""
    assert troubles.report(Timeout("a/0 did not get its members"), 11)


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


@on_loop
async def test_a_broker_that_leaves_stays_in_the_catalog_for_as_long_as_it_votes(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, **PATIENT) as brokers:
        leader = await metadata_leader(brokers)
        metadata = leader.broker.metadata
        leaving = next(node for node in brokers.running if brokers.running[node] is not leader)
        member = metadata.view.broker(leaving).member

        def is_voter() -> bool:
            return member in metadata.leading_replica().replica.configuration.all_voters

        # One that is to vote in its place is down: the members of the metadata cannot change.
        gone = record_of(4)
        await metadata.edit(
            lambda view: (
                Edit({gone.key: gone.to_json()}) | set_broker_state(view, leaving, "leaving")
            )
        )
        await until(lambda: "node 4" in leader.broker.controller.trouble)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await until(lambda: leaving not in metadata.view.brokers)
        assert is_voter()
        await metadata.edit(lambda _: Edit(delete=[gone.key]))
        await until(lambda: leaving not in metadata.view.brokers)
        assert not is_voter()


@on_loop
async def test_a_broker_that_leaves_stays_for_as_long_as_it_holds_replicas(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        metadata, controller = server.broker.metadata, server.broker.controller
        await metadata.edit(lambda _: only_copy(record_of(4, state="leaving")))
        await controller._let_go(4)
        assert 4 in metadata.view.brokers
        await metadata.edit(lambda view: delete_topic(view, "orders"))
        await until(lambda: 4 not in metadata.view.brokers)


@on_loop
async def test_members_change_by_the_latest_catalog_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker, "a")
        metadata = server.broker.metadata
        view = metadata.view
        # An earlier plan, which was given up, and which this broker still believes in.
        edit = set_targets(view, [Move("a", 0, (1, 4))])
        assert edit is not None
        metadata.view = view.updated(view.version - 1, {**view.values, **edit.put})
        body = proto.Reconfigure(topic="a", partition=0, members=[1, 4])
        answer = await talker.ask(proto.Request(id=5, reconfigure=body, timeout_ms=1_000))
        assert "is to have members [1], says the catalog" in answer.error.message
        assert metadata.view.version == view.version
        talker.close()
