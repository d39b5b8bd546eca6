"""A broker with large states: nobody waits for what takes long."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from quivermq.node import hosted_replica as group_module
from quivermq.node.delivery import dispatcher
from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.node.handlers import groups, settle
from quivermq.queue import Interval, LeaseManager, PartitionSnapshot
from quivermq.transports import Server
from quivermq.wire import proto
from tests.node.consumer_stage import GROUP, Consumer, values
from tests.node.replica_stage import produced, stage
from tests.transports.stage import on_loop, serving, until


def dispatcher_of(server: Server) -> DeliveryDispatcher:
    return server.broker.consumers.dispatchers.leading("orders", b"", 0)


@on_loop
async def test_a_large_state_is_packed_aside_while_the_disk_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_module, "_PACKED_IN_TURN_BYTES_MAX", -1)
    packing, threads = asyncio.Event(), []
    loop = asyncio.get_running_loop()
    pack = PartitionSnapshot.pack

    def slowly(self: PartitionSnapshot) -> bytes:
        threads.append(asyncio.run_coroutine_threadsafe(packing.wait(), loop).result(10))
        return pack(self)

    async with stage() as it:
        group = await it.serving_group()
        monkeypatch.setattr(PartitionSnapshot, "pack", slowly)
        before = group.log.checkpoints()
        for _ in range(60):
            await produced(group, 1_000)
        assert group.log.checkpoints() == before
        assert len(group.log.segment_starts) > 2
        packing.set()
        await until(lambda: group.log.checkpoints() != before)
        assert len(threads) >= 1
        assert not group.trouble


@on_loop
async def test_a_state_too_large_for_a_checkpoint_is_told_and_the_partition_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_module, "_PACKED_IN_TURN_BYTES_MAX", -1)
    async with stage() as it:
        group = await it.serving_group()
        it.scheduler.log_settings = replace(it.scheduler.log_settings, checkpoint_bytes_max=10)
        before = group.log.checkpoints()
        with caplog.at_level(logging.ERROR, "quivermq.replica"):
            for _ in range(60):
                await produced(group, 1_000)
            await until(lambda: "checkpoint_bytes_max" in caplog.text)
        assert group.log.checkpoints() == before
        assert not group.trouble
        await produced(group)


@on_loop
async def test_many_intervals_are_settled_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "_PORTION", 3)
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(*(b"%d" % number for number in range(40)))
        got = await consumer.poll(40)
        said = 0
        with_leases = dispatcher_of(server).hosted.with_leases

        def counted(*args, **rest):  # type: ignore[no-untyped-def]
            nonlocal said
            said += 1
            return with_leases(*args, **rest)

        monkeypatch.setattr(dispatcher_of(server).hosted, "with_leases", counted)
        assert await consumer.ack(got[::2]) == []
        assert said >= 20 // 3
        # A repeat, and what was never leased to it, are told apart, in all portions.
        lost = await consumer.ack(got[::2])
        assert lost == []
        counters = await consumer.describe()
        assert (counters.done, counters.in_flight) == (20, 20)
        await consumer.close()


@on_loop
async def test_all_that_is_left_of_a_lease_is_settled_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "_PORTION", 3)
    most = 0
    acknowledge = LeaseManager.acknowledge

    def counted(
        leases: LeaseManager, group: str, lease: int, parts: list[Interval] | None, by: int
    ):  # type: ignore[no-untyped-def]
        nonlocal most
        held = leases.working_copy.groups.by_name[group].leases.get(lease)
        named = parts if parts is not None else held.pieces if held is not None else []
        most = max(most, len(named))
        return acknowledge(leases, group, lease, parts, by)

    monkeypatch.setattr(LeaseManager, "acknowledge", counted)
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(*(b"%d" % number for number in range(40)))
        got = await consumer.poll(40)
        assert await consumer.ack(got[::2]) == []
        rest = proto.Settlement(partition=0, lease=got[0].lease, outcome=proto.ACK)
        body = proto.Settle(
            topic=consumer.topic, group=GROUP, consumer=consumer.number, settlements=[rest]
        )
        for _ in range(2):
            assert not (await consumer.ask(settle=body)).settled.lost
            counters = await consumer.describe()
            assert (counters.done, counters.in_flight) == (40, 0)
        assert most == 3
        await consumer.close()


@on_loop
async def test_many_groups_are_shown_and_woken_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_GROUPS_AT_ONCE", 2)
    async with serving(tmp_path) as server:
        consumers = [Consumer(server, number + 1) for number in range(7)]
        await consumers[0].make_topic()

        async def poll(number: int) -> list[bytes]:
            got = await consumers[number].poll(group=f"{GROUP}-{number}", wait_ms=30_000)
            return values(got)

        polls = [asyncio.create_task(poll(number)) for number in range(7)]
        await until(lambda: len(dispatcher_of(server).waiting) == 7)
        body = proto.DescribeGroups(topic="orders")
        shown = (await consumers[0].ask(describe_groups=body)).groups_described.groups
        assert sorted(one.group for one in shown) == [f"{GROUP}-{n}" for n in range(7)]
        await consumers[0].store(b"for all")
        assert await asyncio.gather(*polls) == [[b"for all"]] * 7
        for consumer in consumers:
            await consumer.close()


@on_loop
async def test_delayed_messages_are_cancelled_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_INTERVALS_AT_ONCE", 2)
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        later_ms = dispatcher_of(server).now_ms() + 3_600_000
        await consumer.store(*(b"%d" % number for number in range(10)), not_before_ms=later_ms)
        parts = [proto.Interval(start=at, end=at + 1) for at in range(0, 10, 2)]
        cancelling = proto.CancelDelayed(topic="orders", intervals=parts)
        assert (await consumer.ask(cancel_delayed=cancelling)).delayed_cancelled.cancelled == 5
        listed = (await consumer.ask(list_delayed=proto.ListDelayed(topic="orders"))).delayed_listed
        assert listed.total == 5
        await consumer.close()
