"""Sticky consumers, blocking and awaitable, of a real broker in this process."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

import quivermq
import quivermq.aio
from quivermq.client.sticky import delivery_buffer, member
from quivermq.client.sticky.owned_partition import OwnedPartition
from quivermq.errors import Fenced, InvalidRequest, OffsetOutOfRange, TooLarge, TopicNotFound
from quivermq.wire import proto
from tests.client.brokers import BrokerThread
from tests.client.test_fork_safety import in_child

PATIENCE_S = 20.0
_numbers = count()


@pytest.fixture
def topic(real: quivermq.Client) -> str:
    """A topic of four partitions with ten messages each."""
    name = f"sticky-{next(_numbers)}"
    real.create_topic(name, partitions=4)
    for partition in range(4):
        real.produce_many(name, [b"%d" % number for number in range(10)], partition=partition)
    return name


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def taken(consumer: quivermq.Consumer, most: int) -> list[quivermq.Message]:
    found: list[quivermq.Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < most:
        assert time.monotonic() < deadline, f"{len(found)} of {most}"
        found += consumer.poll(most - len(found), 0.1)
    return found


def committed(client: quivermq.Client, topic: str) -> int:
    return sum(client.committed(topic, "g").values())


def test_all_messages_come_each_partition_in_order(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g") as consumer:
        found = taken(consumer, 40)
    for partition in range(4):
        offsets = [message.offset for message in found if message.partition == partition]
        assert offsets == list(range(10))


def test_no_partition_has_to_wait_for_another(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"x" * 1000] * 5_000, partition=0)
    with real.consumer(topic, group="g") as consumer:
        seen: set[int] = set()
        for number in range(5_000):
            seen.add(next(consumer).partition)
            if len(seen) < 4 and number % 100 == 0:
                # The first of the others may still be on their way.
                time.sleep(0.01)
    assert seen == {0, 1, 2, 3}


def test_a_poll_takes_as_many_as_it_asks_for_if_they_are_there(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"x"] * 3_000, partition=1)
    with real.consumer(topic, group="g") as consumer:
        # Fetched ahead by then: a poll does not wait for more than it finds.
        wait_until(lambda: _fetched(consumer) == 3_040)
        assert len(consumer.poll()) == delivery_buffer.READY_MESSAGES
        found = consumer.poll(10_000)
        assert len(found) == 2_540
        assert [message.offset for message in found if message.partition == 1] == sorted(
            message.offset for message in found if message.partition == 1
        )


@pytest.fixture
def _collects_as_programs_do() -> Iterator[None]:
    """These tests have the collector wait for more."""
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("_collects_as_programs_do")
def test_lists_that_replace_each_other_wake_no_collector(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"x"] * 50_000, partition=1)
    with real.consumer(topic, group="g") as consumer:
        wait_until(lambda: _fetched(consumer) == 50_040)
        assert gc.isenabled()
        messages = consumer.poll(1_000)
        before = sum(each["collections"] for each in gc.get_stats())
        while len(messages) == 1_000:
            messages = consumer.poll(1_000)
        # Other threads of this process make objects too, now and then at that very moment.
        assert sum(each["collections"] for each in gc.get_stats()) - before < 20


def test_a_consumer_fetches_no_more_than_it_may_and_goes_on(
    real: quivermq.Client, topic: str
) -> None:
    for _ in range(30):
        real.produce_many(topic, [b"x" * 1_000] * 100, partition=1)
    with real.consumer(topic, group="g", prefetch_bytes=1) as consumer:
        wait_until(lambda: _fetched(consumer) > 40)
        consumer.pause([1])
        taken(consumer, 30)
        (full,) = (each for each in _owned(consumer) if each.partition == 1)
        wait_until(lambda: full.awaits_room and not full.has_room)
        assert full.unread.bytes < 3 * member.PARTITION_BYTES_MIN
        consumer.resume()
        found = taken(consumer, 3_010)
        assert [message.offset for message in found] == list(range(3_010))


def _fetched(consumer: quivermq.Consumer | quivermq.aio.AsyncConsumer) -> int:
    packed = [one for each in _owned(consumer) for one in list(each.unread._packed)]
    return sum(one.frame.header.count for one in packed)


def _owned(consumer: quivermq.Consumer | quivermq.aio.AsyncConsumer) -> list[OwnedPartition]:
    return list(consumer._member._owned_partitions.values())  # type: ignore[union-attr]


def test_a_commit_covers_the_message_at_hand(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g", auto_commit=False) as consumer:
        for number, _ in enumerate(consumer, 1):
            if number == 7:
                consumer.commit()
                assert committed(real, topic) == 7
            if number == 9:
                break
    assert committed(real, topic) == 7


def test_what_the_loop_is_past_is_committed_now_and_then(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g") as consumer:
        for _ in range(5):
            next(consumer)
        wait_until(lambda: committed(real, topic) > 0)
        assert committed(real, topic) == 4, "the fifth is being worked on"


def test_closing_commits_what_was_given_out(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g") as consumer:
        for _ in range(5):
            next(consumer)
    assert committed(real, topic) == 5


def test_trouble_leaves_the_message_at_hand_uncommitted(real: quivermq.Client, topic: str) -> None:
    def fail_at_the_fifth() -> None:
        with real.consumer(topic, group="g") as consumer:
            for number, _ in enumerate(consumer, 1):
                1 // (5 - number)

    with pytest.raises(ZeroDivisionError):
        fail_at_the_fifth()
    assert committed(real, topic) == 4


def test_a_slow_handler_loses_nothing(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g", session=0.6) as consumer:
        next(consumer)
        generation = consumer.generation
        time.sleep(1.5)
        consumer.commit()
        assert consumer.generation == generation
        assert consumer.assignment == [0, 1, 2, 3]


def test_a_partition_moves_only_when_what_was_given_out_is_done(
    real: quivermq.Client, topic: str
) -> None:
    with real.consumer(topic, group="g") as first:
        at_hand = next(message for message in first if message.partition == 3)
        with real.consumer(topic, group="g") as second:
            wait_until(lambda: second.assignment == [2])
            assert first.assignment == [0, 1]
            time.sleep(0.3)
            assert second.assignment == [2], "its message is still worked on"
            first.poll(1, wait=0.0)
            wait_until(lambda: second.assignment == [2, 3])
            following = next(message for message in second if message.partition == 3)
            assert following.offset == at_hand.offset + 1


def test_a_revoked_partition_waits_for_a_manual_commit(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g", auto_commit=False) as first:
        taken(first, 40)
        with real.consumer(topic, group="g") as second:
            wait_until(lambda: first.assignment == [0, 1])
            first.poll(1, wait=0.5)
            assert second.assignment == []
            first.commit()
            wait_until(lambda: second.assignment == [2, 3])
            assert second.poll(1, wait=0.5) == []


def test_a_member_that_never_commits_is_not_waited_for_for_ever(
    real: quivermq.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "COMMIT_SECONDS_MAX", 0.2)
    with real.consumer(topic, group="g", auto_commit=False) as first:
        taken(first, 40)
        with real.consumer(topic, group="g") as second:
            wait_until(lambda: first.assignment == [0, 1])
            first.poll(1, wait=0.0)
            again = taken(second, 20)
            assert [m.offset for m in again if m.partition == 2] == list(range(10))
            with pytest.raises(Fenced, match=r"\[2, 3\]"):
                first.commit()
            first.commit()


def test_listeners_are_called_and_may_commit(real: quivermq.Client, topic: str) -> None:
    told: list[tuple[str, list[int]]] = []
    consumers: list[quivermq.Consumer] = []

    def revoked(partitions: list[int]) -> None:
        consumers[0].commit()
        told.append(("revoked", partitions))

    def assigned(partitions: list[int]) -> None:
        told.append(("assigned", partitions))

    with real.consumer(topic, group="g", on_assigned=assigned, on_revoked=revoked) as first:
        consumers.append(first)
        wait_until(lambda: told == [("assigned", [0, 1, 2, 3])])
        with real.consumer(topic, group="g") as second:
            wait_until(lambda: second.assignment == [2, 3])
            assert sorted(told[1:]) == [("revoked", [2]), ("revoked", [3])]
        wait_until(lambda: told[-1] == ("assigned", [2, 3]))


def test_a_listener_that_fails_ends_the_consumer_with_its_word(
    real: quivermq.Client, topic: str
) -> None:
    def broken(partitions: list[int]) -> None:
        raise ValueError(f"no room for {partitions}")

    with (
        real.consumer(topic, group="g", on_assigned=broken) as consumer,
        pytest.raises(InvalidRequest, match="no room for"),
    ):
        for _ in consumer:
            pass
    with real.consumer(topic, group="other", on_assigned=broken) as consumer:  # noqa: SIM117
        with real.consumer(topic, group="other") as heir:
            wait_until(lambda: heir.assignment == [0, 1, 2, 3])


def test_partitions_that_are_added_are_read_too(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g", session=1.0) as consumer:
        assert len(taken(consumer, 40)) == 40
        real.alter_topic(topic, partitions=6)
        for partition in (4, 5):
            real.produce(topic, b"more", partition=partition)
        assert sorted(message.partition for message in taken(consumer, 2)) == [4, 5]
        assert consumer.assignment == [0, 1, 2, 3, 4, 5]


def test_a_group_that_is_deleted_under_its_members_starts_over(
    real: quivermq.Client, topic: str
) -> None:
    with real.consumer(topic, group="g") as consumer:
        taken(consumer, 40)
        consumer.commit()
        real.delete_group(topic, "g")
        for partition in range(4):
            real.produce(topic, b"one more", partition=partition)
        again = taken(consumer, 44)
        for partition in range(4):
            offsets = [message.offset for message in again if message.partition == partition]
            assert offsets == list(range(11))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"mode": "shared"}, InvalidRequest),
        ({"mode": "single"}, InvalidRequest),
        ({"assignor": "clever"}, InvalidRequest),
        ({"session": 0.4}, InvalidRequest),
        ({"session": 100_000}, InvalidRequest),
        ({"session": 1e15}, InvalidRequest),
        ({"start": "yesterday"}, InvalidRequest),
        ({"start": []}, InvalidRequest),
        ({"assignor": 5}, InvalidRequest),
        ({"name": 5}, InvalidRequest),
        ({"name": "\ud800"}, InvalidRequest),
        ({"group": "\ud800"}, InvalidRequest),
        ({"auto_commit": "yes"}, InvalidRequest),
        ({"on_assigned": 5}, InvalidRequest),
        ({"prefetch_bytes": 0}, InvalidRequest),
        ({"group": ""}, InvalidRequest),
        ({"group": "_own"}, InvalidRequest),
        ({"group": "a/b"}, InvalidRequest),
        ({"group": "g" * 201}, TooLarge),
        ({"topic": "nothing"}, TopicNotFound),
    ],
)
def test_a_consumer_that_cannot_be_is_refused(
    real: quivermq.Client, topic: str, changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        real.consumer(**{"topic": topic, "group": "g", **changes})


@pytest.mark.parametrize("end", [quivermq.Consumer.close, quivermq.Consumer.abandon])
def test_a_closed_consumer_says_so_and_its_loop_ends(
    real: quivermq.Client, topic: str, end: Callable[[quivermq.Consumer], None]
) -> None:
    consumer = real.consumer(topic, group="g")
    ended = threading.Thread(target=lambda: list(consumer))
    ended.start()
    time.sleep(0.1)  # it waits for more by then
    end(consumer)
    ended.join(PATIENCE_S)
    assert not ended.is_alive()
    assert list(consumer) == []
    with pytest.raises(InvalidRequest, match="closed"):
        consumer.poll()
    with pytest.raises(InvalidRequest, match="closed"):
        consumer.commit()
    with pytest.raises(InvalidRequest):
        consumer.poll(0)
    for wait in (-1, float("nan"), "long"):
        with pytest.raises(InvalidRequest, match="wait"):
            consumer.poll(wait=wait)  # type: ignore[arg-type]


def test_closing_a_client_closes_its_consumers(broker: BrokerThread, topic: str) -> None:
    client = quivermq.connect(broker.address)
    consumer = client.consumer(topic, group="g")
    client.close()
    assert list(consumer) == []


def test_a_consumer_that_was_not_closed_is_warned_of(real: quivermq.Client, topic: str) -> None:
    consumer = real.consumer(topic, group="g")
    with pytest.warns(ResourceWarning, match="not closed"):
        consumer.__del__()
    consumer.close()


@pytest.mark.filterwarnings("ignore:.*not closed:ResourceWarning")
def test_partitions_of_a_consumer_without_references_go_to_others(
    real: quivermq.Client, topic: str
) -> None:
    assert taken(real.consumer(topic, group="g", session=60), 40)

    def has_left() -> bool:
        # Again and again: a task of the background may have held on to it at the first time.
        gc.collect()
        return real.groups(topic) == [] or not real.group(topic, "g").members

    wait_until(has_left)
    # What it was given last was not done; what it was given before that was, by asking for more.
    left = 40 - committed(real, topic)
    assert left
    with real.consumer(topic, group="g") as consumer:
        assert len(taken(consumer, left)) == left


@pytest.mark.parametrize("turns", [0, 1, 3, 10, 30])
def test_a_consumer_that_gives_up_joining_is_no_member(
    real: quivermq.Client, broker: BrokerThread, topic: str, turns: int
) -> None:
    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            consumer = client.consumer(topic, group="g", session=60)
            entering = asyncio.create_task(consumer.__aenter__())
            for _ in range(turns):
                await asyncio.sleep(0.001)
            entering.cancel()
            with suppress(asyncio.CancelledError):
                await entering
                await consumer.close()  # it was faster
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(work())
    wait_until(lambda: not any(group.members for group in real.groups(topic)))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_consumer_says_that_it_stayed_with_the_parent(real: quivermq.Client, topic: str) -> None:
    with real.consumer(topic, group="g") as consumer:
        assert "forked" in in_child(consumer.poll)
        assert taken(consumer, 40)


def test_the_awaitable_consumer_does_the_same(broker: BrokerThread, topic: str) -> None:
    told: list[tuple[str, list[int]]] = []

    async def assigned(partitions: list[int]) -> None:
        told.append(("assigned", partitions))

    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            first = client.consumer(topic, group="g", on_assigned=assigned)
            assert first.assignment == []
            async for message in first:
                if message.offset == 9:
                    break
            await first.commit()
            assert first.assignment == [0, 1, 2, 3]
            async with client.consumer(topic, group="g") as second:
                async with asyncio.timeout(PATIENCE_S):
                    while second.assignment != [2, 3]:
                        await first.poll(wait=0.01)
                await client.produce(topic, b"last", partition=3)
                async for message in second:
                    if message.value == b"last":
                        break
                assert second.generation > 0
            await first.close()
            assert [message async for message in first] == []
            with pytest.raises(InvalidRequest, match="closed"):
                await first.poll()

    asyncio.run(work())
    assert told[0] == ("assigned", [0, 1, 2, 3])


def test_an_asyncio_loop_that_waits_for_nothing_lets_others_run(
    broker: BrokerThread, real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"x"] * 5_000, partition=1)

    async def work() -> None:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with (
            quivermq.aio.connect(broker.address) as client,
            client.consumer(topic, group="g") as consumer,
            asyncio.timeout(PATIENCE_S),
        ):
            await consumer.poll(1)
            await asyncio.to_thread(wait_until, lambda: _fetched(consumer) >= 5_000)
            counting = asyncio.create_task(count_turns())
            for _ in range(2_500):
                await anext(consumer)
            assert turns >= 4
            before = turns
            assert await consumer.poll(1_000)
            assert turns > before
            counting.cancel()

    asyncio.run(work())


def test_an_answer_of_an_earlier_coordinator_changes_nothing(
    broker: BrokerThread, topic: str
) -> None:
    async def work() -> None:
        async with (
            quivermq.aio.connect(broker.address) as client,
            client.consumer(topic, group="g") as first,
        ):
            await first.poll(wait=1.0)
            async with client.consumer(topic, group="g") as second:
                while second.assignment != [2, 3]:
                    await asyncio.gather(first.poll(wait=0.01), second.poll(wait=0.01))
            while first.assignment != [0, 1, 2, 3]:
                await first.poll(wait=0.01)
            assert first.generation > 1
            stale = proto.StickyState(generation=first.generation - 1)
            first._member._apply(stale, time.monotonic())
            assert first.assignment == [0, 1, 2, 3]

    asyncio.run(asyncio.wait_for(work(), 2 * PATIENCE_S))


def test_a_session_counts_from_when_the_heartbeat_was_sent(
    broker: BrokerThread, topic: str
) -> None:
    """The coordinator heard it then, or later: the answer may have been on its way for long."""

    async def work() -> None:
        async with (
            quivermq.aio.connect(broker.address) as client,
            client.consumer(topic, group="g", session=10.0) as consumer,
        ):
            assert await consumer.poll(wait=PATIENCE_S)
            own = consumer._member
            same = await own._heartbeat.send()
            own._apply(same, time.monotonic() - 11.0)
            assert own.buffer.is_stale
            assert own.buffer.take(1) == []

    asyncio.run(work())


def test_a_partition_that_comes_back_under_another_epoch_is_claimed_anew(
    broker: BrokerThread, topic: str
) -> None:
    """Another member had it meanwhile, and may have committed more."""

    async def work() -> None:
        async with (
            quivermq.aio.connect(broker.address) as client,
            client.consumer(topic, group="g") as consumer,
        ):
            assert await consumer.poll(wait=PATIENCE_S)
            own = consumer._member
            before = own._owned_partitions[0]
            state = proto.StickyState(generation=own.generation)
            for number, owned in own._owned_partitions.items():
                state.assigned.add(partition=number, epoch=owned.epoch + (number == 0))
            own._apply(state, time.monotonic())
            assert before.is_withdrawn
            assert own._owned_partitions[0].epoch == before.epoch + 1
            await own.abandon()

    asyncio.run(work())


def test_a_partition_moves_only_when_what_was_done_is_committed(
    broker: BrokerThread, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "AUTO_COMMIT_SECONDS", 3600.0)

    async def work() -> None:
        async with (
            quivermq.aio.connect(broker.address) as client,
            client.consumer(topic, group="g") as first,
        ):
            while first.assignment != [0, 1, 2, 3] or await first.poll(100, wait=0.5):
                pass
            await first.commit()
            await client.produce_many(topic, [b"more"], partition=2)
            await client.produce_many(topic, [b"more"], partition=3)
            found = [*await first.poll(100, wait=1.0), *await first.poll(100, wait=1.0)]
            assert len(found) == 2
            slow = [first._member._owned_partitions[number]._committing for number in (2, 3)]
            for lock in slow:
                await lock.acquire()
            async with client.consumer(topic, group="g") as second:
                for _ in range(20):
                    await first.poll(wait=0.05)
                assert second.assignment == []
                for lock in slow:
                    lock.release()
                while second.assignment != [2, 3]:
                    await asyncio.gather(first.poll(wait=0.01), second.poll(wait=0.01))
                assert (await client.committed(topic, "g"))[2] == 11

    asyncio.run(asyncio.wait_for(work(), 2 * PATIENCE_S))


def test_a_commit_that_is_refused_does_not_count(broker: BrokerThread, topic: str) -> None:
    async def work() -> None:
        async with (
            quivermq.aio.connect(broker.address) as client,
            client.consumer(topic, group="g") as consumer,
        ):
            assert await consumer.poll(100, wait=PATIENCE_S)
            (owned, *_) = consumer._member._owned_partitions.values()
            before = owned.committed
            owned.past = 1_000
            with pytest.raises(OffsetOutOfRange):
                await owned.commit_past()
            assert owned.committed == before

    asyncio.run(work())


def test_who_takes_over_from_the_latest_misses_nothing(broker: BrokerThread, topic: str) -> None:
    """A group that began at the end goes on from there, though nothing was committed since."""

    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            first = client.consumer(topic, group="g", start="latest", session=0.5)
            assert await first.poll(wait=0.1) == []
            owned_partitions = first._member._owned_partitions.values()
            while len(owned_partitions) < 4 or any(each.committed < 0 for each in owned_partitions):
                await first.poll(wait=0.05)
            await first._member.abandon()
            await client.produce(topic, b"between", partition=1)
            async with client.consumer(topic, group="g", start="latest") as second:
                (found,) = await second.poll(wait=PATIENCE_S)
                assert found.value == b"between"

    asyncio.run(asyncio.wait_for(work(), 2 * PATIENCE_S))


def test_what_is_not_revoked_any_more_is_not_released_again(
    broker: BrokerThread, topic: str
) -> None:
    async def work() -> None:
        async with (
            quivermq.aio.connect(broker.address) as client,
            client.consumer(topic, group="g") as consumer,
        ):
            assert await consumer.poll(wait=PATIENCE_S)
            heartbeat = consumer._member._heartbeat
            heartbeat.release([1, 2])
            heartbeat.release([3], revoked=[2, 3])
            assert list(heartbeat._request().sticky_beat.released) == [2, 3]
            heartbeat.release([], revoked=[])

    asyncio.run(work())


def test_a_coordinator_that_cannot_be_reached_is_looked_for_elsewhere(
    broker: BrokerThread, topic: str
) -> None:
    async def work() -> None:
        async with (
            quivermq.aio.connect(broker.address, timeout=5.0) as client,
            client.consumer(topic, group="g") as consumer,
        ):
            assert await consumer.poll(wait=PATIENCE_S)
            heartbeat = consumer._member._heartbeat
            heartbeat.generation = 0
            heartbeat._coordinator = "127.0.0.1:1"
            assert (await heartbeat.send()).generation > 0

    asyncio.run(work())
