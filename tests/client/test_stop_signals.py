"""SIGTERM and SIGINT end consumers behind the message in hand, where a program asks for it."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import quivermq
import quivermq.aio
from quivermq.errors import InvalidRequest, TopicNotFound
from tests.client.brokers import BrokerThread

PATIENCE_S = 20.0


@contextmanager
def killed_when(
    condition: Callable[[], object], number: signal.Signals = signal.SIGTERM
) -> Iterator[None]:
    """This process gets a signal once the condition holds and something watches for it."""
    before = signal.getsignal(number)

    def kill() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition() or signal.getsignal(number) is before:
            if time.monotonic() > deadline:
                return
            time.sleep(0.005)
        os.kill(os.getpid(), number)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        killer.join()
        assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_ends_when_the_messages_in_hand_are_done(
    real: quivermq.Client, topic: str, number: signal.Signals
) -> None:
    real.produce_many(topic, [b"x"] * 100)
    begun = threading.Semaphore(0)
    go_on = threading.Event()

    def handle(message: quivermq.LeasedMessage) -> None:
        begun.release()
        go_on.wait(PATIENCE_S)

    subscription = real.subscribe(topic, group="g", handler=handle, concurrency=3, prefetch=20)
    for _ in range(3):
        assert begun.acquire(timeout=PATIENCE_S)
    with killed_when(lambda: True, number):
        # Released once nothing waits in the subscription any more: only then is it stopped.
        releasing = threading.Thread(
            target=lambda: (wait_until(lambda: in_flight(real, topic) == 3), go_on.set())
        )
        releasing.start()
        assert subscription.run(drain=PATIENCE_S)
        releasing.join()
    info = real.group(topic, "g")
    assert (info.done, info.in_flight, info.lag) == (3, 0, 97)


def in_flight(client: quivermq.Client, topic: str) -> int:
    return client.group(topic, "g").in_flight


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_run_does_not_wait_for_ever(real: quivermq.Client, topic: str) -> None:
    real.produce(topic, b"x")
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: quivermq.LeasedMessage) -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    subscription = real.subscribe(topic, group="g", handler=handle)
    with killed_when(begun.is_set):
        assert not subscription.run(drain=0.1)
    info = real.group(topic, "g")
    assert (info.done, info.in_flight, info.lag) == (0, 0, 1)
    go_on.set()


def test_run_ends_with_the_subscription(real: quivermq.Client, topic: str) -> None:
    subscription = real.subscribe(topic, group="g", handler=lambda message: None)
    closing = threading.Timer(0.1, subscription.close)
    closing.start()
    assert subscription.run()
    closing.join()
    subscription = real.subscribe(topic, group="g", handler=lambda message: None)
    deleting = threading.Timer(0.1, lambda: real.delete_topic(topic))
    deleting.start()
    with pytest.raises(TopicNotFound):
        subscription.run()
    deleting.join()


def test_run_is_for_handlers_and_the_main_thread(real: quivermq.Client, topic: str) -> None:
    with (
        real.subscribe(topic, group="g") as subscription,
        pytest.raises(InvalidRequest, match="for handlers"),
    ):
        subscription.run()
    found: list[BaseException] = []

    def run() -> None:
        try:
            with quivermq.stop_on_signals():
                pass
        except InvalidRequest as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in str(found[0])


def test_a_loop_ends_behind_the_message_in_hand(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"x"] * 10)
    seen: list[int] = []
    with (
        real.subscribe(topic, group="g") as subscription,
        killed_when(lambda: len(seen) == 3),
        quivermq.stop_on_signals(subscription) as stop,
    ):
        for message in subscription:
            seen.append(message.offset)
            if len(seen) == 3:
                wait_until(lambda: in_flight(real, topic) == 1)
            message.ack()
        assert stop.signal == signal.SIGTERM
    assert seen == [0, 1, 2]
    info = real.group(topic, "g")
    assert (info.done, info.in_flight, info.lag) == (3, 0, 7)


def test_a_loop_that_waits_for_messages_is_woken(real: quivermq.Client, topic: str) -> None:
    with (
        real.subscribe(topic, group="g") as subscription,
        killed_when(lambda: True),
        quivermq.stop_on_signals(subscription),
    ):
        assert list(subscription) == []


@pytest.mark.parametrize("topics", [1, 2])
def test_a_sticky_consumer_ends_behind_the_message_in_hand(
    real: quivermq.Client, topic: str, topics: int
) -> None:
    names = [topic, f"{topic}-more"][:topics]
    real.create_topic(names[-1])
    real.produce_many(topic, [b"x"] * 5)
    seen: list[int] = []
    with (
        real.consumer(names, group="g") as consumer,
        killed_when(lambda: len(seen) == 5),
        quivermq.stop_on_signals(consumer),
    ):
        for message in consumer:
            seen.append(message.offset)  # noqa: PERF401  (the condition looks at it meanwhile)
        assert consumer.poll(wait=PATIENCE_S) == []
    assert seen == list(range(5))
    assert real.committed(topic, "g") == {0: 5}


def test_a_loop_of_polls_asks_whether_to_stop(real: quivermq.Client, topic: str) -> None:
    polls = 0
    with killed_when(lambda: polls == 2), quivermq.stop_on_signals() as stop:
        while not stop:
            real.poll(topic, group="g", wait=0.05)
            polls += 1
    assert polls >= 2


def test_an_asyncio_subscription_is_drained(
    real: quivermq.Client, topic: str, broker: BrokerThread
) -> None:
    real.produce_many(topic, [b"x"] * 100)
    begun: list[int] = []

    async def run() -> tuple[bool, bool]:
        go_on = asyncio.Event()

        async def handle(message: quivermq.aio.AsyncLeasedMessage) -> None:
            begun.append(message.offset)
            await go_on.wait()

        async with quivermq.aio.connect(broker.address) as client:

            async def release() -> None:
                await asyncio.to_thread(
                    wait_until, lambda: len(begun) == 2 and in_flight(real, topic) == 2
                )
                go_on.set()

            subscription = client.subscribe(
                topic, group="g", handler=handle, concurrency=2, prefetch=20
            )
            with killed_when(lambda: len(begun) == 2):
                releasing = asyncio.create_task(release())
                is_drained = await subscription.run(drain=PATIENCE_S)
                await releasing
            go_on.clear()
            begun.clear()
            subscription = client.subscribe(topic, group="g", handler=handle)
            with killed_when(lambda: len(begun) == 1):
                return is_drained, await subscription.run(drain=0.1)

    assert asyncio.run(run()) == (True, False)
    info = real.group(topic, "g")
    assert (info.done, info.in_flight, info.lag) == (2, 0, 98)


def test_asyncio_loops_end_behind_the_message_in_hand(
    real: quivermq.Client, topic: str, broker: BrokerThread
) -> None:
    real.produce_many(topic, [b"x"] * 3)
    seen: list[int] = []

    async def run() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            async with client.subscribe(topic, group="g") as subscription:
                with killed_when(lambda: len(seen) == 3), quivermq.stop_on_signals(subscription):
                    async for message in subscription:
                        await message.ack()
                        seen.append(message.offset)
            async with client.consumer(topic, group="s") as consumer:
                with killed_when(lambda: len(seen) == 6), quivermq.stop_on_signals(consumer):
                    async for message in consumer:
                        seen.append(message.offset)  # noqa: PERF401  (looked at meanwhile)

    asyncio.run(run())
    assert seen == [0, 1, 2] * 2
    assert real.group(topic, "g").done == 3
    assert real.committed(topic, "s") == {0: 3}
