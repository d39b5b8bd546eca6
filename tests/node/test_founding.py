"""A cluster that is just being founded."""

from pathlib import Path

from quivermq.wire import proto
from tests.node.cluster_stage import Brokers
from tests.transports.stage import Talker, on_loop


@on_loop
async def test_a_topic_made_at_once_has_all_founders_as_replicas(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, 3)
    try:
        await brokers.start(1, 2, 3)
        talker = await Talker.by_socket(brokers.running[1])
        answer = await talker.ask(
            proto.Request(id=5, create_topic=proto.CreateTopic(name="orders"))
        )
        assert answer.WhichOneof("body") == "done", answer
        answer = await talker.ask(proto.Request(id=6, map=proto.MapQuery(topics=["orders"])))
        assert sorted(answer.map.topics[0].partitions[0].replicas) == [1, 2, 3]
        talker.close()
    finally:
        await brokers.stop(*brokers.running)


@on_loop
async def test_a_founder_that_stays_away_is_not_waited_for(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, 3)
    try:
        await brokers.start(1, 2)
        await brokers.until_ready(1, 2)
        talker = await Talker.by_socket(brokers.running[1])
        answer = await talker.ask(
            proto.Request(id=5, create_topic=proto.CreateTopic(name="orders"))
        )
        assert answer.WhichOneof("body") == "done", answer
        answer = await talker.ask(proto.Request(id=6, map=proto.MapQuery(topics=["orders"])))
        assert sorted(answer.map.topics[0].partitions[0].replicas) == [1, 2]
        talker.close()
    finally:
        await brokers.stop(*brokers.running)
