"""Handlers that work at the same time, with messages of one key one after the other."""

import asyncio
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable

import pytest

import quivermq
import quivermq.aio
from quivermq.client.shared import key_order
from quivermq.client.shared.key_order import KeyOrder
from quivermq.client.shared.leased_message import LeasedFields
from quivermq.client.shared.leases import Lease
from quivermq.errors import InvalidRequest
from tests.client.brokers import BrokerThread

KEYS = 5
EACH = 40


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def message(offset: int, key: bytes | None = b"k", delivery: int = 1) -> LeasedFields:
    lease = Lease("t", b"", "g", 0, 1, print)
    return LeasedFields("t", 0, offset, key, b"", {}, 0, 0, delivery, lease)


def taken(order: KeyOrder, *messages: LeasedFields) -> list[int]:
    """The offsets of those that may be handled now."""
    found = []
    arrived = deque(messages)
    while (each := order.take_from(arrived)) is not None:
        found.append(each.offset)
    assert not arrived
    return found


def test_a_key_that_is_worked_on_waits_and_others_pass() -> None:
    order = KeyOrder()
    assert taken(order, message(0), message(2), message(1)) == [0]
    assert taken(order, message(3, b"other"), message(4, None), message(5, None)) == [3, 4, 5]
    assert len(order.waiting()) == 2
    order.finish(message(0))
    assert taken(order) == [1]
    order.finish(message(1))
    assert taken(order) == [2]
    order.finish(message(2))
    assert taken(order, message(6)) == [6]


def test_a_key_waits_for_a_message_that_failed() -> None:
    order = KeyOrder()
    assert taken(order, message(0), message(1)) == [0]
    assert order.fail(message(0), 0.0) == key_order.GRACE_SECONDS
    assert taken(order, message(2)) == []
    assert order.behind_failed == 2
    assert [order.count_due("t", [0], 0.0), order.count_due("t", [1], 0.0)] == [1, 0]
    assert taken(order, message(0, delivery=2)) == [0]
    assert order.count_due("t", [0], 0.0) == 0
    order.finish(message(0, delivery=2))
    assert taken(order) == [1]


def test_a_message_that_does_not_come_again_is_given_up() -> None:
    order = KeyOrder()
    first, again = message(0), message(0, delivery=2)
    assert taken(order, first, message(1)) == [0]
    order.fail(first, 0.0)
    assert taken(order, again) == [0]
    order.fail(again, 0.0)
    order.give_up(first)  # too late: it came, and failed again
    assert taken(order) == []
    order.give_up(again)
    assert taken(order) == [1]


def test_what_waits_can_be_taken_away() -> None:
    order = KeyOrder()
    assert taken(order, message(0), message(1)) == [0]
    assert [each.offset for each in order.take_all()] == [1]
    order.finish(message(0))
    assert taken(order, message(2)) == [2]


class Work:
    """Records what handlers do, and that no key is worked on twice at a time."""

    def __init__(self) -> None:
        self.done: dict[bytes | None, list[int]] = defaultdict(list)
        self.at_work: set[bytes | None] = set()
        self.most = 0
        self.faults: list[str] = []
        self.lock = threading.Lock()

    def begin(self, message: LeasedFields) -> None:
        with self.lock:
            if message.key in self.at_work:
                self.faults.append(f"{message.key!r} twice at a time")
            self.at_work.add(message.key)
            self.most = max(self.most, len(self.at_work))

    def end(self, message: LeasedFields, *, failed: bool = False) -> None:
        with self.lock:
            self.at_work.discard(message.key)
            if not failed:
                self.done[message.key].append(message.offset)

    @property
    def count(self) -> int:
        return sum(map(len, self.done.values()))

    def check(self) -> None:
        assert not self.faults
        for offsets in self.done.values():
            assert offsets == sorted(offsets)


def produce(client: quivermq.Client, topic: str) -> None:
    keys = [b"%d" % (number % KEYS) for number in range(KEYS * EACH)]
    client.produce_many(topic, [b"x"] * len(keys), keys)


def test_threads_handle_each_key_in_order_and_keys_together(
    real: quivermq.Client, topic: str
) -> None:
    produce(real, topic)
    work = Work()
    both = threading.Barrier(2)

    def handle(message: quivermq.LeasedMessage) -> None:
        work.begin(message)
        if message.offset < 2:
            both.wait(20)  # two keys are worked on at the same time, or this fails
        work.end(message)

    with real.subscribe(
        topic, group="g", handler=handle, concurrency=4, prefetch=50, ordered_by_key=True
    ):
        until(lambda: work.count == KEYS * EACH)
    work.check()
    assert work.most > 1
    assert real.group(topic, "g").done == KEYS * EACH


