"""Operating a cluster by requests: what must not be done on anybody's word."""

from pathlib import Path

import pytest

from quivermq.node.hosted_replica import HostedReplica
from quivermq.transports import Server
from quivermq.wire import proto
from tests.transports.stage import Talker, make_topic, on_loop, serving, store


def orders(server: Server) -> HostedReplica:
    broker = server.broker
    return broker.scheduler.replicas[broker.partitions.partition_id("orders", b"", 0)]


@pytest.mark.parametrize("members", [[], [2], [1, 2], [2**48 - 1], [0], [2**63]])
@on_loop
async def test_a_partition_gets_no_members_that_the_catalog_does_not_want(
    tmp_path: Path, members: list[int]
) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.by_socket(server)
        await make_topic(talker)
        body = proto.Reconfigure(topic="orders", partition=0, members=members)
        answer = await talker.ask(proto.Request(id=7, reconfigure=body, direct=True))
        assert answer.error.code == "InvalidRequest"
        assert orders(server).replica.configuration.members == (1,)
        await store(talker, b"x")
        talker.close()


ABSURD = [
    proto.Request(produce=proto.Produce(topic="orders", partition=2**32 - 1)),
    proto.Request(produce=proto.Produce(topic="", partition=0)),
    proto.Request(produce=proto.Produce(topic="../orders", partition=0)),
    proto.Request(produce=proto.Produce(topic="orders", topic_id=b"\xff" * 100)),
    proto.Request(fetch=proto.Fetch(topic="orders", partition=2**32 - 1)),
    proto.Request(fetch=proto.Fetch(topic="orders", offset=2**64 - 1)),
    proto.Request(fetch=proto.Fetch(topic="_quiver")),
    proto.Request(commit_offset=proto.CommitOffset(topic="orders", group="a/b", offset=1)),
    proto.Request(commit_offset=proto.CommitOffset(topic="orders", group="", offset=1)),
    proto.Request(commit_offset=proto.CommitOffset(topic="orders", group="g", offset=2**63)),
    proto.Request(create_topic=proto.CreateTopic(name="..")),
    proto.Request(create_topic=proto.CreateTopic(name="a/b")),
    proto.Request(create_topic=proto.CreateTopic(name="_quiver")),
    proto.Request(create_topic=proto.CreateTopic(name="x", partitions=2**32 - 1)),
    proto.Request(create_topic=proto.CreateTopic(name="x", replication=2**32 - 1)),
    proto.Request(delete_topic=proto.DeleteTopic(name="_quiver")),
    proto.Request(transfer=proto.Transfer(topic="orders", partition=0, to=2**32 - 1)),
    proto.Request(transfer=proto.Transfer(topic="orders", partition=2**32 - 1, to=1)),
    proto.Request(remove_broker=proto.RemoveBroker(id=2**32 - 1)),
    proto.Request(remove_broker=proto.RemoveBroker(id=1)),
    proto.Request(replace_broker=proto.ReplaceBroker(id=1)),
    proto.Request(replace_broker=proto.ReplaceBroker(id=77)),
    proto.Request(register_broker=proto.RegisterBroker(id=2**32 - 1, joining=True)),
    proto.Request(register_broker=proto.RegisterBroker(id=9, address="x" * 5_000, joining=True)),
    proto.Request(describe_topics=proto.DescribeTopics(topics=["nothing"])),
]


@pytest.mark.parametrize("request_", ABSURD, ids=lambda r: r.WhichOneof("body"))
@on_loop
async def test_the_absurd_is_refused_and_changes_nothing(
    tmp_path: Path, request_: proto.Request
) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.by_socket(server)
        await make_topic(talker)
        view = server.broker.metadata.view
        asked = proto.Request(id=7, timeout_ms=2**32 - 1)
        asked.MergeFrom(request_)
        answer = await talker.ask(asked)
        assert answer.WhichOneof("body") == "error", answer
        assert "broker failed" not in answer.error.message
        assert server.broker.metadata.view is view
        assert sorted(p.name for p in (tmp_path / "log").iterdir()) == ["_quiver", "orders"]
        await store(talker, b"x")
        talker.close()
