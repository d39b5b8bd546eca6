"""What is not committed yet is neither answered for nor shown."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from quivermq.batches import decode_messages, encode_batch
from quivermq.transports import Server
from quivermq.wire import proto
from tests.node.cluster_stage import cluster
from tests.node.consumer_stage import GROUP, TOPIC, Consumer, dispatcher_of, led, move_leader
from tests.node.replica_stage import stuck
from tests.transports.stage import PATIENT, on_loop, serving, until


async def answered_once_committed(server: Server, asking: Coroutine[Any, Any, Any]) -> None:
    """Not while the disk, which has to hold it first, is stuck."""
    broker = server.broker
    hosted = broker.consumers.dispatchers.leading(TOPIC, b"", 0).hosted
    await until(lambda: not (hosted.is_writing or hosted.is_scheduled))
    with stuck(broker.disk_thread):
        answer = asyncio.create_task(asking)
        await until(lambda: hosted.is_writing or answer.done())
        await asyncio.sleep(0.02)
        was_answered = answer.done()
    await answer
    assert not was_answered


@on_loop
async def test_a_settlement_is_answered_once_it_is_committed(tmp_path: Path) -> None:
    async with serving(tmp_path, fsync="always") as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a")
        got = await consumer.poll()
        await answered_once_committed(server, consumer.ack(got))
        assert (await consumer.describe()).floor == 1
        await consumer.close()


@on_loop
async def test_what_is_done_when_it_comes_comes_once_that_is_committed(tmp_path: Path) -> None:
    async with serving(tmp_path, fsync="always") as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.poll()
        await consumer.store(b"a")
        await answered_once_committed(server, consumer.poll(auto_ack=True))
        assert (await consumer.describe()).floor == 1
        await consumer.close()


@on_loop
async def test_a_seek_is_answered_once_it_is_committed(tmp_path: Path) -> None:
    async with serving(tmp_path, fsync="always") as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a")
        await consumer.ack(await consumer.poll())
        body = proto.SeekGroup(topic=TOPIC, group=GROUP, earliest=True)
        await answered_once_committed(server, consumer.ask(seek_group=body))
        assert (await consumer.describe()).floor == 0
        await consumer.close()


@on_loop
async def test_a_claim_is_answered_once_it_is_committed(tmp_path: Path) -> None:
    async with serving(tmp_path, fsync="always") as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        beat = proto.StickyBeat(topic=TOPIC, group="sticky", member=1)
        (assigned,) = (await consumer.ask(sticky_beat=beat)).sticky_state.assigned
        body = proto.Claim(topic=TOPIC, group="sticky", epoch=assigned.epoch)
        await answered_once_committed(server, consumer.ask(claim=body))
        await consumer.close()


@on_loop
async def test_a_fetch_shows_only_what_is_committed(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PATIENT) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic()
        await until(lambda: led(brokers))
        await move_leader(brokers, 1)
        await consumer.store(b"committed")
        broker, log = brokers.running[1].broker, dispatcher_of(brokers, 1).hosted.log
        # Cut off from the others, it writes to its own log, and can commit nothing.
        broker.scheduler.links = None
        before = log.edge.next_offset
        body = proto.Produce(topic=TOPIC)
        request = proto.Request(direct=True, produce=body)
        storing = asyncio.create_task(broker.service.call(request, [encode_batch([b"not yet"])]))
        await until(lambda: log.edge.next_offset > before)
        fetch = proto.Fetch(topic=TOPIC, follower_ok=True)
        _, frames = await broker.service.call(proto.Request(fetch=fetch), [])
        shown = [message.value for frame in frames for message in decode_messages(frame)]
        assert shown == [b"committed"]
        broker.scheduler.links = broker.links
        await asyncio.gather(storing, return_exceptions=True)
        await consumer.close()
