"""What partitions hold: told at once, or when there is more; who waits wakes nobody."""

import asyncio
from pathlib import Path

from quivermq.node.hosted_replica import HostedReplica
from quivermq.transports import Server
from quivermq.wire import proto
from tests.transports.stage import Talker, make_topic, on_loop, serving, store, until


def orders(server: Server) -> HostedReplica:
    broker = server.broker
    return broker.scheduler.replicas[broker.partitions.partition_id("orders", b"", 0)]


def asked(number: int, offset: int = 0, wait_ms: int = 0, topic_id: bytes = b"") -> proto.Request:
    body = proto.ListOffsets(topic="orders", topic_id=topic_id, wait_ms=wait_ms)
    body.positions.add(partition=0, offset=offset)
    return proto.Request(id=number, list_offsets=body)


def held(answer: proto.Response) -> list[tuple[int, int, int]]:
    assert answer.WhichOneof("body") == "offsets_listed", answer
    return [(each.partition, each.start, each.end) for each in answer.offsets_listed.partitions]


@on_loop
async def test_a_call_without_a_wait_gets_all_positions(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.by_socket(server)
        await make_topic(talker)
        assert held(await talker.ask(asked(10, offset=5))) == [(0, 0, 0)]
        await store(talker, b"a", b"b")
        assert held(await talker.ask(asked(11, offset=2))) == [(0, 0, 2)]
        gone = await talker.ask(asked(12, topic_id=b"x" * 12))
        assert gone.error.code == "TopicNotFound"
        talker.close()


@on_loop
async def test_a_waiting_read_lets_a_replica_sleep_and_is_woken_by_messages(tmp_path: Path) -> None:
    async with serving(tmp_path, tick_ms=10) as server:
        talker, waiting = await Talker.by_socket(server), await Talker.by_socket(server)
        await make_topic(talker)
        await store(talker, b"a")
        # What is there already is told at once.
        assert held(await talker.ask(asked(10, wait_ms=60_000))) == [(0, 0, 1)]
        await until(lambda: orders(server).replica.is_asleep)
        for number in range(20, 24):
            assert held(await waiting.ask(asked(number, offset=1, wait_ms=20))) == []
            assert orders(server).replica.is_asleep
        waiting.say(asked(30, offset=1, wait_ms=60_000))
        await until(lambda: orders(server)._readers)
        assert orders(server).replica.is_asleep
        await store(talker, b"b")
        assert held(await waiting.hear(30)) == [(0, 0, 2)]
        assert not orders(server)._readers
        talker.close()
        waiting.close()


@on_loop
async def test_a_waiting_read_hears_when_the_topic_is_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker, waiting = await Talker.by_socket(server), await Talker.by_socket(server)
        await make_topic(talker)
        waiting.say(asked(30, wait_ms=60_000))
        await until(lambda: orders(server)._readers)
        await talker.ask(proto.Request(id=31, delete_topic=proto.DeleteTopic(name="orders")))
        assert (await waiting.hear(30)).error.code == "TopicNotFound"
        await asyncio.sleep(0)
        talker.close()
        waiting.close()
