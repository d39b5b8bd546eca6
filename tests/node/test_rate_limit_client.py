"""Rate limits: tokens at a steady pace, one limiter for all partitions, first come first."""

import asyncio
import time
from pathlib import Path
from random import Random

import pytest

from quivermq.node.delivery.rate_limiter import RateLimiter
from quivermq.token_bucket import GRAIN_S, TokenBucket
from quivermq.wire import proto
from tests.node.cluster_stage import cluster
from tests.node.consumer_stage import Consumer, led, values
from tests.transports.stage import on_loop, serving, until


@pytest.mark.parametrize(
    ("per_second", "burst"), [(0.5, 1), (0.5, 3), (10.0, 1), (1_000.0, 50), (10_000.0, 1)]
)
def test_over_any_window_no_more_is_taken_than_the_rate_and_one_burst(
    per_second: float, burst: int
) -> None:
    dice = Random(7)
    bucket = TokenBucket(per_second, burst, 0.0)
    taken: list[tuple[float, int]] = []
    now_s, end_s = 0.0, 200 / per_second + 5
    while now_s < end_s:
        now_s += dice.choice([0.0001, 0.003, 0.02, 0.5, 1.7]) * dice.random()
        number = bucket.take(dice.choice([1, 7, 1_000]), now_s)
        if dice.random() < 0.2 and number:
            unused = dice.randrange(number + 1)
            bucket.give_back(unused)
            number -= unused
        taken.append((now_s, number))
    late = per_second * GRAIN_S
    most = max(burst, late) + min(1, late)
    for first, (start_s, _) in enumerate(taken):
        total = 0
        for at_s, number in taken[first : first + 300]:
            total += number
            assert total <= (at_s - start_s) * per_second + most + 1e-6


@pytest.mark.parametrize(
    ("per_second", "late_s"), [(0.5, 0.04), (10.0, 0.04), (200.0, 0.004), (10_000.0, 0.001)]
)
def test_asking_again_when_told_to_gives_the_whole_rate(per_second: float, late_s: float) -> None:
    bucket = TokenBucket(per_second, 1, 0.0)
    now_s, total = 0.0, 0
    while now_s < 1_000 / per_second + 1:
        total += bucket.take(200, now_s)
        # No timer is exact: this one is late by a little each time.
        now_s += bucket.wait_s(200, now_s) + late_s
    assert total >= now_s * per_second * 0.95
    assert total <= now_s * per_second + max(1, per_second * GRAIN_S) + 1


@on_loop
async def test_tokens_are_given_in_the_order_of_asking() -> None:
    limiter = RateLimiter(200.0, 2)
    order: list[str] = []

    async def ask(name: str, wanted: int) -> None:
        assert await limiter.take(wanted, 10.0) > 0
        order.append(name)

    asking = [asyncio.create_task(ask(name, wanted)) for name, wanted in
              (("a", 2), ("b", 100), ("c", 1), ("d", 1))]  # fmt: skip
    await asyncio.gather(*asking)
    assert order == ["a", "b", "c", "d"]
    assert limiter.waiting == 0


@on_loop
async def test_a_cancelled_or_expired_poll_takes_no_message() -> None:
    limiter = RateLimiter(1.0, 1)
    assert await limiter.take(5, 0.0) == 1
    assert await limiter.take(1, 0.02) == 0
    waiting = asyncio.create_task(limiter.take(1, 60.0))
    await until(lambda: limiter.waiting)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert limiter.waiting == 0
    limiter.give_back(1)
    assert await limiter.take(1, 0.0) == 1
    last = asyncio.create_task(limiter.take(1, 60.0))
    await until(lambda: limiter.waiting)
    limiter.close()
    assert await last == 0


