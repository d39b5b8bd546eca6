"""What brokers tell of topics and of their cluster: only what they know."""

from pathlib import Path

import pytest

import quivermq.aio
from quivermq.client.models import TopicInfo
from quivermq.errors import QuiverError
from quivermq.transports.http.models import TopicAnswer
from quivermq.wire import proto
from tests.node.cluster_stage import Brokers, cluster
from tests.transports.stage import on_loop, until


async def described(brokers: Brokers, node: int) -> TopicInfo:
    request = proto.Request(describe_topics=proto.DescribeTopics(topics=["orders"]))
    answer, _ = await brokers.running[node].broker.service.call(request, [])
    return TopicInfo.of(answer.topics_described.topics[0])


@on_loop
async def test_what_a_leader_that_is_away_knows_is_not_told(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        async with quivermq.aio.connect(brokers.running[1].listen) as client:
            info = await client.create_topic("orders", partitions=3, replication=1)
            for number in range(3):
                await client.produce("orders", b"v", partition=number)
            assert (await client.topic("orders")).message_count == 3
        away = next(part.leader for part in info.partitions if part.leader != 1)
        await brokers.stop(away)
        info = await described(brokers, 1)
        for part in info.partitions:
            if part.replicas == (away,):
                known = {part.start_offset, part.end_offset, part.size_bytes, part.commit_index}
                assert known == {None}
                assert part.trouble
            else:
                assert (part.start_offset, part.end_offset, part.trouble) == (0, 1, "")
        assert info.message_count is None
        answer = TopicAnswer.model_validate(info).model_dump(mode="json")
        ends = {part["end_offset"] for part in answer["partitions"]}
        assert ends == {"1", None}


@on_loop
async def test_a_follower_does_not_speak_for_a_leader_that_is_not_there(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        async with quivermq.aio.connect(brokers.running[1].listen) as client:
            await client.create_topic("orders", replication=3)
            await client.produce("orders", b"v")
        # Without a majority nobody leads, and what the last one has need not be all.
        await brokers.stop(2, 3)
        group = next(
            group
            for group in brokers.running[1].broker.scheduler.replicas.values()
            if group.name.topic == "orders"
        )
        await until(lambda: not group.was_serving)
        (part,) = (await described(brokers, 1)).partitions
        assert (part.end_offset, part.in_sync) == (None, None)
        assert part.trouble


@on_loop
async def test_a_broker_outside_of_a_cluster_is_not_believed(tmp_path: Path) -> None:
    outsider = Brokers(tmp_path / "outside", 3)
    async with cluster(tmp_path / "inside", 1) as inside:
        try:
            await outsider.start(1)  # the others of its cluster never come
            first, second = outsider.running[1].listen, inside.running[1].listen
            async with quivermq.aio.connect(f"{first},{second}") as client:
                router = client._core.router
                # As after a connection to the member that was lost a moment ago.
                router.map.avoid(second, router.transport.now())
                assert (await client.cluster()).is_told_by_member
                await client.create_topic("orders")
                assert [topic.name for topic in await client.topics()] == ["orders"]
            async with quivermq.aio.connect(first, timeout=1.0) as alone:
                assert not (await alone.cluster()).is_told_by_member
                with pytest.raises(QuiverError):
                    await alone.cluster(latest=True)
                with pytest.raises(QuiverError):
                    await alone.topics()
                with pytest.raises(QuiverError) as refused:
                    await alone.topic("orders")
                assert refused.value.code != "TopicNotFound"
        finally:
            await outsider.stop(*outsider.running)


@on_loop
async def test_a_broker_without_a_majority_does_not_say_who_is_in_the_cluster_now(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as brokers:
        first = brokers.running[1].listen
        async with quivermq.aio.connect(first) as client:
            assert [node.id for node in (await client.cluster(latest=True)).nodes] == [1, 2, 3]
        await brokers.stop(2, 3)
        # The others may have let brokers in and out since.
        async with quivermq.aio.connect(first, timeout=1.0) as client:
            assert (await client.cluster()).is_told_by_member
            with pytest.raises(QuiverError):
                await client.cluster(latest=True)
