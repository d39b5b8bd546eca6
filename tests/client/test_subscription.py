"""Subscriptions: messages pushed to iterators and handlers, of real brokers and of stand-ins."""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import quivermq
import quivermq.aio
from quivermq.client.shared import outbox, prefetch
from quivermq.client.shared.poll import PollResult
from quivermq.errors import (
    ConnectionFailed,
    InvalidRequest,
    LeaseLost,
    NotEnoughReplicas,
    NotLeader,
    TopicNotFound,
)
from quivermq.wire import proto
from tests.client.brokers import BrokerThread
from tests.client.group_stand_in import GroupStandIn
from tests.client.stand_in import DROP, HANG
from tests.client.test_fork_safety import in_child


@pytest.fixture
def stand_in() -> Iterator[GroupStandIn]:
    with GroupStandIn() as started:
        yield started


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def done(client: quivermq.Client, topic: str) -> int:
    return sum(group.done for group in client.groups(topic))


def test_an_iterator_gives_every_message_once(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"%d" % n for n in range(200)])
    seen = []
    with real.subscribe(topic, group="g", prefetch=16) as subscription:
        for message in subscription:
            seen.append(message.value)
            message.ack()
            if len(seen) == 200:
                break
    assert seen == [b"%d" % n for n in range(200)]
    info = real.group(topic, "g")
    assert (info.done, info.lag, info.in_flight) == (200, 0, 0)


def test_batches_are_acknowledged_without_waiting(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"v"] * 1000)
    count = 0
    with real.subscribe(topic, group="g", prefetch=100) as subscription:
        for messages in subscription.batches():
            assert 1 <= len(messages) <= 100
            count += len(messages)
            subscription.ack(messages)
            if count == 1000:
                break
        subscription.flush()
        assert real.group(topic, "g").done == 1000


def test_lists_are_of_the_size_that_is_asked_for(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"%d" % n for n in range(1000)])
    seen: list[bytes] = []
    with real.subscribe(topic, group="g", prefetch=300) as subscription:
        for messages in subscription.batches(64):
            assert 1 <= len(messages) <= 64
            # Acknowledgements of as many again may be on their way.
            assert real.group(topic, "g").in_flight <= 2 * 300
            seen += [message.value for message in messages]
            subscription.ack(messages)
            if len(seen) == 1000:
                break
    # Closing waits until all that was acknowledged is.
    assert seen == [b"%d" % n for n in range(1000)]
    info = real.group(topic, "g")
    assert (info.done, info.lag, info.in_flight) == (1000, 0, 0)


def test_lists_that_failed_come_again(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"%d" % n for n in range(100)])
    seen: list[tuple[bytes, int]] = []
    with real.subscribe(topic, group="g", prefetch=100) as subscription:
        for messages in subscription.batches(30):
            first = [message for message in messages if message.delivery_count == 1]
            subscription.nack([message for message in first if message.offset % 2], delay=0)
            subscription.ack([each for each in messages if not (each in first and each.offset % 2)])
            seen += [(message.value, message.delivery_count) for message in messages]
            if len(seen) == 150:
                break
    assert sorted(seen) == sorted(
        [(b"%d" % n, 1) for n in range(100)] + [(b"%d" % n, 2) for n in range(1, 100, 2)]
    )
    assert real.group(topic, "g").done == 100


def test_a_list_that_is_not_settled_goes_back_when_the_subscription_closes(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"v"] * 500)
    with real.subscribe(topic, group="g", prefetch=200) as subscription:
        lists = subscription.batches(50)
        subscription.ack(next(lists))
        next(lists)
    info = real.group(topic, "g")
    assert (info.done, info.lag, info.in_flight) == (50, 450, 0)


def test_lists_with_ack_auto_are_done_when_they_come(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"v"] * 500)
    count = 0
    with real.subscribe(topic, group="g", prefetch=100, ack="auto") as subscription:
        for messages in subscription.batches(30):
            count += len(messages)
            subscription.ack(messages)  # which is nothing to do
            if count == 500:
                break
    assert real.group(topic, "g").done == 500


def test_acknowledgements_of_lists_are_gathered(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 1000)
    with client.subscribe("t", group="g", prefetch=1000) as subscription:
        count = 0
        for messages in subscription.batches(2):
            count += len(messages)
            subscription.ack(messages)
            if count == 1000:
                break
        subscription.flush()
        assert stand_in.lot().done == set(range(1000))
    assert stand_in.count("settle") < 250


