"""The watch of a loop tells who holds it, and blames nobody for a busy machine."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from quivermq.node.loop_watch import BLOCKED_FACTOR, HELD, LoopWatch, Stalls
from tests.node.test_time_slices import work
from tests.transports.stage import on_served_loop

BUDGET_S = 0.1

LOOKED_AT = """
import gc, sys, threading, time
from quivermq.node import calls_of

# Calls of many sizes, none of them for long.
FUNCTIONS = []
for size in range(1, 12):
    names = "".join(f"    a{i} = [x for x in (1, 2)]\\n" for i in range(size))
    call = f"    return FUNCTIONS[(n * 7 + {size}) % 11](n - 1) if n else 0\\n"
    exec(f"def work{size}(n):\\n{names}{call}")
    FUNCTIONS.append(globals()[f"work{size}"])

def work_on():
    while True:
        for n in range(1, 30): FUNCTIONS[n % 11](n)

def let_it_work(phase, _):
    if phase == "start" and threading.get_ident() == looking: time.sleep(5e-5)

looking = threading.get_ident()
thread = threading.Thread(target=work_on, daemon=True)
thread.start()
gc.set_threshold(20, 2, 2)
gc.callbacks.append(let_it_work)
sys.setswitchinterval(1e-5)
until = time.monotonic() + 3
while time.monotonic() < until:
    for frame, line in calls_of(thread.ident, 1000):
        assert type(frame).__name__ == "frame", frame
    rubbish = [[number] for number in range(30)]
assert gc.isenabled()
"""


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


def test_garbage_that_is_collected_meanwhile_does_not_mix_up_the_calls_of_a_thread() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKED_AT], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
