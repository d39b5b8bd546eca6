"""The size of polls that name none: small for slow loops, large for fast ones."""

import asyncio
import threading

import pytest

import quivermq
import quivermq.aio
from quivermq.client.shared.held_leases import HeldLeases, LeaseSource
from quivermq.client.shared.leases import Lease
from quivermq.client.shared.poll_size import FIRST_MESSAGES, LOOPS_MAX, MESSAGES_MAX, PollSizes
from tests.client.brokers import BrokerThread


class Loop:
    """A loop that polls and settles, on a clock that only it moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.held = HeldLeases()
        self.sizes = PollSizes(self.held, lambda: self.now)

    def turn(self, seconds_each: float, most: int = 1 << 30) -> int:
        """Poll and work on what there is; returns the size of the poll."""
        size = self.sizes.choose("t", "g")
        count = min(size, most)
        self.sizes.record("t", "g", size, count, [])
        self.now += count * seconds_each
        return size


def test_a_loop_begins_small_and_grows_by_and_by() -> None:
    loop = Loop()
    assert [loop.turn(1e-6) for _ in range(6)] == [100, 400, 1_600, 6_400, 10_000, 10_000]


@pytest.mark.parametrize(
    ("seconds_each", "size"), [(1.0, 100), (1e-3, 100), (1e-4, 1_000), (2e-5, 5_000), (0.0, 10_000)]
)
def test_a_poll_is_what_the_loop_gets_through_in_a_moment(seconds_each: float, size: int) -> None:
    loop = Loop()
    for _ in range(10):
        last = loop.turn(seconds_each)
    assert last == pytest.approx(size, rel=0.01)


def test_a_loop_that_becomes_slow_is_small_again_at_once() -> None:
    loop = Loop()
    for _ in range(10):
        loop.turn(1e-6)
    loop.turn(0.1)
    assert loop.turn(0.1) == FIRST_MESSAGES


def test_few_messages_are_no_reason_to_ask_for_fewer_than_at_first() -> None:
    loop = Loop()
    assert [loop.turn(0.5, most=1) for _ in range(3)] == [FIRST_MESSAGES] * 3


def test_messages_that_are_not_settled_keep_polls_small() -> None:
    loop = Loop()
    lease = Lease("t", b"", "g", 0, 7, print)
    source = LeaseSource("t", "g", 0)
    loop.held.add(source, 7, [(0, 2)], until=30.0, now=0.0)
    loop.sizes.record("t", "g", 100, 100, [lease])
    loop.held.remove(source, 7, [(0, 1)])
    assert loop.sizes.choose("t", "g") == FIRST_MESSAGES
    loop.held.remove(source, 7, [(1, 2)])
    assert loop.sizes.choose("t", "g") > FIRST_MESSAGES


def test_threads_do_not_take_each_other_for_fast() -> None:
    loop = Loop()
    loop.sizes.record("t", "g", 100, 100, [])
    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(loop.sizes.choose("t", "g")))
    other.start()
    other.join()
    assert found == [FIRST_MESSAGES]
    assert loop.sizes.choose("t", "g") > FIRST_MESSAGES


def test_loops_that_are_long_gone_are_forgotten() -> None:
    loop = Loop()
    for number in range(LOOPS_MAX + 1):
        loop.sizes.record("t", f"g{number}", 100, 100, [])
    assert loop.sizes.choose("t", "g0") == FIRST_MESSAGES
    assert loop.sizes.choose("t", "g1") > FIRST_MESSAGES


def test_a_default_poll_in_a_loop_gets_thousands_at_a_time(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"x"] * 50_000)
    sizes = []
    while messages := real.poll(topic, group="g", wait=0.0):
        real.ack(messages)
        sizes.append(len(messages))
    assert sum(sizes) == 50_000
    assert sizes[0] == FIRST_MESSAGES
    # The slowest machine acknowledges more than a few hundred in a tenth of a second.
    assert FIRST_MESSAGES < max(sizes) <= MESSAGES_MAX
    assert real.group(topic, "g").done == 50_000


def test_a_loop_that_does_not_settle_gets_no_more_than_before(
    real: quivermq.Client, topic: str
) -> None:
    real.produce_many(topic, [b"x"] * 1_000)
    assert [len(real.poll(topic, group="g", wait=0.0)) for _ in range(4)] == [100] * 4


def test_an_asyncio_loop_gets_thousands_at_a_time(
    real: quivermq.Client, topic: str, broker: BrokerThread
) -> None:
    real.produce_many(topic, [b"x"] * 50_000)

    async def run() -> list[int]:
        sizes = []
        async with quivermq.aio.connect(broker.address) as client:
            while messages := await client.poll(topic, group="g", wait=0.0):
                await client.ack(messages)
                sizes.append(len(messages))
        return sizes

    sizes = asyncio.run(run())
    assert sum(sizes) == 50_000
    assert max(sizes) > sizes[0] == FIRST_MESSAGES