def test_messages_come_as_they_are_produced(real: quivermq.Client, topic: str) -> None:
    with real.subscribe(topic, group="g") as subscription:
        for number in range(3):
            real.produce(topic, b"%d" % number)
            message = next(subscription)
            assert message.value == b"%d" % number
            message.ack()


def test_a_handler_acknowledges_by_returning_and_fails_by_raising(
    real: quivermq.Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    real.alter_topic(topic, max_deliveries=2)
    real.produce_many(topic, [b"good", b"bad", b"own"])
    calls: list[tuple[bytes, int]] = []

    def handle(message: quivermq.LeasedMessage) -> None:
        calls.append((message.value, message.delivery_count))
        if message.value == b"bad":
            raise ValueError("no good")
        if message.value == b"own":
            message.reject("as it likes")

    with (
        caplog.at_level(logging.CRITICAL, "quivermq.client"),
        real.subscribe(topic, group="g", handler=handle, concurrency=3),
    ):
        until(lambda: sum(group.dead for group in real.groups(topic)) == 2)
    assert sorted(calls) == [(b"bad", 1), (b"bad", 2), (b"good", 1), (b"own", 1)]
    assert real.group(topic, "g").done == 1


def test_a_handler_may_settle_itself_and_what_it_settled_stays_so(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"%d" % number for number in range(100)])
    seen: list[bytes] = []

    def handle(message: quivermq.LeasedMessage) -> None:
        seen.append(message.value)
        if int(message.value) % 10 == 0 and message.delivery_count == 1:
            message.nack(delay=0)

    with real.subscribe(topic, group="g", handler=handle):
        until(lambda: done(real, topic) == 100)
    assert len(seen) == 110


def test_a_handler_of_what_is_done_already_may_fail(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"v"] * 3)
    calls = []

    def handle(message: quivermq.LeasedMessage) -> None:
        calls.append(message.offset)
        raise ValueError

    with real.subscribe(topic, group="g", handler=handle, ack="auto") as subscription:
        until(lambda: len(calls) == 3)
        subscription.flush()
        assert done(real, topic) == 3


def test_closing_waits_for_handlers_and_gives_back_the_rest(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"v"] * 10)
    started, go_on = threading.Event(), threading.Event()

    def handle(message: quivermq.LeasedMessage) -> None:
        started.set()
        assert go_on.wait(10)

    subscription = real.subscribe(topic, group="g", handler=handle)
    assert started.wait(10)
    closer = threading.Thread(target=subscription.close)
    closer.start()
    # What was only prefetched is there for others while the handler still runs.
    others = []
    while len(others) < 9:
        others += real.poll(topic, group="g", wait=10)
    assert [message.delivery_count for message in others] == [1] * 9
    go_on.set()
    closer.join()
    assert subscription.wait(0)
    info = real.group(topic, "g")
    assert (info.done, info.in_flight) == (1, 9)


def test_what_was_on_its_way_when_a_subscription_stopped_goes_back(
    real: quivermq.Client, topic: str
) -> None:
    with real.subscribe(topic, group="g") as subscription:
        prefetcher, has_come, go_on = subscription._prefetcher, threading.Event(), threading.Event()
        polling = prefetcher._core.consuming.polling
        poll_leader = polling.poll_leader

        async def poll_slowly(*arguments: Any) -> PollResult:
            result = await poll_leader(*arguments)
            if result.leased_runs:
                has_come.set()
                assert await asyncio.to_thread(go_on.wait, 30)
            return result

        real.produce(topic, b"in time")
        until(lambda: prefetcher._held() == 1)
        polling.poll_leader = poll_slowly  # type: ignore[method-assign]
        # It comes by a poll that waited before, or by the late one.
        real.produce(topic, b"first")
        until(lambda: prefetcher._held() == 2 or has_come.is_set())
        real.produce(topic, b"second")
        assert has_come.wait(30)
        subscription.stop()
        until(lambda: prefetcher.is_closing)
        go_on.set()
        others: list[bytes] = []
        while len(others) < 3:
            found = real.poll(topic, group="g", wait=10)
            assert {message.delivery_count for message in found} == {1}
            others += [message.value for message in found]
    assert sorted(others) == [b"first", b"in time", b"second"]


