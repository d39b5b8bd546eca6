"""Ending tasks: none goes on because a cancellation was lost."""

import asyncio
from contextlib import suppress

import pytest

from quivermq.node.tasks import end_tasks
from tests.transports.stage import on_loop


async def _sleep_on() -> None:
    await asyncio.sleep(3600)


async def _ignore_once() -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)
    await asyncio.sleep(3600)


async def _end_slowly() -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0.05)


async def _end_others_for_ever() -> None:
    """As a loop that closes links while its broker stops."""
    while True:
        inner = asyncio.create_task(_end_slowly())
        await asyncio.sleep(0)
        await end_tasks(inner)


async def _fail() -> None:
    raise ValueError("broken")


@on_loop
async def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    task = asyncio.create_task(_ignore_once())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await end_tasks(task)
    assert task.cancelled()


@on_loop
async def test_a_task_that_waits_for_another_to_end_can_be_cancelled() -> None:
    outer = asyncio.create_task(_end_others_for_ever())
    await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        await end_tasks(outer)
    assert outer.cancelled()
    await asyncio.sleep(0.1)


@on_loop
async def test_tasks_are_cancelled_in_the_order_in_which_they_are_given() -> None:
    ended = []

    async def note_the_end(number: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(number)

    tasks = {number: asyncio.create_task(note_the_end(number)) for number in range(60)}
    await asyncio.sleep(0)
    await end_tasks(*(tasks[number] for number in reversed(tasks)))
    assert ended == [*reversed(tasks)]


@on_loop
async def test_a_failed_task_is_logged_and_blocks_no_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = asyncio.create_task(_fail(), name="the failed one")
    other = asyncio.create_task(_sleep_on())
    await asyncio.sleep(0)
    await end_tasks(failed, other)
    assert other.cancelled()
    assert "the failed one had failed" in caplog.text


@on_loop
async def test_nothing_to_end_is_fine() -> None:
    await end_tasks()
