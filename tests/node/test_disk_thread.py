"""The disk thread: in order, answered on the loop, and never held up by an answer."""

import asyncio
import threading

import pytest

from quivermq.errors import StorageFailed
from quivermq.node.disk_thread import DiskThread
from tests.transports.stage import on_loop, until


@on_loop
async def test_jobs_are_done_in_order_in_one_other_thread() -> None:
    thread = DiskThread(asyncio.get_running_loop(), "disk")
    thread.start()
    done: list[object] = []
    where: set[int] = set()

    def job(number: int) -> int:
        where.add(threading.get_ident())
        return number

    for number in range(200):
        thread.submit(lambda number=number: job(number), done.append)
    await thread.close()
    assert done == [*range(200)]
    assert len(where) == 1
    assert threading.get_ident() not in where


@on_loop
async def test_a_failure_is_an_outcome_and_the_thread_goes_on() -> None:
    thread = DiskThread(asyncio.get_running_loop(), "disk")
    thread.start()

    def fail() -> None:
        raise StorageFailed("no disk")

    with pytest.raises(StorageFailed, match="no disk"):
        await thread.run(fail)
    assert await thread.run(lambda: 7) == 7
    await thread.close()


@on_loop
async def test_an_answer_that_fails_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    thread = DiskThread(asyncio.get_running_loop(), "disk")
    thread.start()
    told: list[object] = []
    release = threading.Event()
    thread.submit(release.wait, lambda _: told[99])
    thread.submit(lambda: 1, told.append)
    thread.submit(lambda: 2, told.append)
    release.set()
    await until(lambda: told == [1, 2])
    assert "could not be told" in caplog.text
    await thread.close()


@on_loop
async def test_a_cancelled_wait_changes_nothing_for_others() -> None:
    thread = DiskThread(asyncio.get_running_loop(), "disk")
    thread.start()
    release = threading.Event()
    waiting = asyncio.create_task(thread.run(release.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    release.set()
    assert await thread.run(lambda: "next") == "next"
    await thread.close()
    await thread.close()