def test_with_ack_auto_nothing_is_taken_after_a_stop(
    monkeypatch: pytest.MonkeyPatch, real: quivermq.Client, topic: str
) -> None:
    monkeypatch.setattr(prefetch, "WAIT_SECONDS", 60.0)
    with real.subscribe(topic, group="g", ack="auto") as subscription:
        until(lambda: subscription._prefetcher._asked)
        subscription.stop()
        until(lambda: not subscription._prefetcher._pollers)
        real.produce(topic, b"v")
        assert [message.value for message in real.poll(topic, group="g", wait=10)] == [b"v"]


def test_closing_gives_back_messages_that_were_handed_out_and_not_settled(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"v"] * 3)
    with real.subscribe(topic, group="g") as subscription:
        message = next(subscription)
    info = real.group(topic, "g")
    assert (info.lag, info.in_flight) == (3, 0)
    with pytest.raises(InvalidRequest, match="closed"):
        message.ack()
    with pytest.raises(InvalidRequest, match="closed"):
        subscription.ack([message])
    with pytest.raises(StopIteration):
        next(subscription)


def test_leases_last_while_a_handler_works(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"slow", b"prefetched"])
    deliveries: list[tuple[bytes, int]] = []

    def handle(message: quivermq.LeasedMessage) -> None:
        deliveries.append((message.value, message.delivery_count))
        if message.value == b"slow":
            time.sleep(1.3)

    with real.subscribe(topic, group="g", handler=handle, visibility=1.0):
        until(lambda: done(real, topic) == 2)
    assert deliveries == [(b"slow", 1), (b"prefetched", 1)]


def extensions(stand_in: GroupStandIn) -> int:
    settlements = [settlement for settle in stand_in.settles for settlement in settle.settlements]
    return sum(settlement.outcome == proto.EXTEND for settlement in settlements)


def test_leases_are_extended_until_the_loop_is_done_with_its_message(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce("t", b"v")
    with client.subscribe("t", group="g", visibility=0.2) as subscription:
        message = next(subscription)
        until(lambda: extensions(stand_in) >= 3)
        message.ack()
        # One may be under way.
        before = extensions(stand_in) + 1
        time.sleep(0.3)
        assert extensions(stand_in) <= before


def test_leases_of_a_batch_are_extended_while_the_loop_works_on_it(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 3)
    with client.subscribe("t", group="g", visibility=0.2) as subscription:
        messages = next(subscription.batches())
        assert len(messages) == 3
        client.ack(messages[:2])
        until(lambda: extensions(stand_in) >= 3)
        assert stand_in.lot().done == {0, 1}


def test_leases_of_messages_that_no_loop_works_on_are_not_extended(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce("t", b"v")
    with client.subscribe("t", group="g", visibility=0.2) as subscription:
        loop = threading.Thread(target=next, args=(subscription,))
        loop.start()
        loop.join()
        until(lambda: not any(subscription._prefetcher._until))


def test_a_handler_whose_lease_was_lost_acknowledges_all_the_same(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce("t", b"v")
    is_there = threading.Event()

    def handle(message: quivermq.LeasedMessage) -> None:
        assert is_there.wait(10)
        lot = stand_in.lot()
        kept, lot.leases = lot.leases, {-1: {0}}
        until(lambda: not subscription._prefetcher._left)
        lot.leases = kept  # no other consumer took it

    with client.subscribe("t", group="g", handler=handle, visibility=0.2) as subscription:
        is_there.set()
        until(lambda: stand_in.lot().done == {0})


def test_credit_bounds_what_is_held(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"v"] * 100)
    with real.subscribe(topic, group="g", prefetch=10) as subscription:
        held = [next(subscription) for _ in range(10)]
        assert real.group(topic, "g").in_flight == 10
        for message in held:
            message.ack()
        assert next(subscription).offset == 10


def test_with_ack_auto_messages_are_done_when_they_come(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"v"] * 50)
    with real.subscribe(topic, group="g", prefetch=8, ack="auto") as subscription:
        found = [next(subscription).offset for _ in range(50)]
    assert found == list(range(50))
    assert real.group(topic, "g").done == 50


def test_a_topic_that_is_deleted_ends_it(real: quivermq.Client, topic: str) -> None:
    with real.subscribe(topic, group="g") as subscription:
        real.delete_topic(topic)
        with pytest.raises(TopicNotFound):
            next(subscription)
        with pytest.raises(TopicNotFound):
            subscription.wait(10)


def test_a_topic_that_is_not_there_is_refused_at_once(real: quivermq.Client) -> None:
    with pytest.raises(TopicNotFound):
        real.subscribe("nowhere", group="g")


def test_a_handler_may_close_its_own_subscription(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"v"] * 5)
    found: list[quivermq.Subscription] = []
    ready = threading.Event()

    def handle(message: quivermq.LeasedMessage) -> None:
        assert ready.wait(10)
        found[0].close()

    found.append(real.subscribe(topic, group="g", handler=handle))
    ready.set()
    assert found[0].wait(10)
    assert real.group(topic, "g").in_flight == 0


