"""The watch of a loop tells who holds it, and blames nobody for a busy machine."""

import asyncio
import logging
import time
from collections.abc import Callable

import pytest

from quivermq.node.loop_watch import BLOCKED_FACTOR, HELD, LoopWatch, Stalls
from tests.node.test_time_slices import work
from tests.transports.stage import on_served_loop

BUDGET_S = 0.1


async def watched(*holds: Callable[[], None]) -> tuple[Stalls, LoopWatch]:
    stalls = Stalls()
    watch = LoopWatch(BUDGET_S, stalls)
    watch.start()
    for hold in holds:
        await asyncio.sleep(BUDGET_S)
        hold()
        await asyncio.sleep(BUDGET_S)
    watch.stop()
    return stalls, watch


@on_served_loop
async def test_work_above_the_budget_is_told_with_its_stack() -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("quivermq.stalls").addHandler(handler)
    try:
        stalls, _ = await watched(lambda: work(2 * BUDGET_S))
    finally:
        logging.getLogger("quivermq.stalls").removeHandler(handler)
    assert stalls.count == 1
    assert BUDGET_S < stalls.seconds_max < 10 * BUDGET_S
    (record,) = records
    text = record.getMessage()
    assert text.startswith(HELD)
    assert "busy" in text
    assert "in work" in text


@on_served_loop
async def test_work_below_the_budget_is_not() -> None:
    stalls, _ = await watched(*[lambda: work(BUDGET_S / 2)] * 5)
    assert stalls == Stalls()


@on_served_loop
async def test_waiting_has_a_larger_budget() -> None:
    stalls, _ = await watched(lambda: time.sleep(2 * BUDGET_S))
    assert stalls.count == 0
    # On a busy machine the thread that looks may come so late that it counts for less than it was.
    for _ in range(5):
        stalls, _ = await watched(lambda: time.sleep((BLOCKED_FACTOR + 3) * BUDGET_S))
        if stalls.count:
            break
    assert stalls.count == 1


@on_served_loop
async def test_what_does_not_let_go_of_the_interpreter_is_seen_all_the_same() -> None:
    many = list(range(6_000_000))

    def hold() -> None:
        # One call that no other thread interrupts.
        until = time.thread_time() + 3 * BUDGET_S
        while time.thread_time() < until:
            many.count(-1)

    stalls, _ = await watched(hold)
    assert stalls.count == 1


@on_served_loop
async def test_lines_are_rationed_and_counts_are_not(caplog: pytest.LogCaptureFixture) -> None:
    stalls, _ = await watched(*[lambda: work(2 * BUDGET_S)] * 3)
    assert stalls.count == 3
    assert len([r for r in caplog.records if r.getMessage().startswith(HELD)]) == 1