@on_loop
async def test_a_token_for_a_poll_that_is_just_cancelled_is_there_for_the_next() -> None:
    limiter = RateLimiter(0.001, 1)
    assert await limiter.take(1, 0.0) == 1
    waiting = asyncio.create_task(limiter.take(1, 60.0))
    await asyncio.sleep(0)
    limiter.give_back(1)
    waiting.cancel()
    assert isinstance(*await asyncio.gather(waiting, return_exceptions=True), BaseException)
    assert await limiter.take(1, 0.0) == 1


@on_loop
async def test_a_token_that_comes_in_the_last_moment_is_taken() -> None:
    limiter = RateLimiter(0.001, 1)
    assert await limiter.take(1, 0.0) == 1
    asyncio.get_running_loop().call_later(0.02, limiter.give_back, 1)
    waiting = asyncio.create_task(limiter.take(1, 0.03))
    await asyncio.sleep(0)
    time.sleep(0.05)  # noqa: ASYNC251  (both are due in one turn of the loop)
    assert await waiting == 1


@on_loop
async def test_a_poll_waits_for_its_turn_instead_of_failing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(rate_per_second=1.0, rate_burst=2)
        await consumer.store(*[b"%d" % number for number in range(10)])
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert values(await consumer.poll()) == [b"0", b"1"]
        # Without the time to wait: nothing, and when there will be something.
        assert await consumer.poll() == []
        assert 0 < consumer.throttled_ms <= 1_000
        got = await consumer.poll(wait_ms=10_000)
        assert values(got) == [b"2"]
        assert loop.time() - began >= 0.99
        assert {one.delivery for one in got} == {1}
        await consumer.close()


@on_loop
async def test_the_rate_holds_for_a_topic_whose_partitions_are_led_by_several_brokers(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as brokers:
        first = Consumer(brokers.running[1])
        await first.make_topic(partitions=3, rate_per_second=100.0, rate_burst=10)
        await until(lambda: len(led(brokers)) == 3)
        nodes = led(brokers)
        assert len(set(nodes.values())) == 3
        for partition in range(3):
            await first.store(*[b"x"] * 200, partition=partition)
        loop = asyncio.get_running_loop()
        began, times = loop.time(), []

        async def consume(partition: int, node: int) -> None:
            consumer = Consumer(brokers.running[node], 10 + partition)
            while loop.time() - began < 1.5:
                got = await consumer.poll(50, partitions=[partition], wait_ms=1_000)
                times.extend([loop.time() - began] * len(got))
            await consumer.close()

        await asyncio.gather(*(consume(*place) for place in nodes.items()))
        took = loop.time() - began
        assert 0.5 * 100 * took <= len(times) <= 1.02 * 100 * took + 10
        for start in range(0, len(times), 10):
            for end in range(start + 1, len(times)):
                # What was delivered is noticed later than it was allowed: hence the slack.
                window = times[end] - times[start]
                assert end - start <= 100 * (window + 0.1) + 10
        await first.close()


@on_loop
async def test_a_rate_limit_that_is_lifted_delays_no_waiting_poll(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer, other = Consumer(server), Consumer(server, 2)
        await consumer.make_topic(rate_per_second=0.001)
        await consumer.store(b"a", b"b")
        assert len(await consumer.poll()) == 1
        polling = asyncio.create_task(consumer.poll(wait_ms=30_000))
        dispatcher = next(iter(server.broker.consumers.dispatchers))
        await until(lambda: dispatcher.limiter is not None and dispatcher.limiter.waiting)
        settings = proto.TopicSettings(rate_per_second=1_000.0)
        await other.ask(alter_topic=proto.AlterTopic(name="orders", settings=settings))
        assert len(await polling) == 1
        await consumer.close()
        await other.close()


@on_loop
async def test_a_limit_that_has_nothing_for_years_is_told_in_hours(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(rate_per_second=1e-9, rate_burst=1)
        await consumer.store(b"a", b"b")
        assert values(await consumer.poll()) == [b"a"]
        assert await consumer.poll() == []
        assert consumer.throttled_ms == 3_600_000
        await consumer.close()