def test_it_goes_on_after_lost_connections(client: quivermq.Client, stand_in: GroupStandIn) -> None:
    stand_in.script("poll", DROP, NotLeader("not yet"), DROP)
    stand_in.script("settle", DROP, NotLeader("not yet"))
    client.produce_many("t", [b"v"] * 20)
    with client.subscribe("t", group="g", prefetch=5) as subscription:
        for number in range(20):
            if number == 10:
                stand_in.drop_all()
            next(subscription).ack()
    assert stand_in.lot().done == set(range(20))


def test_acknowledgements_are_gathered(client: quivermq.Client, stand_in: GroupStandIn) -> None:
    client.produce_many("t", [b"v"] * 1000)
    with client.subscribe("t", group="g", handler=lambda _: None, prefetch=500, concurrency=2):
        until(lambda: len(stand_in.lot().done) == 1000)
    assert stand_in.count("settle") < 500
    acks = [each for settle in stand_in.settles for each in settle.settlements]
    assert all(settlement.outcome == proto.ACK for settlement in acks)


def test_acknowledgements_are_sent_as_soon_as_the_cluster_is_back(stand_in: GroupStandIn) -> None:
    with quivermq.connect(stand_in.address, timeout=0.5) as client:
        client.produce("t", b"v")
        stand_in.script("settle", *[NotEnoughReplicas("come back later")] * 100)
        with client.subscribe("t", group="g", handler=lambda _: None):
            until(lambda: len(stand_in._scripts["settle"]) < 95)
            until(lambda: stand_in._scripts["settle"].clear() or stand_in.lot().done == {0})


def test_a_topic_that_was_created_again_does_not_suffer_for_the_first(
    broker: BrokerThread, topic: str
) -> None:
    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            await client.produce(topic, b"old")
            async with client.subscribe(topic, group="g") as subscription:
                old = await anext(subscription)
                await client.delete_topic(topic)
                await client.create_topic(topic)
                await client.produce(topic, b"new")
                new = await anext(subscription)
                # They go out in one turn.
                outcomes = await asyncio.gather(old.ack(), new.ack(), return_exceptions=True)
                assert [type(outcome) for outcome in outcomes] == [TopicNotFound, type(None)]
                assert (await client.group(topic, "g")).done == 1

    asyncio.run(work())


def test_a_lost_lease_is_raised_by_ack_and_by_flush(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 3)
    with client.subscribe("t", group="g") as subscription:
        one, two = next(subscription), next(subscription)
        stand_in.lose_leases()
        with pytest.raises(LeaseLost, match="t/0 offset 0 "):
            one.ack()
        subscription.ack([two])
        with pytest.raises(LeaseLost, match="t/0 offset 1 "):
            subscription.flush()
        subscription.flush()


