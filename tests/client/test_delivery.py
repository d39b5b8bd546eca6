"""Deliveries: waiting for the outcome of a message, in every way."""

import asyncio
import threading

import pytest

from quivermq.client.models import Receipt
from quivermq.client.producer.delivery import Delivery, PendingBatch
from quivermq.client.producer.sequencer import StoredAt
from quivermq.errors import Overloaded, Timeout


def batch_with(*values: bytes) -> tuple[PendingBatch, list[Delivery]]:
    pending_batch = PendingBatch("t", 2, priority=0, not_before_ms=0, opened_at=0.0, deadline=1.0)
    return pending_batch, [
        Delivery.at(pending_batch, pending_batch.add(value, None, None, 1)) for value in values
    ]


def test_each_message_of_a_crate_has_its_own_offset() -> None:
    pending_batch, deliveries = batch_with(b"a", b"b", b"c")
    assert not deliveries[0].done()
    pending_batch.settle(StoredAt(40, 0))
    assert [each.result() for each in deliveries] == [Receipt("t", 2, 40 + n) for n in range(3)]
    assert deliveries[2].exception() is None


def test_a_failure_reaches_every_message_of_the_crate() -> None:
    pending_batch, (first, second) = batch_with(b"a", b"b")
    pending_batch.settle(Overloaded("busy"))
    assert isinstance(first.exception(), Overloaded)
    with pytest.raises(Overloaded):
        second.result()


def test_a_result_that_does_not_come_in_time_is_a_timeout() -> None:
    _, (delivery,) = batch_with(b"a")
    with pytest.raises(Timeout, match="still under way"):
        delivery.result(timeout=0.01)


def test_a_thread_that_waits_is_woken() -> None:
    pending_batch, (delivery,) = batch_with(b"a")
    timer = threading.Timer(0.01, pending_batch.settle, [StoredAt(1, 0)])
    timer.start()
    assert delivery.result(timeout=10).offset == 1
    timer.join()


def test_a_delivery_can_be_awaited_while_another_thread_settles_it() -> None:
    pending_batch, (first, second) = batch_with(b"a", b"b")

    async def wait() -> list[Receipt]:
        threading.Timer(0.01, pending_batch.settle, [StoredAt(1, 0)]).start()
        found = [await first, await second]
        return [*found, *await asyncio.gather(*map(asyncio.ensure_future, (first, second)))]

    assert [receipt.offset for receipt in asyncio.run(wait())] == [1, 2, 1, 2]


def test_an_awaited_failure_is_raised() -> None:
    pending_batch, (delivery,) = batch_with(b"a")
    pending_batch.settle(Overloaded("busy"))

    async def wait() -> None:
        await delivery

    with pytest.raises(Overloaded):
        asyncio.run(wait())


def test_callbacks_are_called_once_before_or_after() -> None:
    pending_batch, (delivery,) = batch_with(b"a")
    seen: list[Delivery] = []
    delivery.add_done_callback(seen.append)
    assert seen == []
    pending_batch.settle(StoredAt(1, 0))
    assert seen == [delivery]
    delivery.add_done_callback(seen.append)
    assert seen == [delivery, delivery]


def test_every_waiter_is_called_once_though_it_races_with_the_outcome() -> None:
    for _ in range(200):
        pending_batch, (delivery,) = batch_with(b"a")
        calls: list[int] = []
        barrier = threading.Barrier(2)

        def settle(
            pending_batch: PendingBatch = pending_batch, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait()
            pending_batch.settle(StoredAt(1, 0))

        thread = threading.Thread(target=settle)
        thread.start()
        barrier.wait()
        for number in range(5):
            pending_batch.when_settled(lambda n=number, into=calls: into.append(n))
        thread.join()
        assert sorted(calls) == list(range(5))
        assert delivery.done()


def test_a_delivery_says_how_it_stands() -> None:
    pending_batch, (delivery,) = batch_with(b"a")
    assert "under way" in repr(delivery)
    pending_batch.settle(StoredAt(7, 0))
    assert "offset 7" in repr(delivery)
