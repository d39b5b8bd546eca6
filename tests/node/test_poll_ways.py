"""A poll of one partition goes the straight way, without a task, wherever it can."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quivermq.batches import Frame, decode_messages, encode_batch
from quivermq.node.handlers import straight_poll
from quivermq.node.service import Cancellable
from quivermq.transports import Server
from quivermq.wire import proto
from tests.node.cluster_stage import Brokers, cluster
from tests.node.consumer_stage import GROUP, Consumer, led, move_leader, values
from tests.node.test_lost_time import REFUSALS, Clocks
from tests.transports.stage import PATIENT, on_loop, serving, until


class FullRoom:
    """A client that takes no answer of more than so many bytes."""

    def __init__(self, bytes_max: int = 0) -> None:
        self._bytes_max = bytes_max
        self.has_room = asyncio.Event()

    async def __call__(self, size: int, /) -> None:
        if size:
            await self.has_room.wait()

    def fits(self, size: int) -> bool:
        return size <= self._bytes_max

    def reserve(self, size: int) -> None:
        assert self.fits(size), "promised without room"


class Asked:
    """A request to a broker's service, and its answer."""

    def __init__(self, server: Server, poll: proto.Poll, *room: Any) -> None:
        self.response: proto.Response | None = None
        self.values: list[bytes] = []
        request = proto.Request(id=9, direct=True, poll=poll)
        self.work: Cancellable | None = server.broker.service.submit(
            request, [], self._reply, *room
        )

    def _reply(self, response: proto.Response, frames: Sequence[Frame]) -> None:
        assert self.response is None, "answered twice"
        self.response = response
        self.values = [message.value for frame in frames for message in decode_messages(frame)]

    @property
    def has_task(self) -> bool:
        return isinstance(self.work, asyncio.Task)


async def stocked(consumer: Consumer, *stored: bytes) -> None:
    """A topic whose group has begun, and messages that are in memory."""
    await consumer.make_topic()
    await consumer.poll()
    if stored:
        waiting = asyncio.create_task(consumer.poll(wait_ms=5_000))
        await until(lambda: len(_dispatcher(consumer.server).waiting) == 1)
        await consumer.store(*stored)
        await consumer.nack(await waiting, delay_ms=0)


def _dispatcher(server: Server) -> Any:
    return server.broker.consumers.dispatchers.leading("orders", b"", 0)


@on_loop
async def test_what_is_in_memory_is_answered_in_the_turn_of_its_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await stocked(consumer, b"a", b"b", b"c")
        asked = Asked(server, consumer.poll_request(1))
        assert (asked.work, asked.values) == (None, [b"a"])
        assert (await consumer.describe()).in_flight == 1
        await consumer.close()


