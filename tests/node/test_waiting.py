"""Long polls: woken by what they wait for, in turn, and costing nothing until then."""

import asyncio
from pathlib import Path

import pytest

from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.queue import lease_manager
from quivermq.transports import Server
from quivermq.wire import proto
from tests.node.consumer_stage import GROUP, Consumer, Delivery, refusal, values
from tests.transports.stage import on_loop, serving, until

pytestmark = pytest.mark.usefixtures("both_ways")


def dispatcher_of(server: Server, partition: int = 0) -> DeliveryDispatcher:
    return server.broker.consumers.dispatchers.leading("orders", b"", partition)


async def parked(server: Server, count: int, partition: int = 0) -> None:
    await until(lambda: len(dispatcher_of(server, partition).waiting) == count)


@on_loop
async def test_a_waiting_poll_is_woken_by_what_is_stored(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        waiting, other = Consumer(server, 1), Consumer(server, 2)
        await other.make_topic()
        polling = asyncio.create_task(waiting.poll(wait_ms=30_000))
        await parked(server, 1)
        counters = await other.describe()
        assert [(c.name, c.in_flight) for c in counters.consumers] == [("consumer 1", 0)]
        await other.store(b"a")
        assert values(await polling) == [b"a"]
        await waiting.close()
        await other.close()


@on_loop
async def test_what_is_cached_for_waiting_polls_stands_at_its_own_offset(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        waiting, other = Consumer(server, 1), Consumer(server, 2)
        await other.make_topic()
        await other.store(b"a")
        # Nobody has read it, so that it is not cached.
        await other.ask(seek_group=proto.SeekGroup(topic="orders", group=GROUP, latest=True))
        polling = asyncio.create_task(waiting.poll(wait_ms=30_000))
        await parked(server, 1)
        await other.store(b"b")
        assert values(await polling) == [b"b"]
        assert values(await other.poll(group="others")) == [b"a", b"b"]
        await waiting.close()
        await other.close()


@on_loop
async def test_a_waiting_poll_is_woken_by_what_comes_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        waiting, other = Consumer(server, 1), Consumer(server, 2)
        await other.make_topic(retry_base_ms=10)
        await other.store(b"a")

        async def next_of(cause: str) -> Delivery:
            (got,) = await other.poll(visibility_ms=60 if cause == "expiry" else 30_000)
            polling = asyncio.create_task(waiting.poll(wait_ms=30_000))
            # On a slow machine the lease may run out before somebody waits for it.
            await until(lambda: len(dispatcher_of(server).waiting) or polling.done())
            if cause == "nack":
                await other.nack([got], delay_ms=0)
            elif cause == "delayed nack":
                await other.nack([got], delay_ms=50)
            elif cause == "release":
                await other.settle(proto.RELEASE, [got])
            elif cause == "seek":
                body = proto.SeekGroup(topic="orders", group=GROUP, earliest=True)
                await other.ask(seek_group=body)
            (again,) = await polling
            await waiting.settle(proto.RELEASE, [again])
            return again

        deliveries = [
            (await next_of(cause)).delivery
            for cause in ("release", "nack", "delayed nack", "expiry", "seek")
        ]
        assert deliveries == [1, 2, 3, 4, 1]
        await waiting.close()
        await other.close()


@on_loop
async def test_nothing_is_written_for_waiting_polls(tmp_path: Path) -> None:
    async with serving(tmp_path, tick_ms=10) as server:
        waiting = Consumer(server)
        await waiting.make_topic()
        assert await waiting.poll() == []
        group = dispatcher_of(server).hosted
        before = group.log.edge.next_index
        polling = asyncio.create_task(waiting.poll(wait_ms=60_000))
        await parked(server, 1)
        # The partition falls asleep while somebody waits for it.
        await until(lambda: group.replica.is_asleep)
        assert group.log.edge.next_index == before
        polling.cancel()
        await waiting.close()
        await parked(server, 0)


@on_loop
async def test_a_poll_that_waits_in_vain_ends_empty_at_its_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(partitions=3)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await consumer.poll(partitions=[0, 1, 2], wait_ms=120) == []
        assert 0.1 <= loop.time() - began < 5
        assert all(
            not len(dispatcher.waiting) for dispatcher in server.broker.consumers.dispatchers
        )
        await consumer.close()


@on_loop
async def test_one_message_wakes_one_of_many_and_they_are_served_in_turn(tmp_path: Path) -> None:
    async with serving(tmp_path, requests_max=2_000) as server:
        first = Consumer(server)
        await first.make_topic()
        await first.poll()
        dispatcher = dispatcher_of(server)
        served: list[int] = []
        many = 1_000

        async def poll(number: int) -> None:
            consumer = Consumer(server, number)
            consumer._door = first._door
            got = await consumer.poll(1, wait_ms=60_000)
            assert len(got) == 1
            served.append(number)

        polls = []
        for number in range(many):
            polls.append(asyncio.create_task(poll(number)))
            if number % 100 == 99:
                await parked(server, number + 1)
        woken = 0
        wake = dispatcher.waiting.wake

        def counted(group: str, ready: int) -> int:
            nonlocal woken
            found = wake(group, ready)
            woken += found
            return found

        dispatcher.waiting.wake = counted  # type: ignore[method-assign]
        await first.store(b"a")
        await until(lambda: served)
        assert (served, woken) == ([0], 1)
        await first.store(b"b", b"c", b"d")
        await until(lambda: len(served) == 4)
        assert (sorted(served), woken) == ([0, 1, 2, 3], 4)
        await first.store(*[b"x"] * (many - 4))
        await asyncio.gather(*polls)
        # All of them once, and hardly anybody twice.
        assert woken < 1.2 * many
        await first.close()


@on_loop
async def test_ten_thousand_polls_wait_at_one_partition(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.poll()
        served = 0

        async def poll(number: int) -> None:
            nonlocal served
            request = proto.Request(poll=Consumer(server, number).poll_request(1, wait_ms=60_000))
            response, _ = await server.broker.service.call(request, [])
            served += len(response.polled.leased)

        polls = [asyncio.create_task(poll(number)) for number in range(10_000)]
        await parked(server, 10_000)
        await consumer.store(*[b"x"] * 50)
        await until(lambda: served == 50)
        assert len(dispatcher_of(server).waiting) == 9_950
        for task in polls:
            task.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        assert len(dispatcher_of(server).waiting) == 0
        await consumer.close()


@on_loop
async def test_a_woken_poll_that_goes_away_passes_its_turn_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        gone, there, other = Consumer(server, 1), Consumer(server, 2), Consumer(server, 3)
        await other.make_topic()
        await other.poll()
        dispatcher = dispatcher_of(server)
        request = proto.Request(poll=gone.poll_request(1, wait_ms=60_000))
        going = asyncio.create_task(server.broker.service.call(request, []))
        await parked(server, 1)
        staying = asyncio.create_task(there.poll(1, wait_ms=60_000))
        await parked(server, 2)
        wake = dispatcher.waiting.wake

        def wake_and_cancel(group: str, ready: int) -> int:
            woken = wake(group, ready)
            going.cancel()
            return woken

        # Cancelled in the very moment in which it is woken.
        dispatcher.waiting.wake = wake_and_cancel  # type: ignore[method-assign]
        await other.store(b"a")
        assert values(await staying) == [b"a"]
        await asyncio.gather(going, return_exceptions=True)
        for consumer in (gone, there, other):
            await consumer.close()


@on_loop
async def test_a_poll_waits_at_all_its_partitions(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        waiting, other = Consumer(server, 1), Consumer(server, 2)
        await other.make_topic(partitions=3)
        for partition in (2, 0, 1):
            polling = asyncio.create_task(waiting.poll(partitions=[0, 1, 2], wait_ms=30_000))
            await parked(server, 1, partition=2)
            await other.store(b"to %d" % partition, partition=partition)
            got = await polling
            assert [(one.partition, one.value) for one in got] == [
                (partition, b"to %d" % partition)
            ]
            assert all(
                not len(dispatcher.waiting) for dispatcher in server.broker.consumers.dispatchers
            )
        await waiting.close()
        await other.close()


@on_loop
async def test_partitions_are_tried_in_the_order_given_until_there_is_enough(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(partitions=3)
        for partition in range(3):
            await consumer.store(*[b"%d" % partition] * 4, partition=partition)
        got = await consumer.poll(6, partitions=[2, 0, 1])
        assert values(got) == [b"2"] * 4 + [b"0"] * 2
        got = await consumer.poll(100, partitions=[0, 1, 2])
        assert values(got) == [b"0"] * 2 + [b"1"] * 4
        await consumer.close()


@on_loop
async def test_await_ready_tells_where_and_leases_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        waiting, second, other = Consumer(server, 1), Consumer(server, 2), Consumer(server, 3)
        await other.make_topic(partitions=2)
        body = proto.AwaitReady(topic="orders", partitions=[0, 1], group=GROUP, wait_ms=30_000)
        asking = asyncio.create_task(waiting.ask(await_ready=body))
        await parked(server, 1, partition=1)
        polling = asyncio.create_task(second.poll(partitions=[1], wait_ms=30_000))
        await parked(server, 2, partition=1)
        await other.store(b"a", partition=1)
        assert list((await asking).ready.partitions) == [1]
        # The one that was told does not come: the next in turn gets it all the same.
        assert values(await polling) == [b"a"]
        body.wait_ms = 0
        assert list((await other.ask(await_ready=body)).ready.partitions) == []
        for consumer in (waiting, second, other):
            await consumer.close()


@on_loop
async def test_a_poll_that_waits_for_a_deleted_topic_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        waiting, other = Consumer(server, 1), Consumer(server, 2)
        await other.make_topic()
        polling = asyncio.create_task(refusal(waiting.poll(wait_ms=60_000)))
        await parked(server, 1)
        await other.ask(delete_topic=proto.DeleteTopic(name="orders"))
        assert await polling == "TopicNotFound"
        await until(lambda: not list(server.broker.consumers.dispatchers))
        await waiting.close()
        await other.close()


@on_loop
async def test_the_first_poll_of_a_group_is_woken_by_a_message_that_comes_due(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        due_ms = server.broker.scheduler.now_ms() + 300
        await consumer.store(b"later", not_before_ms=due_ms)
        (got,) = await consumer.poll(wait_ms=30_000)
        assert got.value == b"later"
        assert due_ms <= server.broker.scheduler.now_ms() < due_ms + 5_000
        await consumer.close()


@on_loop
async def test_delayed_messages_in_portions_wake_waiting_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_manager, "PARKED_AT_ONCE", 2)
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        assert await consumer.poll() == []
        soon_ms = dispatcher_of(server).now_ms() + 100
        for _ in range(9):
            await consumer.store(b"far", not_before_ms=soon_ms + 3_600_000)
        await consumer.store(b"soon", not_before_ms=soon_ms)
        async with asyncio.timeout(5):
            assert values(await consumer.poll(wait_ms=30_000)) == [b"soon"]
        assert (await consumer.describe()).delayed == 9
        await consumer.close()


@on_loop
async def test_a_poll_cancelled_while_it_is_woken_passes_the_wake_on(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        consuming = server.broker.consumers._polls
        body = proto.AwaitReady(topic="orders", partitions=[0], group=GROUP, wait_ms=30_000)
        first = asyncio.create_task(consuming.await_ready(proto.Request(await_ready=body)))
        await parked(server, 1)
        second = asyncio.create_task(consuming.await_ready(proto.Request(await_ready=body)))
        await parked(server, 2)
        dispatcher = dispatcher_of(server)
        # Woken for a message, and cancelled before it gets to run.
        wake = dispatcher.waiting.wake

        def wake_and_cancel(group: str, ready: int) -> int:
            woken = wake(group, ready)
            if woken:
                first.cancel()
                dispatcher.waiting.wake = wake  # type: ignore[method-assign]
            return woken

        dispatcher.waiting.wake = wake_and_cancel  # type: ignore[method-assign]
        await consumer.store(b"a")
        async with asyncio.timeout(5):
            assert list((await second).ready.partitions) == [0]
        assert first.cancelled()
        await consumer.close()


@on_loop
async def test_an_alarm_at_a_desk_that_takes_nothing_in_is_patient(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        waiting, other = Consumer(server, 1), Consumer(server, 2)
        await other.make_topic()
        await other.store(b"a")
        assert await other.poll(visibility_ms=600)
        polling = asyncio.create_task(waiting.poll(wait_ms=30_000))
        await parked(server, 1)
        dispatcher = dispatcher_of(server)
        office = dispatcher.hosted.replica._live._proposals  # type: ignore[union-attr]
        assert office is not None
        rings = 0
        expire = dispatcher._expire_leases

        def counted() -> None:
            nonlocal rings
            rings += 1
            expire()

        dispatcher._expire_leases = counted  # type: ignore[method-assign]
        # As many requests wait as may.
        office._requests += 1_000_000
        dispatcher.schedule_dispatch()
        await asyncio.sleep(0.4)
        assert rings < 30
        assert len(dispatcher._dispatching_later) <= 1
        office._requests -= 1_000_000
        async with asyncio.timeout(5):
            assert values(await polling) == [b"a"]
        await waiting.close()
        await other.close()


@on_loop
async def test_what_cannot_be_given_back_in_this_moment_is_given_back_later(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        first, second = Consumer(server, 1), Consumer(server, 2)
        await first.make_topic()
        await first.store(b"a")
        (leased,) = await first.poll(visibility_ms=600_000)
        dispatcher = dispatcher_of(server)
        office = dispatcher.hosted.replica._live._proposals  # type: ignore[union-attr]
        assert office is not None
        office._requests += 1_000_000
        dispatcher.give_back(GROUP, leased.lease, [(0, 1)])
        await asyncio.sleep(0.1)
        office._requests -= 1_000_000
        assert values(await second.poll(wait_ms=5_000)) == [b"a"]
        await first.close()
        await second.close()


@on_loop
async def test_a_name_is_no_place_to_store_things(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.poll(consumer_name="n" * 1_000_000)
        assert {len(name) for name in dispatcher_of(server).names.values()} == {200}
        await consumer.close()


@on_loop
async def test_what_one_group_does_is_looked_at_for_that_group_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        busy, idle = Consumer(server, 1), Consumer(server, 2)
        await busy.make_topic()
        await busy.store(b"a", b"b")
        groups = [f"idle-{number}" for number in range(20)]
        for group in groups:
            await idle.ack(await idle.poll(group=group), group=group)
        polls = [asyncio.create_task(idle.poll(group=group, wait_ms=30_000)) for group in groups]
        await parked(server, len(groups))
        looks: list[str] = []
        ready = lease_manager.LeaseManager.ready

        def counted(
            self: lease_manager.LeaseManager, group: str, end: int, now_ms: int, limit: int
        ) -> int:
            looks.append(group)
            return ready(self, group, end, now_ms, limit)

        monkeypatch.setattr(lease_manager.LeaseManager, "ready", counted)
        for one in await busy.poll():
            await busy.ack([one])
        assert set(looks) == {GROUP}
        await busy.store(b"c")
        assert [values(got) for got in await asyncio.gather(*polls)] == [[b"c"]] * len(groups)
        await busy.close()
        await idle.close()


@on_loop
async def test_a_message_that_comes_due_while_it_is_looked_for_wakes_a_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        due_ms = server.broker.scheduler.now_ms() + 3_600_000
        await consumer.store(b"later", not_before_ms=due_ms)
        polling = asyncio.create_task(consumer.poll(wait_ms=30_000))
        await parked(server, 1)
        clock_ms = due_ms - 1
        look = DeliveryDispatcher.dispatch

        def look_slowly(dispatcher: DeliveryDispatcher, group: str) -> None:
            nonlocal clock_ms
            look(dispatcher, group)
            clock_ms = due_ms

        monkeypatch.setattr(DeliveryDispatcher, "now_ms", lambda _: clock_ms)
        monkeypatch.setattr(DeliveryDispatcher, "dispatch", look_slowly)
        dispatcher_of(server).schedule_dispatch()
        async with asyncio.timeout(10):
            assert values(await polling) == [b"later"]
        await consumer.close()