def test_a_retry_comes_before_the_messages_behind_it(real: quivermq.Client, topic: str) -> None:
    real.alter_topic(topic, retry=quivermq.Retry(first=0.2, base=0.2), max_deliveries=5)
    produce(real, topic)
    work = Work()
    failures = 0

    def handle(message: quivermq.LeasedMessage) -> None:
        nonlocal failures
        work.begin(message)
        fails = message.key == b"0" and message.offset == KEYS and message.delivery_count < 3
        work.end(message, failed=fails)
        if fails:
            failures += 1
            raise RuntimeError("again")

    with real.subscribe(
        topic, group="g", handler=handle, concurrency=4, prefetch=4, ordered_by_key=True
    ):
        # Far more messages of its key are there than can wait.
        until(lambda: work.count == KEYS * EACH)
    work.check()
    assert failures == 2


def test_a_message_that_failed_finds_room_to_come_again(real: quivermq.Client, topic: str) -> None:
    real.alter_topic(topic, retry=quivermq.Retry(first=1.0))
    real.produce_many(topic, [b"x"] * 50, [b"k"] * 50)
    work = Work()

    def handle(message: quivermq.LeasedMessage) -> None:
        work.begin(message)
        fails = message.offset == 0 and message.delivery_count == 1
        work.end(message, failed=fails)
        if fails:
            raise RuntimeError("again")

    # All that can wait does so by the time that the first message is due.
    with real.subscribe(
        topic, group="g", handler=handle, concurrency=2, prefetch=4, ordered_by_key=True
    ):
        until(lambda: work.count == 50)
    work.check()


def test_a_message_that_failed_for_good_does_not_hold_its_key(
    real: quivermq.Client, topic: str
) -> None:
    real.alter_topic(topic, max_deliveries=1)
    produce(real, topic)
    work = Work()

    def handle(message: quivermq.LeasedMessage) -> None:
        work.begin(message)
        work.end(message, failed=message.offset == 0)
        if message.offset == 0:
            raise RuntimeError("never")

    with real.subscribe(topic, group="g", handler=handle, concurrency=4, ordered_by_key=True):
        began = time.monotonic()
        until(lambda: work.count == KEYS * EACH - 1)
    work.check()
    assert time.monotonic() - began < 20


def test_what_waits_for_its_key_goes_back_at_the_end(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"x"] * 10, [b"k"] * 10)
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: quivermq.LeasedMessage) -> None:
        begun.set()
        go_on.wait(20)

    subscription = real.subscribe(
        topic, group="g", handler=handle, concurrency=2, ordered_by_key=True
    )
    assert begun.wait(20)
    closing = threading.Thread(target=subscription.close)
    closing.start()
    until(lambda: real.group(topic, "g").in_flight == 1)
    go_on.set()
    closing.join()
    info = real.group(topic, "g")
    assert (info.done, info.in_flight, info.lag) == (1, 0, 9)


def test_messages_acknowledged_before_they_are_handled_keep_their_order_too(
    real: quivermq.Client, topic: str
) -> None:
    produce(real, topic)
    work = Work()

    def handle(message: quivermq.LeasedMessage) -> None:
        work.begin(message)
        work.end(message)
        if message.offset % 7 == 0:
            raise RuntimeError("it does not come again")

    with real.subscribe(
        topic,
        group="g",
        handler=handle,
        ack="auto",
        concurrency=4,
        prefetch=10,
        ordered_by_key=True,
    ):
        until(lambda: work.count == KEYS * EACH)
    work.check()


def test_order_by_key_is_for_handlers(real: quivermq.Client, topic: str) -> None:
    with pytest.raises(InvalidRequest, match="for handlers"):
        real.subscribe(topic, group="g", ordered_by_key=True)


def test_tasks_handle_each_key_in_order(
    real: quivermq.Client, topic: str, broker: BrokerThread
) -> None:
    real.alter_topic(topic, retry=quivermq.Retry(first=0.1))
    produce(real, topic)
    work = Work()

    async def handle(message: quivermq.aio.AsyncLeasedMessage) -> None:
        work.begin(message)
        await asyncio.sleep(0)
        fails = message.offset == 1 and message.delivery_count == 1
        work.end(message, failed=fails)
        if fails:
            raise RuntimeError("again")

    async def run() -> None:
        async with (
            quivermq.aio.connect(broker.address) as client,
            client.subscribe(topic, group="g", handler=handle, concurrency=8, ordered_by_key=True),
        ):
            await asyncio.to_thread(until, lambda: work.count == KEYS * EACH)

    asyncio.run(run())
    work.check()
    assert work.most > 1