def test_messages_whose_lease_ended_while_they_waited_are_not_handed_out(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 3)
    with client.subscribe("t", group="g", visibility=0.2) as subscription:
        next(subscription).ack()
        stand_in.lose_leases()
        until(lambda: not subscription._prefetcher._left)
        client.produce("t", b"another")
        assert next(subscription).value == b"another"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"prefetch": 0}, "prefetch"),
        ({"prefetch": 1 << 20}, "prefetch"),
        ({"concurrency": 0}, "concurrency"),
        ({"handler": 7}, "handler"),
        ({"group": "_own"}, "begin with _"),
        ({"ack": "never"}, "ack must be"),
    ],
)
def test_nonsense_is_refused(client: quivermq.Client, wrong: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        client.subscribe("t", **{"group": "g", **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("flushes", [False, True])
def test_what_waits_to_be_fetched_is_settled_at_the_end(
    flushes: bool,
    client: quivermq.Client,
    stand_in: GroupStandIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "GATHER_SECONDS", 60.0)
    client.produce_many("t", [b"v"] * 20)
    subscription = client.subscribe("t", group="g")
    box = subscription._outbox
    subscription.ack(next(subscription))
    # It was fetched, and what follows is to be fetched in a minute.
    until(lambda: box._is_fetched and not box._entries)
    for _ in range(19):
        subscription.ack(next(subscription))
    if flushes:
        subscription.flush()
    else:
        subscription.close()
    assert stand_in.lot().done == set(range(20))
    subscription.close()


def test_lists_have_a_size_from_one_up(client: quivermq.Client) -> None:
    with client.subscribe("t", group="g") as subscription:
        for size in (0, -1, 1.5, True):
            with pytest.raises(InvalidRequest, match="max_messages"):
                next(subscription.batches(size))  # type: ignore[arg-type]


def test_messages_of_a_handler_are_for_it_alone(client: quivermq.Client) -> None:
    with client.subscribe("t", group="g", handler=lambda _: None) as subscription:
        with pytest.raises(InvalidRequest, match="handler"):
            next(subscription)
        assert "'g' to 't'" in repr(subscription)


def test_one_that_is_not_closed_is_warned_about(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    subscription = client.subscribe("t", group="g")
    with pytest.warns(ResourceWarning, match="not closed"):
        subscription.__del__()
    subscription.close()


def test_closing_the_client_closes_it(stand_in: GroupStandIn) -> None:
    client = quivermq.connect(stand_in.address)
    client.produce_many("t", [b"v"] * 3)
    subscription = client.subscribe("t", group="g")
    next(subscription)
    client.close()
    assert subscription.wait(0)
    assert not any(stand_in.lot().leases.values())


def test_a_handler_may_close_the_client(broker: BrokerThread, topic: str) -> None:
    client = quivermq.connect(broker.address)
    client.produce_many(topic, [b"v"] * 3)
    subscription = client.subscribe(topic, group="g", handler=lambda _: client.close())
    assert subscription.wait(10)
    until(lambda: not any(each.name.startswith("quivermq") for each in threading.enumerate()))
    with quivermq.connect(broker.address) as other:
        assert other.group(topic, "g").in_flight == 0


def test_what_is_settled_after_the_client_is_closed_starts_nothing(stand_in: GroupStandIn) -> None:
    client = quivermq.connect(stand_in.address)
    client.produce("t", b"v")
    subscription = client.subscribe("t", group="g")
    message = next(subscription)
    client.close()
    before = threading.active_count()
    with pytest.raises(InvalidRequest, match="closed"):
        message.ack()
    assert threading.active_count() == before


def test_who_waits_for_an_ack_that_is_given_up_hears_of_it(stand_in: GroupStandIn) -> None:
    async def work() -> None:
        async with quivermq.aio.connect(stand_in.address, timeout=60.0) as client:
            await client.produce_many("t", [b"v"] * 2)
            subscription = client.subscribe("t", group="g")
            first, second = await anext(subscription), await anext(subscription)
            stand_in.script("settle", HANG)
            # The second is gathered while the first is under way.
            acks = [asyncio.create_task(message.ack()) for message in (first, second)]
            await asyncio.to_thread(stand_in.until, "settle")
            await subscription._prefetcher._ack_batcher.stop()
            outcomes = await asyncio.wait_for(asyncio.gather(*acks, return_exceptions=True), 10.0)
            assert [type(outcome) for outcome in outcomes] == [ConnectionFailed] * 2
            await subscription.close()

    asyncio.run(work())


@pytest.mark.filterwarnings("ignore:.*not closed:ResourceWarning")
def test_messages_of_a_subscription_without_references_go_back(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 3)
    next(client.subscribe("t", group="g"))
    gc.collect()
    until(lambda: not any(stand_in.lot().leases.values()))


@pytest.mark.filterwarnings("ignore:.*not closed:ResourceWarning")
def test_closing_a_client_waits_for_subscriptions_without_references(
    stand_in: GroupStandIn,
) -> None:
    with quivermq.connect(stand_in.address) as client:
        client.produce("t", b"v")
        next(client.subscribe("t", group="g"))
        gc.collect()
    assert not any(stand_in.lot().leases.values())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_gets_no_messages_of_its_parent(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 3)
    with client.subscribe("t", group="g") as subscription:
        next(subscription)
        assert "forked" in in_child(lambda: next(subscription))
        assert next(subscription).offset == 1


def test_lists_on_an_event_loop(broker: BrokerThread) -> None:
    async def consume() -> tuple[list[bytes], int]:
        async with quivermq.aio.connect(broker.address) as client:
            await client.create_topic("aio-lists")
            await client.produce_many("aio-lists", [b"%d" % n for n in range(300)])
            seen: list[bytes] = []
            async with client.subscribe("aio-lists", group="g", prefetch=100) as subscription:
                async for messages in subscription.batches(40):
                    assert 1 <= len(messages) <= 40
                    seen += [message.value for message in messages]
                    await subscription.ack(messages)
                    if len(seen) == 300:
                        break
            return seen, (await client.group("aio-lists", "g")).done

    assert asyncio.run(consume()) == ([b"%d" % n for n in range(300)], 300)


def test_the_same_on_an_event_loop(broker: BrokerThread) -> None:
    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            await client.create_topic("pushed", partitions=3)
            await client.produce_many("pushed", [b"%d" % n for n in range(300)])
            seen = []
            async with client.subscribe("pushed", group="g") as subscription:
                async for message in subscription:
                    seen.append(message.value)
                    await message.ack()
                    if len(seen) == 100:
                        break
                async for messages in subscription.batches():
                    seen += [message.value for message in messages]
                    await subscription.ack(messages)
                    if len(seen) == 300:
                        break
                await subscription.flush()
            assert len(set(seen)) == 300
            assert (await client.group("pushed", "g")).done == 300

    asyncio.run(work())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_handler_in_which_something_is_cancelled_has_failed(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture, is_cancelled: bool
) -> None:
    calls: list[tuple[int, int]] = []
    came_again = asyncio.Event()
    topic = f"cancelled-{is_cancelled}"

    async def handle(message: quivermq.aio.AsyncLeasedMessage) -> None:
        calls.append((message.offset, message.delivery_count))
        if len(calls) == 3:
            came_again.set()
        if len(calls) == 1:
            waiting = asyncio.create_task(asyncio.sleep(10))
            waiting.cancel()
            await waiting

    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            await client.create_topic(topic)
            await client.produce_many(topic, [b"v"] * 2)
            async with client.subscribe(topic, group="g", handler=handle) as subscription:
                async with asyncio.timeout(10):
                    await came_again.wait()
                if is_cancelled:
                    # It ends all the same if the caller does not wait for that.
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0):
                            await subscription.close()
            assert (await client.group(topic, "g")).in_flight == 0

    with caplog.at_level(logging.CRITICAL, "quivermq.client"):
        asyncio.run(work())
    assert sorted(calls) == [(0, 1), (0, 2), (1, 1)]


def test_handlers_of_an_event_loop_may_be_coroutines(broker: BrokerThread) -> None:
    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            await client.create_topic("handled", max_deliveries=1)
            await client.produce_many("handled", [b"%d" % n for n in range(10)])
            done = asyncio.Event()
            running: set[bytes] = set()
            most = 0

            async def handle(message: quivermq.aio.AsyncLeasedMessage) -> None:
                nonlocal most
                running.add(message.value)
                most = max(most, len(running))
                await asyncio.sleep(0.01)
                running.discard(message.value)
                if message.value == b"9":
                    done.set()
                    raise ValueError("no good")

            logging.getLogger("quivermq.client").disabled = True
            subscription = client.subscribe("handled", group="g", handler=handle, concurrency=4)
            async with asyncio.timeout(10):
                await done.wait()
            await subscription.close()
            assert await subscription.wait(0)
            info = await client.group("handled", "g")
            assert (info.done, info.dead) == (9, 1)
            assert most == 4

    try:
        asyncio.run(work())
    finally:
        logging.getLogger("quivermq.client").disabled = False
