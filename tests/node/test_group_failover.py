"""Shared groups in a cluster: whoever leads goes on where the other stopped."""

import asyncio
from pathlib import Path

from quivermq.errors import NotLeader
from quivermq.node.clock import LONG_AGO
from quivermq.wire import proto
from tests.node.cluster_stage import cluster
from tests.node.consumer_stage import (
    GROUP,
    Consumer,
    dispatcher_of,
    led,
    move_leader,
    refusal,
    values,
)
from tests.transports.stage import PATIENT, on_loop, until


@on_loop
async def test_leases_acks_and_delays_go_on_under_the_next_leader(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PATIENT) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic()
        await until(lambda: led(brokers))
        await move_leader(brokers, 1)
        await consumer.store(b"acked", b"held", b"back", b"fresh")
        acked, held, back = await consumer.poll(3)
        await consumer.ack([acked])
        await consumer.nack([back], delay_ms=2_500)
        await move_leader(brokers, 2)
        other = Consumer(brokers.running[2], 2)
        assert values(await other.poll()) == [b"fresh"]
        assert await other.ack([held]) == [held], "it is another's"
        assert await consumer.ack([held]) == []
        (again,) = await other.poll(wait_ms=10_000)
        assert (again.value, again.delivery) == (b"back", 2)
        counters = await other.describe()
        assert (counters.done, counters.in_flight) == (2, 2)
        await consumer.close()
        await other.close()


@on_loop
async def test_a_lease_expires_under_the_next_leader_without_a_poll(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PATIENT) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic()
        await until(lambda: led(brokers))
        await move_leader(brokers, 1)
        await consumer.store(b"a")
        held = await consumer.poll(visibility_ms=1_500)
        # A grant is not waited for, and may be lost with its leader; what is settled is not.
        await consumer.settle(proto.EXTEND, held, visibility_ms=1_500)
        await move_leader(brokers, 3)
        standing = dispatcher_of(brokers, 3).group_progress
        await until(lambda: standing()[0].in_flight == 1)
        await until(lambda: standing()[0].in_flight == 0)
        await consumer.close()


@on_loop
async def test_a_poll_that_waits_at_a_leader_that_goes_is_sent_to_the_next(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PATIENT) as brokers:
        consumer, other = Consumer(brokers.running[1]), Consumer(brokers.running[1], 2)
        await consumer.make_topic()
        await until(lambda: led(brokers))
        await move_leader(brokers, 1)
        direct = proto.Request(direct=True, poll=consumer.poll_request(wait_ms=30_000))
        service = brokers.running[1].broker.service
        refused = asyncio.create_task(refusal(service.call(direct, [])))
        passed_on = asyncio.create_task(consumer.poll(wait_ms=30_000))
        await until(lambda: len(dispatcher_of(brokers, 1).waiting) == 2)
        await move_leader(brokers, 2)
        assert await refused == "NotLeader"
        await other.store(b"a")
        assert values(await passed_on) == [b"a"]
        await consumer.close()
        await other.close()


@on_loop
async def test_a_poll_serves_the_partitions_that_are_still_here(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PATIENT) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic(partitions=2)
        await until(lambda: len(led(brokers)) == 2)
        await move_leader(brokers, 1, 0)
        await move_leader(brokers, 2, 1)
        await consumer.store(b"here", partition=0)
        await consumer.store(b"there", partition=1)
        service = brokers.running[1].broker.service

        async def poll(*partitions: int) -> proto.Polled:
            body = consumer.poll_request(partitions=partitions)
            answer, _ = await service.call(proto.Request(direct=True, poll=body), [])
            return answer.polled

        assert [leased.partition for leased in (await poll(1, 0)).leased] == [0]
        try:
            await poll(1)
        except NotLeader as error:
            assert error.leader == 2
        else:
            raise AssertionError("it does not lead any of them")
        await consumer.close()


@on_loop
async def test_a_leader_that_was_replaced_unnoticed_leases_nothing(tmp_path: Path) -> None:  # F5
    async with cluster(tmp_path, **PATIENT) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic()
        await until(lambda: led(brokers))
        await move_leader(brokers, 1)
        await consumer.store(b"a", b"b")
        assert values(await consumer.poll(1)) == [b"a"]
        # Cut off from the others, it believes that it leads; for a while it says so, too.
        old = brokers.running[1].broker
        old.scheduler.links = None
        dispatcher_of(brokers, 1)._confirmed = LONG_AGO
        body = consumer.poll_request(wait_ms=0)
        request = proto.Request(direct=True, poll=body)
        polling = asyncio.create_task(old.service.call(request, []))
        await until(lambda: led(brokers).get(0) in {2, 3} or polling.done())
        assert await refusal(polling) in {"NotLeader", "Timeout", "NotEnoughReplicas"}
        old.scheduler.links = old.links
        await consumer.close()


@on_loop
async def test_settling_needs_all_its_partitions_here(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PATIENT) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic(partitions=2)
        await until(lambda: len(led(brokers)) == 2)
        for partition in range(2):
            await move_leader(brokers, 1, partition)
            await consumer.store(b"%d" % partition, partition=partition)
        got = await consumer.poll(partitions=[0, 1])
        await move_leader(brokers, 2, 1)
        settlements = [proto.Settlement(partition=one.partition, lease=one.lease) for one in got]
        body = proto.Settle(topic="orders", group=GROUP, settlements=settlements)
        service = brokers.running[1].broker.service
        assert await refusal(service.call(proto.Request(direct=True, settle=body), [])) == (
            "NotLeader"
        )
        # Refused as a whole: nothing of it happened.
        assert (await consumer.describe()).done == 0
        await consumer.close()
