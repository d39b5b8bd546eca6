"""Shared groups at a broker: leased once, settled for good, given back when somebody goes."""

import asyncio
from pathlib import Path

import pytest

from quivermq.errors import InvalidRequest, QuiverError
from quivermq.node.delivery.registry import public_id
from quivermq.queue import LeaseManager, LeaseRequest
from quivermq.wire import proto
from tests.node.consumer_stage import (
    GROUP,
    Consumer,
    Delivery,
    deliveries,
    refusal,
    values,
)
from tests.transports.stage import on_loop, serving, until

pytestmark = pytest.mark.usefixtures("both_ways")


@on_loop
async def test_what_is_leased_to_one_is_not_given_to_another_until_it_is_settled(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        one, other = Consumer(server, 1), Consumer(server, 2)
        await one.make_topic()
        await one.store(b"a", b"b", b"c", b"d")
        first = await one.poll(3)
        second = await other.poll(3)
        assert values(first) == [b"a", b"b", b"c"]
        assert values(second) == [b"d"]
        assert {got.delivery for got in first + second} == {1}
        assert await one.poll() == []
        assert await one.ack(first[:2]) == []
        assert await one.nack(first[2:], delay_ms=0) == []
        (again,) = await other.poll()
        assert (again.value, again.delivery) == (b"c", 2)
        await other.ack([again, *second])
        counters = await one.describe()
        assert (counters.done, counters.waiting, counters.in_flight, counters.floor) == (4, 0, 0, 4)
        assert counters.redelivered == 1
        await one.close()
        await other.close()


@on_loop
async def test_groups_see_every_message_each(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a")
        assert values(await consumer.poll(group="one")) == [b"a"]
        assert values(await consumer.poll(group="two")) == [b"a"]
        assert await consumer.poll(group="late", start_latest=True) == []
        await consumer.store(b"b")
        assert values(await consumer.poll(group="late", start_latest=True)) == [b"b"]
        await consumer.close()


@on_loop
async def test_a_request_for_a_partition_led_elsewhere_is_refused_soon(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        wanted = {"topic": "orders", "group": GROUP, "partitions": [0, 7], "wait_ms": 60_000}
        ready = await consumer.ask(await_ready=proto.AwaitReady(**wanted))
        assert list(ready.ready.elsewhere) == [7]
        nothing = await consumer.ask(poll=proto.Poll(**wanted, messages_max=1))
        assert (list(nothing.polled.leased), list(nothing.polled.elsewhere)) == ([], [7])
        await consumer.store(b"a")
        something = await consumer.ask(poll=proto.Poll(**wanted, messages_max=1))
        assert len(something.polled.leased) == 1
        assert list(something.polled.elsewhere) == [7]
        await consumer.close()


@on_loop
async def test_an_ack_lasts_over_a_restart_and_so_does_a_lease(tmp_path: Path) -> None:
    async with serving(tmp_path, fsync="always") as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a", b"b", b"c")
        got = await consumer.poll(2)
        await consumer.ack(got[:1])
        await consumer.close()
    async with serving(tmp_path, fsync="always") as server:
        consumer = Consumer(server, 2)
        assert values(await consumer.poll()) == [b"c"]
        # The consumer of before goes on with what it holds.
        before = Consumer(server)
        assert await before.ack(got[1:]) == []
        await before.close()
        counters = await consumer.describe()
        assert (counters.done, counters.in_flight) == (2, 1)
        await consumer.close()


@on_loop
async def test_a_lease_that_expired_goes_to_another_and_the_late_ack_is_lost(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        slow, quick = Consumer(server, 1), Consumer(server, 2)
        await slow.make_topic()
        await slow.store(b"a", b"b")
        held = await slow.poll(visibility_ms=50)
        (again, _) = taken = await quick.poll(wait_ms=10_000)
        assert (again.value, again.delivery) == (b"a", 2)
        lost = await slow.ack(held)
        assert values(lost) == [b"a", b"b"]
        # As a whole, nobody knows any more what it was.
        whole = proto.Settlement(lease=held[0].lease)
        body = proto.Settle(topic="orders", group=GROUP, settlements=[whole], consumer=1)
        answer = await slow.ask(settle=body)
        assert [found.settlement for found in answer.settled.lost] == [0]
        assert await quick.ack(taken) == []
        assert (await quick.describe()).done == 2
        await slow.close()
        await quick.close()


@on_loop
async def test_a_late_ack_counts_while_no_other_consumer_has_the_message(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a")
        held = await consumer.poll(visibility_ms=30)
        # It expires though nobody polls.
        await consumer.until(lambda counters: not counters.in_flight)
        assert await consumer.ack(held) == []
        counters = await consumer.describe()
        assert (counters.done, counters.waiting) == (1, 0)
        await consumer.close()


@on_loop
async def test_an_extended_lease_outlives_its_first_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer, other = Consumer(server), Consumer(server, 2)
        await consumer.make_topic()
        await consumer.store(b"a")
        held = await consumer.poll(visibility_ms=1_000)
        assert await consumer.settle(proto.EXTEND, held, visibility_ms=60_000) == []
        assert await other.poll(wait_ms=1_200) == []
        assert await consumer.ack(held) == []
        # There is nothing left of it that could last longer.
        assert await consumer.settle(proto.EXTEND, held, visibility_ms=1_000) == held
        await consumer.close()
        await other.close()


@on_loop
async def test_at_most_once_is_done_before_it_leaves(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a", b"b")
        got = await consumer.poll(auto_ack=True)
        assert [one.lease for one in got] == [0, 0]
        counters = await consumer.describe()
        assert (counters.done, counters.in_flight, counters.floor) == (2, 0, 2)
        assert await consumer.poll() == []
        await consumer.close()


@on_loop
async def test_what_a_consumer_holds_goes_back_when_it_ends_and_is_no_failure(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        leaving, other = Consumer(server, 7), Consumer(server, 8)
        await leaving.make_topic()
        await leaving.store(b"a", b"b")
        await leaving.poll()
        counters = await leaving.describe()
        assert [(c.consumer, c.name, c.in_flight) for c in counters.consumers] == [
            (public_id(7), "consumer 7", 2)
        ]
        release = proto.ReleaseConsumer(topic="orders", partitions=[0], group=GROUP, consumer=7)
        await leaving.ask(release_consumer=release)
        got = await other.poll()
        assert [(one.value, one.delivery) for one in got] == [(b"a", 1), (b"b", 1)]
        await leaving.close()
        await other.close()


@on_loop
async def test_a_poll_that_is_cancelled_gives_back_what_it_leased(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(*[b"%d" % number for number in range(100)])
        room_asked = asyncio.Event()
        dispatcher = next(iter(server.broker.consumers.dispatchers))

        async def room(size: int) -> None:
            room_asked.set()

        # The answer is read in a thread: there the poll is when it is cancelled.
        server.broker.consumers.cache.drop(dispatcher.hosted.id)
        request = proto.Request(poll=consumer.poll_request())
        polling = asyncio.create_task(server.broker.service.call(request, [], room))
        await room_asked.wait()
        await until(lambda: dispatcher.ready(GROUP) == 0)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        assert dispatcher.ready(GROUP) == 100
        got = await consumer.poll()
        assert {one.delivery for one in got} == {1}
        await consumer.close()


@on_loop
async def test_higher_priorities_come_first(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        for priority in (0, 5, 7):
            await consumer.store(b"%d" % priority, priority=priority)
        order = [values(await consumer.poll(1)) for _ in range(3)]
        assert order == [[b"7"], [b"5"], [b"0"]]
        await consumer.close()


@on_loop
async def test_a_large_batch_is_cut_to_what_is_leased_of_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(*[bytes([number]) * 1_000 for number in range(100)])
        traffic = server.broker.counters.traffic["orders", 0]
        (one,) = await consumer.poll(1)
        assert one.value == bytes(1_000)
        assert traffic.bytes_out < 2_000
        rest = await consumer.poll(1_000)
        assert len(rest) == 99
        assert traffic.messages_out == 100
        await consumer.close()


@pytest.mark.parametrize("compression", [None, "lz4"])
@on_loop
async def test_an_answer_keeps_to_its_bytes_and_gives_back_the_rest(
    tmp_path: Path, compression: str | None
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        for number in range(5):
            batch = [bytes([number]) * 10_000 for _ in range(20)]
            await consumer.store(*batch, compression=compression)
        seen: list[Delivery] = []
        polls = 0
        while got := await consumer.poll(1_000, bytes_max=50_000):
            assert sum(len(one.value) for one in got) <= 50_000 or compression
            seen += got
            polls += 1
        assert [one.message.offset for one in seen] == list(range(100))
        assert {one.delivery for one in seen} == {1}
        assert polls >= 20 or compression
        (huge,) = [await consumer.store(bytes(100_000))]
        (got_huge,) = await consumer.poll(1_000, bytes_max=1)
        assert got_huge.message.offset == huge
        await consumer.close()


@on_loop
async def test_sparse_leases_come_with_exactly_their_messages(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(*[b"%d" % number for number in range(60)])
        held = await consumer.poll()
        # Every third comes back, so that what is leased next has gaps.
        back = held[::3]
        await consumer.settle(proto.RELEASE, back)
        again = await consumer.poll()
        assert values(again) == values(back)
        await consumer.settle(proto.RELEASE, [again[2], again[9]])
        few = await consumer.poll()
        assert values(few) == [again[2].value, again[9].value]
        await consumer.close()


@on_loop
async def test_seeking_goes_back_and_forth(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a", b"b", b"c")
        await consumer.ack(await consumer.poll())

        async def seek(**where: object) -> int:
            body = proto.SeekGroup(topic="orders", group=GROUP, **where)  # type: ignore[arg-type]
            return (await consumer.ask(seek_group=body)).group_sought.offset

        assert await seek(earliest=True) == 0
        assert values(await consumer.poll()) == [b"a", b"b", b"c"]
        assert await seek(offset=2) == 2
        assert values(await consumer.poll()) == [b"c"]
        assert await seek(latest=True) == 3
        assert await consumer.poll() == []
        assert await seek(timestamp_ms=1) == 0
        assert len(await consumer.poll()) == 3
        body = proto.SeekGroup(topic="orders", group=GROUP, offset=99)
        assert await refusal(consumer.ask(seek_group=body)) == "InvalidRequest"
        await consumer.close()


@on_loop
async def test_a_deleted_group_begins_anew(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a")
        await consumer.ack(await consumer.poll())
        await consumer.ask(delete_group=proto.DeleteGroup(topic="orders", group=GROUP))
        body = proto.DescribeGroups(topic="orders")
        assert not (await consumer.ask(describe_groups=body)).groups_described.groups
        assert values(await consumer.poll()) == [b"a"]
        await consumer.close()


@on_loop
async def test_delayed_messages_are_never_early_are_listed_and_can_be_cancelled(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        now_ms = server.broker.scheduler.now_ms()
        due_ms = now_ms + 800
        await consumer.store(b"soon", not_before_ms=due_ms)
        await consumer.store(b"x", b"y", b"z", not_before_ms=now_ms + 3_600_000)
        await consumer.store(b"at once")
        assert values(await consumer.poll()) == [b"at once"]
        listed = (await consumer.ask(list_delayed=proto.ListDelayed(topic="orders"))).delayed_listed
        assert listed.total == 4
        assert [(one.start, one.count) for one in listed.batches] == [(0, 1), (1, 3)]
        part = [proto.Interval(start=2, end=3)]
        cancelling = proto.CancelDelayed(topic="orders", intervals=part)
        assert (await consumer.ask(cancel_delayed=cancelling)).delayed_cancelled.cancelled == 1
        assert (await consumer.describe()).delayed == 3
        (got,) = await consumer.poll(wait_ms=10_000)
        assert got.value == b"soon"
        assert due_ms <= server.broker.scheduler.now_ms() < due_ms + 3_000
        await consumer.close()


@on_loop
async def test_nonsense_is_refused_by_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        for changes in (
            {"messages_max": 0},
            {"partitions": []},
            {"group": "no/group"},
            {"group": "_dlq"},
            {"partitions": [9]},
        ):
            assert await refusal(consumer.poll(**changes)) == "InvalidRequest", changes  # type: ignore[arg-type]
        await consumer.poll()

        empty = proto.Interval(start=3, end=3)
        for settlements in (
            [],
            [proto.Settlement(lease=0)],
            [proto.Settlement(lease=1, intervals=[empty])],
            [proto.Settlement(lease=1, outcome=99)],  # type: ignore[arg-type]
            [proto.Settlement(lease=1, outcome=proto.EXTEND)],
        ):
            body = proto.Settle(topic="orders", group=GROUP, settlements=settlements)
            with pytest.raises(InvalidRequest):
                await consumer.ask(settle=body)
        with pytest.raises(QuiverError, match="topic"):
            await Consumer(server, topic="nowhere").poll()
        await consumer.close()


@on_loop
async def test_a_claim_fences_the_earlier_claim(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a", b"b")

        async def claim(epoch: int) -> proto.Claimed:
            body = proto.Claim(topic="orders", group="sticky", epoch=epoch)
            return (await consumer.ask(claim=body)).claimed

        async def join(member: int, **changes: bool) -> int:
            """The epoch with which a member gets the partition."""
            beat = proto.StickyBeat(topic="orders", group="sticky", member=member, **changes)
            state = (await consumer.ask(sticky_beat=beat)).sticky_state
            return max((each.epoch for each in state.assigned), default=0)

        def commit(epoch: int, offset: int) -> proto.CommitOffset:
            return proto.CommitOffset(topic="orders", group="sticky", offset=offset, epoch=epoch)

        def fetch(epoch: int, **changes: int) -> proto.Fetch:
            return proto.Fetch(topic="orders", group="sticky", epoch=epoch, **changes)  # type: ignore[arg-type]

        with pytest.raises(InvalidRequest, match="never assigned"):
            await claim(1)
        before = await join(1)
        for forged in (before + 1, 2**63, 2**64 - 1):
            with pytest.raises(InvalidRequest, match="never assigned"):
                await claim(forged)
        first = await claim(before)
        assert (first.offset, first.has_committed) == (0, False)
        await consumer.ask(commit_offset=commit(before, 1))
        waiting = asyncio.create_task(
            refusal(consumer.ask(fetch=fetch(before, offset=2, wait_ms=10_000)))
        )
        await until(lambda: next(iter(server.broker.consumers.dispatchers)).hosted._readers)
        other = Consumer(server, 2)
        consumer, gone = other, consumer
        await join(1, leaving=True)
        after = await join(2)
        second = await claim(after)
        assert (second.offset, second.has_committed) == (1, True)
        for asking in (
            other.ask(commit_offset=commit(before, 2)),
            other.ask(fetch=fetch(before)),
            claim(before),
        ):
            assert await refusal(asking) == "Fenced"
        await other.store(b"c")
        assert await waiting == "Fenced"
        await other.ask(commit_offset=commit(after, 2))
        body = proto.CommittedOffsets(topic="orders", group="sticky")
        answer = await other.ask(committed_offsets=body)
        assert dict(answer.offsets_committed.offsets) == {0: 2}
        await gone.close()
        await other.close()


@on_loop
async def test_at_most_once_delivers_what_is_done_though_another_partition_is_not(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(partitions=2)
        for partition in range(2):
            await consumer.store(b"%d" % partition, partition=partition)
        consumers = server.broker.consumers
        dispatcher = consumers.dispatchers.leading("orders", b"", 1)
        loop = asyncio.get_running_loop()

        async def room(size: int) -> None:
            # The leadership is lost while the batches are read.
            loop.call_soon(dispatcher.close)

        body = consumer.poll_request(partitions=[0, 1], auto_ack=True)
        response, frames = await consumers._polls.poll(proto.Request(poll=body), room)
        assert values(deliveries(response.polled, list(frames))) == [b"0"]
        assert (await consumer.describe()).done == 1
        await consumer.close()


@on_loop
async def test_at_most_once_does_not_deliver_what_is_leased(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a", b"b")
        consumers = server.broker.consumers
        dispatcher = consumers.dispatchers.leading("orders", b"", 0)
        loop = asyncio.get_running_loop()

        def take_over() -> None:
            """Its lease ends while the batches are read, and another consumer is faster."""
            now_ms, far_ms = dispatcher.now_ms(), dispatcher.steady_ms() + 1_000_000

            def act(leases: LeaseManager) -> None:
                assert leases.expire(now_ms, far_ms) == 2
                assert leases.lease(
                    LeaseRequest(GROUP, 2, 1, 30_000), dispatcher.end, now_ms, far_ms
                )

            dispatcher.with_leases(act)

        async def room(size: int) -> None:
            loop.call_soon(take_over)

        body = consumer.poll_request(auto_ack=True)
        response, frames = await consumers._polls.poll(proto.Request(poll=body), room)
        assert values(deliveries(response.polled, list(frames))) == [b"b"]
        await consumer.close()


@on_loop
async def test_a_partition_in_trouble_does_not_keep_the_others_from_being_served(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(partitions=2)
        for partition in range(2):
            await consumer.store(b"%d" % partition, partition=partition)
        assert len(await consumer.poll(partitions=[0, 1], group="other")) == 2
        await consumer.poll(partitions=[0, 1], messages_max=1)
        dispatcher = server.broker.consumers.dispatchers.leading("orders", b"", 0)
        await consumer.store(b"more")
        proposals = dispatcher.hosted.replica._live._proposals  # type: ignore[union-attr]
        assert proposals is not None
        # As many requests wait as may.
        proposals._requests += 1_000_000
        assert values(await consumer.poll(partitions=[0, 1])) == [b"1"]
        assert await refusal(consumer.poll(partitions=[0])) == "Overloaded"
        proposals._requests -= 1_000_000
        await consumer.close()
