"""Who waits is woken in the order of coming, and no more of them than there is work for."""

import asyncio

from quivermq.node.delivery.wait_table import Waiter, WaitTable
from tests.transports.stage import on_loop


def woken(waiters: list[Waiter]) -> list[int]:
    return [waiter.consumer for waiter in waiters if waiter.woken.done()]


@on_loop
async def test_the_longest_waiting_are_woken_until_they_want_all_there_is() -> None:
    table = WaitTable()
    waiters = [Waiter(number, wants=10) for number in range(5)]
    for waiter in waiters:
        table.park("g", waiter, in_front=False)
    assert table.wake("g", 0) == 0
    assert table.wake("g", 1) == 1
    assert woken(waiters) == [0]
    # What the first one is about to take is there for nobody else.
    assert table.wake("g", 10) == 0
    assert table.wake("g", 21) == 2
    assert woken(waiters) == [0, 1, 2]
    for waiter in waiters[:3]:
        table.leave("g", waiter)
    assert table.wake("other", 100) == 0
    assert table.consumers("g") == [3, 4]
    assert table.wake("g", 1) == 1


@on_loop
async def test_a_poll_woken_in_vain_keeps_its_place() -> None:
    table = WaitTable()
    first, second = Waiter(1, 1), Waiter(2, 1)
    table.park("g", second, in_front=False)
    table.park("g", first, in_front=True)
    table.wake("g", 1)
    assert woken([first, second]) == [1]


@on_loop
async def test_a_poll_that_left_takes_no_place_and_no_wake() -> None:
    table = WaitTable()
    gone, there = Waiter(1, 1), Waiter(2, 1)
    cancelled = Waiter(3, 1)
    for waiter in (gone, cancelled, there):
        table.park("g", waiter, in_front=False)
    table.leave("g", gone)
    cancelled.woken.cancel()
    await asyncio.sleep(0)
    assert table.wake("g", 1) == 1
    assert there.woken.done()
    assert (len(table), table.groups) == (0, [])


@on_loop
async def test_at_the_end_everybody_is_woken() -> None:
    table = WaitTable()
    waiters = [Waiter(number, 1) for number in range(3)]
    for waiter in waiters:
        table.park(f"group {waiter.consumer}", waiter, in_front=False)
    table.wake_all()
    assert woken(waiters) == [0, 1, 2]
    assert len(table) == 0