@on_loop
async def test_a_poll_that_may_not_wait_is_told_at_once_that_there_is_nothing(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await stocked(consumer)
        asked = Asked(server, consumer.poll_request(1))
        assert asked.work is None
        assert asked.response is not None
        assert asked.response.WhichOneof("body") == "polled"
        await consumer.close()


@on_loop
async def test_a_poll_that_waits_has_no_task_and_takes_what_comes(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await stocked(consumer)
        asked = Asked(server, consumer.poll_request(1, wait_ms=30_000))
        assert not asked.has_task
        assert asked.response is None
        await consumer.store(b"a")
        await until(lambda: asked.response is not None)
        assert asked.values == [b"a"]
        assert len(_dispatcher(server).waiting) == 0
        await consumer.close()


@on_loop
async def test_a_poll_that_waits_in_vain_is_told_so_at_its_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await stocked(consumer)
        began = asyncio.get_running_loop().time()
        asked = Asked(server, consumer.poll_request(1, wait_ms=50))
        await until(lambda: asked.response is not None)
        assert asyncio.get_running_loop().time() - began >= 0.05
        assert asked.values == []
        assert len(_dispatcher(server).waiting) == 0
        await consumer.close()


@on_loop
async def test_what_has_to_be_read_from_the_log_is_leased_once_and_read_by_a_task(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await stocked(consumer)
        await consumer.store(b"a")
        server.broker.consumers.cache.drop(_dispatcher(server).hosted.id)
        asked = Asked(server, consumer.poll_request(1))
        assert asked.has_task
        assert (await consumer.describe()).in_flight == 1
        await until(lambda: asked.response is not None)
        assert asked.values == [b"a"]
        assert (await consumer.describe()).in_flight == 1
        await consumer.close()


@on_loop
async def test_nothing_is_leased_to_a_client_without_room_for_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer, room = Consumer(server), FullRoom()
        await stocked(consumer, b"a")
        asked = Asked(server, consumer.poll_request(1, wait_ms=5_000), room)
        await asyncio.sleep(0.02)
        assert asked.response is None
        assert (await consumer.describe()).in_flight == 0
        room.has_room.set()
        await until(lambda: asked.response is not None)
        assert asked.values == [b"a"]
        await consumer.close()


@on_loop
async def test_a_client_that_has_no_room_when_messages_come_waits_for_it_without_a_lease(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        consumer, room = Consumer(server), FullRoom(1 << 20)
        await stocked(consumer)
        asked = Asked(server, consumer.poll_request(1, wait_ms=30_000), room)
        room._bytes_max = 0
        await consumer.store(b"a")
        await until(lambda: len(_dispatcher(server).waiting) == 0)
        await asyncio.sleep(0.02)
        assert asked.response is None
        # Another takes it meanwhile.
        assert values(await Consumer(server, 2).poll()) == [b"a"]
        await consumer.store(b"b")
        room.has_room.set()
        await until(lambda: asked.response is not None)
        assert asked.values == [b"b"]
        await consumer.close()


@on_loop
async def test_a_poll_that_is_cancelled_takes_nothing_and_passes_its_turn_on(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await stocked(consumer)
        first = Asked(server, consumer.poll_request(1, wait_ms=30_000))
        second = Asked(server, consumer.poll_request(1, wait_ms=30_000, consumer=2))
        (parked, _) = _dispatcher(server).waiting._waiting[GROUP]
        produce = proto.Request(produce=proto.Produce(topic="orders", partition=0))
        server.broker.service.submit(produce, [encode_batch([b"a"])], lambda *_: None)
        # Woken, and cancelled before its turn came.
        assert parked._is_woken
        assert first.work is not None
        first.work.cancel()
        await until(lambda: second.response is not None)
        assert (first.response, second.values) == (None, [b"a"])
        await consumer.close()


@pytest.mark.parametrize(
    "changes",
    [{"auto_ack": True}, {"group": "none yet"}, {"partitions": [0, 1]}],
    ids=["at most once", "a group that begins", "several partitions"],
)
@on_loop
async def test_what_has_to_be_waited_for_goes_the_other_way(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(partitions=2)
        await consumer.poll()
        asked = Asked(server, consumer.poll_request(1, **changes))
        assert asked.has_task
        await until(lambda: asked.response is not None)
        await consumer.close()


@on_loop
async def test_a_topic_with_a_rate_limit_goes_the_other_way(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(rate_per_second=0.001, rate_burst=1)
        await consumer.poll()
        await consumer.store(b"a", b"b")
        assert values(await consumer.poll()) == [b"a"]
        asked = Asked(server, consumer.poll_request(1))
        assert asked.has_task
        await until(lambda: asked.response is not None)
        assert asked.values == []
        await consumer.close()


@on_loop
async def test_a_poll_that_waits_is_told_when_its_topic_is_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await stocked(consumer)
        asked = Asked(server, consumer.poll_request(1, wait_ms=30_000))
        await consumer.ask(delete_topic=proto.DeleteTopic(name="orders"))
        await until(lambda: asked.response is not None)
        assert asked.response is not None
        assert asked.response.error.code in {"TopicNotFound", "NotLeader"}
        await consumer.close()


@on_loop
async def test_a_lease_that_ends_sooner_than_others_rings_sooner(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await stocked(consumer, b"a", b"b")
        dispatcher = _dispatcher(server)
        for visibility_ms, within_s in ((30_000, 1.1), (100, 0.1)):
            await consumer.poll(1, visibility_ms=visibility_ms)
            await until(lambda: dispatcher._dispatch_handle is None)
            left_s = dispatcher._alarm.when() - asyncio.get_running_loop().time()
            assert left_s <= within_s
        await consumer.close()


@on_loop
async def test_nothing_leaves_whose_lease_was_lost_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    async with cluster(tmp_path, **PATIENT) as brokers:
        leader, consumer = await led_by_first(brokers)
        read_all = straight_poll.read_all

        def stand_still(*args: Any) -> None:
            read_all(*args)
            clocks.awake_or_not_s += 60.0
            leader.broker.scheduler.links = None

        monkeypatch.setattr(straight_poll, "read_all", stand_still)
        asked = Asked(leader, consumer.poll_request(1))
        await until(lambda: led(brokers).get(0) in {2, 3} or asked.response is not None)
        await until(lambda: asked.response is not None)
        leader.broker.scheduler.links = leader.broker.links
        assert asked.response is not None
        assert asked.response.error.code in REFUSALS
        assert asked.values == []
        await consumer.close()


@on_loop
async def test_a_leader_that_is_not_sure_asks_its_quorum_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks(monkeypatch)
    async with cluster(tmp_path, **PATIENT) as brokers:
        leader, consumer = await led_by_first(brokers)
        # It may still answer what it leased before, but lease nothing more.
        clocks.wall_s += _dispatcher(leader).hosted.election_s / 2
        assert _dispatcher(leader).is_confirmed
        asked = Asked(leader, consumer.poll_request(1))
        assert asked.has_task
        await until(lambda: asked.response is not None)
        assert asked.values == [b"a"]
        await consumer.close()


async def led_by_first(brokers: Brokers) -> tuple[Server, Consumer]:
    """Broker 1, which leads a partition and has a message in memory, and lately confirmed it."""
    consumer = Consumer(brokers.running[1])
    await consumer.make_topic()
    await until(lambda: led(brokers))
    await move_leader(brokers, 1)
    await consumer.poll()
    polling = asyncio.create_task(consumer.poll(wait_ms=5_000))
    await until(lambda: len(_dispatcher(consumer.server).waiting) == 1)
    await consumer.store(b"a")
    await consumer.nack(await polling, delay_ms=0)
    return consumer.server, consumer
