"""Producers: batches in the background, in order, bounded; nothing lost without a word."""

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import quivermq
import quivermq.aio
from quivermq.errors import (
    ConnectionFailed,
    Fenced,
    InvalidRequest,
    NotLeader,
    Overloaded,
    Timeout,
    TopicNotFound,
)
from tests.client.stand_in import DROP, HANG, STORE_AND_DROP, StandIn

VALUES = [b"%05d" % number for number in range(3_000)]


def test_messages_are_delivered_in_order_in_few_batches(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    with client.producer() as producer:
        deliveries = [producer.send("t", value) for value in VALUES]
    assert stand_in.log().values == VALUES
    assert [each.result(0).offset for each in deliveries] == list(range(len(VALUES)))
    assert stand_in.count("produce") < len(VALUES) / 10


def test_every_way_of_sending_keeps_the_order_of_the_others(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    sent: list[bytes] = []
    with client.producer(linger=0, batch_bytes=2_000) as producer:
        for at in range(0, 2_000, 20):
            values = VALUES[at : at + 20]
            deliveries = [producer.send("t", value) for value in values[:3]]
            deliveries.append(producer.send("t", values[3], headers={"a": b"1"}))
            deliveries.append(producer.send("t", values[4].decode()))
            producer.send_many("t", values[5:9])
            deliveries.append(producer.send("t", values[9], b"key"))
            producer.send_many("t", values[10:], [b"key"] * 10)
            sent += values
            if at % 400 == 0:
                producer.flush()
                stored = stand_in.log().values
                offsets = [each.result(0).offset for each in deliveries]
                assert [stored[offset] for offset in offsets] == [*values[:5], values[9]]
    assert stand_in.log().values == sent


@pytest.mark.parametrize("is_async", [False, True])
def test_a_producer_that_serializes_does_so_with_bytes_too(
    is_async: bool, stand_in: StandIn, client: quivermq.Client
) -> None:
    def turned(value: bytes) -> bytes:
        return value[::-1]

    async def send() -> None:
        async with (
            quivermq.aio.connect(stand_in.address) as loop_client,
            loop_client.producer(linger=60, serializer=turned) as producer,
        ):
            for value in VALUES:
                await producer.send("t", value)
            await producer.send_many("t", VALUES[:500])

    if is_async:
        asyncio.run(send())
    else:
        with client.producer(linger=60, serializer=turned) as producer:
            for value in VALUES:
                producer.send("t", value)
            producer.send_many("t", VALUES[:500])
    assert stand_in.log().values == [value[::-1] for value in VALUES + VALUES[:500]]


@pytest.mark.parametrize(
    "script",
    [
        [STORE_AND_DROP],
        [DROP, STORE_AND_DROP, DROP],
        ["store", NotLeader("?"), "store", Overloaded("busy"), STORE_AND_DROP],
        ["store", "store", Overloaded("busy"), "store", "store", DROP],
    ],
)
def test_trouble_on_the_way_changes_nothing(
    script: list[Any], stand_in: StandIn, client: quivermq.Client
) -> None:
    stand_in.script("produce", *script)
    with client.producer(linger=0, batch_bytes=1000) as producer:
        for value in VALUES:
            producer.send("t", value)
    assert stand_in.log().values == VALUES
    assert stand_in.count("produce") > 8


def test_several_batches_are_under_way_at_a_time(stand_in: StandIn) -> None:
    stand_in.script("produce", *[HANG] * 8)
    with (
        quivermq.connect(stand_in.address, timeout=4) as client,
        client.producer(batch_bytes=100) as producer,
    ):
        for value in VALUES[:500]:
            producer.send("t", value)
        stand_in.until("produce", 8)
    assert stand_in.log().values == VALUES[:500]


def test_a_message_waits_no_longer_than_its_linger(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    with client.producer(linger=0.01) as producer:
        began = time.monotonic()
        producer.send("t", b"v").result(5)
        assert 0.005 < time.monotonic() - began < 5


def test_a_full_batch_does_not_wait(stand_in: StandIn, client: quivermq.Client) -> None:
    with client.producer(linger=60, batch_bytes=100) as producer:
        first = producer.send("t", b"x" * 90)
        producer.send("t", b"y" * 90)
        assert first.result(5).offset == 0
        assert stand_in.log().values == [b"x" * 90]


def test_flush_sends_what_lingers(stand_in: StandIn, client: quivermq.Client) -> None:
    with client.producer(linger=60) as producer:
        delivery = producer.send("t", b"v")
        producer.flush(5)
        assert delivery.done()


def test_priorities_delays_and_headers_travel(stand_in: StandIn, client: quivermq.Client) -> None:
    with client.producer() as producer:
        producer.send("t", b"a", priority=5)
        producer.send("t", b"b", delay=3600, headers={"h": b"1"})
        producer.send("t", b"c", b"key")
    headers = [frame.header for frame in stand_in.log().frames]
    assert [header.priority for header in headers] == [5, 0, 0]
    due = headers[1].not_before_ms / 1000 - time.time()
    assert 3590 < due < 3601
    assert stand_in.log().values == [b"a", b"b", b"c"]


def test_compressed_batches_are_smaller(stand_in: StandIn, client: quivermq.Client) -> None:
    with client.producer(compression="zstd") as producer:
        for _ in range(1000):
            producer.send("t", b"x" * 100)
    assert sum(map(len, stand_in.log().frames)) < 20_000
    assert stand_in.log().values == [b"x" * 100] * 1000


def test_a_refused_batch_fails_its_messages_and_not_the_others(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    stand_in.script("produce", InvalidRequest("no"))
    with client.producer(batch_bytes=20, linger=0.2) as producer:
        bad = producer.send("t", b"x" * 15)
        good = [producer.send("t", b"%d" % n * 15) for n in range(4)]
        with pytest.raises(InvalidRequest):
            bad.result(5)
        assert [each.result(5).offset for each in good] == [0, 1, 2, 3]


def test_a_failure_that_was_not_looked_at_is_raised_by_flush(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    with client.producer() as producer:
        stand_in.script("produce", InvalidRequest("no"))
        producer.send("t", b"a")
        with pytest.raises(InvalidRequest):
            producer.flush()
        producer.flush()
        stand_in.script("produce", InvalidRequest("no"))
        delivery = producer.send("t", b"b")
        assert isinstance(delivery.exception(5), InvalidRequest)
        producer.flush()


def test_leaving_the_block_raises_what_was_not_delivered(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    stand_in.script("produce", InvalidRequest("no"))
    with pytest.raises(InvalidRequest), client.producer() as producer:
        producer.send("t", b"a")


def test_an_error_in_the_block_is_not_hidden_by_a_failed_delivery(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    stand_in.script("produce", InvalidRequest("no"))

    def work() -> None:
        with client.producer() as producer:
            producer.send("t", b"a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_what_cannot_be_delivered_in_time_fails(stand_in: StandIn) -> None:
    with quivermq.connect(stand_in.address, timeout=1.0) as client:
        producer = client.producer()
        stand_in.script("produce", *[HANG] * 10)
        delivery = producer.send("t", b"lost")
        with pytest.raises(Timeout, match="may have been stored or not"):
            delivery.result(10)
        stand_in._scripts.clear()
        assert producer.send("t", b"next").result(10).offset == 0
        producer.close()
    assert stand_in.log().values == [b"next"]


def send_many(producer: quivermq.Producer) -> None:
    for _ in range(100):
        producer.send("t", b"x" * 500)


def test_past_the_buffer_send_waits_and_then_refuses(stand_in: StandIn) -> None:
    stand_in.script("produce", *[HANG] * 1000)
    with quivermq.connect(stand_in.address, timeout=5) as client:
        producer = client.producer(batch_bytes=1000, buffer_bytes=5_000, timeout=0.3)
        began = time.monotonic()
        with pytest.raises(Overloaded, match="buffer_bytes"):
            send_many(producer)
        assert time.monotonic() - began >= 0.29
        with pytest.raises(Timeout):
            producer.close()


def test_past_the_buffer_send_goes_on_when_there_is_room(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    with client.producer(batch_bytes=1000, buffer_bytes=3_000) as producer:
        for value in VALUES:
            producer.send("t", value + b"x" * 100)
    assert len(stand_in.log().values) == len(VALUES)


def test_many_threads_may_send(stand_in: StandIn, client: quivermq.Client) -> None:
    with client.producer(batch_bytes=2_000) as producer:

        def work(mine: int) -> None:
            for number in range(500):
                producer.send("t", b"%d-%04d" % (mine, number))

        threads = [threading.Thread(target=work, args=(mine,)) for mine in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = stand_in.log().values
    assert len(values) == 2000
    for mine in range(4):
        theirs = [value for value in values if value.startswith(b"%d-" % mine)]
        assert theirs == sorted(theirs)


def test_keys_keep_their_order_over_many_partitions() -> None:
    with StandIn(topics={"t": 8}) as stand_in, quivermq.connect(stand_in.address) as client:
        stand_in.script("produce", *[DROP, "store", STORE_AND_DROP, Overloaded("busy")] * 3)
        with client.producer(linger=0, batch_bytes=500) as producer:
            for number in range(4_000):
                producer.send("t", b"%05d" % number, b"key %d" % (number % 20))
        found = [stand_in.log("t", number).values for number in range(8)]
    assert sum(map(len, found)) == 4_000
    for values in found:
        assert values == sorted(set(values))


def test_an_older_epoch_is_fenced(stand_in: StandIn, client: quivermq.Client) -> None:
    with client.producer(producer_id=7, epoch=1) as producer:
        producer.send("t", b"a").result(5)
        stand_in.script("produce", Fenced("a newer one took over"))
        with pytest.raises(Fenced):
            producer.send("t", b"b").result(5)
    (frame,) = stand_in.log().frames
    assert (frame.header.producer_id, frame.header.producer_epoch) == (7, 1)


def test_an_unknown_topic_is_refused_by_send(client: quivermq.Client) -> None:
    with client.producer() as producer, pytest.raises(TopicNotFound):
        producer.send("other", b"v")


def test_a_topic_that_is_deleted_meanwhile_fails_its_messages(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    with client.producer() as producer:
        producer.send("t", b"a").result(5)
        stand_in.topics = {}
        with pytest.raises(TopicNotFound):
            producer.send("t", b"b").result(5)
        with pytest.raises(TopicNotFound):
            producer.send("t", b"c").result(5)


def test_a_closed_producer_says_so(client: quivermq.Client) -> None:
    producer = client.producer()
    producer.close()
    producer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        producer.send("t", b"v")


def test_a_closed_client_has_delivered_what_its_producers_held(stand_in: StandIn) -> None:
    client = quivermq.connect(stand_in.address)
    producer = client.producer(linger=60)
    delivery = producer.send("t", b"v")
    client.close()
    assert delivery.result(0).offset == 0
    with pytest.raises(InvalidRequest, match="closed"):
        producer.send("t", b"w")


def test_what_is_abandoned_is_given_up(stand_in: StandIn, client: quivermq.Client) -> None:
    stand_in.script("produce", *[HANG] * 10)
    producer = client.producer(linger=60)
    delivery = producer.send("t", b"v")
    producer.abandon()
    with pytest.raises(ConnectionFailed, match="closed before"):
        delivery.result(0)
    assert stand_in.log().values == []


def test_a_producer_that_is_dropped_without_close_warns(client: quivermq.Client) -> None:
    producer = client.producer()
    with pytest.warns(ResourceWarning, match="not closed"):
        producer.__del__()
    producer.close()
    del producer
    gc.collect()


@pytest.mark.parametrize(
    "wrong",
    [
        {"linger": -1},
        {"batch_bytes": 0},
        {"batch_bytes": 1 << 30},
        {"compression": "rar"},
        {"buffer_bytes": 0},
        {"timeout": 0},
        {"producer_id": 0},
        {"epoch": -1},
    ],
)
def test_settings_that_make_no_sense_are_refused(
    wrong: dict[str, Any], client: quivermq.Client
) -> None:
    with pytest.raises(InvalidRequest):
        client.producer(**wrong)


def on_loop(stand_in: StandIn, work: Callable[[quivermq.aio.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with quivermq.aio.connect(stand_in.address, timeout=5) as client:
            await work(client)

    asyncio.run(run())


class TestOnAnEventLoop:
    def test_messages_are_delivered_in_order(self, stand_in: StandIn) -> None:
        stand_in.script("produce", STORE_AND_DROP, "store", Overloaded("busy"))

        async def work(client: quivermq.aio.AsyncClient) -> None:
            async with client.producer(linger=0, batch_bytes=1000) as producer:
                deliveries = [await producer.send("t", value) for value in VALUES]
                assert (await deliveries[-1]).offset == len(VALUES) - 1

        on_loop(stand_in, work)
        assert stand_in.log().values == VALUES

    def test_past_the_buffer_send_waits_and_then_refuses(self, stand_in: StandIn) -> None:
        stand_in.script("produce", *[HANG] * 1000)

        async def work(client: quivermq.aio.AsyncClient) -> None:
            producer = client.producer(batch_bytes=1000, buffer_bytes=5_000, timeout=0.3)

            async def send_many() -> None:
                for _ in range(100):
                    await producer.send("t", b"x" * 500)

            with pytest.raises(Overloaded, match="buffer_bytes"):
                await send_many()
            with pytest.raises(Timeout):
                await producer.close()

        on_loop(stand_in, work)

    def test_a_failure_that_was_not_looked_at_is_raised_by_flush(self, stand_in: StandIn) -> None:
        stand_in.script("produce", InvalidRequest("no"))

        async def work(client: quivermq.aio.AsyncClient) -> None:
            async with client.producer() as producer:
                await producer.send("t", b"v")
                with pytest.raises(InvalidRequest):
                    await producer.flush()

        on_loop(stand_in, work)

    def test_a_cancelled_block_ends_at_once_and_leaves_nothing_running(
        self, stand_in: StandIn
    ) -> None:
        stand_in.script("produce", *[HANG] * 10)

        async def work(client: quivermq.aio.AsyncClient) -> None:
            async def send() -> None:
                async with client.producer() as producer:
                    await (await producer.send("t", b"v"))

            task = asyncio.create_task(send())
            await asyncio.to_thread(stand_in.until, "produce")
            began = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - began < 8
            assert len(asyncio.all_tasks()) == 1

        on_loop(stand_in, work)

    def test_a_closed_client_has_delivered_what_its_producers_held(self, stand_in: StandIn) -> None:
        held = []

        async def work(client: quivermq.aio.AsyncClient) -> None:
            held.append(client.producer(linger=60))
            await held[0].send("t", b"v")

        on_loop(stand_in, work)
        assert stand_in.log().values == [b"v"]

    def test_what_a_dropped_producer_held_is_delivered(self, stand_in: StandIn) -> None:
        async def work(client: quivermq.aio.AsyncClient) -> None:
            with pytest.warns(ResourceWarning, match="not closed"):
                await client.producer(linger=60).send("t", b"v")

        on_loop(stand_in, work)
        assert stand_in.log().values == [b"v"]

    def test_an_unknown_topic_is_refused_by_send(self, stand_in: StandIn) -> None:
        async def work(client: quivermq.aio.AsyncClient) -> None:
            async with client.producer() as producer:
                with pytest.raises(TopicNotFound):
                    await producer.send("other", b"v")

        on_loop(stand_in, work)
