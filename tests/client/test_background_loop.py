"""The thread in the background of a blocking client."""

import asyncio
import signal
import threading

import pytest

from quivermq.client.background_loop import BackgroundLoop
from quivermq.errors import InvalidRequest


class Interrupted(BaseException):
    """As by Ctrl-C."""


def test_an_interrupted_call_is_cancelled() -> None:
    background = BackgroundLoop()
    ended = threading.Event()

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            background.call(wait_for_ever())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert ended.wait(10)
    background.stop()


def test_stopping_waits_for_what_was_left_for_later_and_cancels_the_rest() -> None:
    background = BackgroundLoop()
    seen: list[str] = []

    async def close_slowly() -> None:
        await asyncio.sleep(0.05)
        seen.append("closed")

    async def leak() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    async def begin() -> None:
        background.later(leak_in_background)

    async def leak_in_background() -> None:
        tasks.append(asyncio.create_task(leak()))

    tasks: list[asyncio.Task[None]] = []
    background.call(begin())
    background.later(close_slowly)
    background.stop()
    assert seen == ["closed", "cancelled"]


def test_nothing_is_started_once_it_is_stopped() -> None:
    background = BackgroundLoop()
    background.stop()
    before = threading.active_count()
    with pytest.raises(InvalidRequest, match="closed"):
        background.call(asyncio.sleep(0))
    with pytest.raises(InvalidRequest, match="closed"):
        background.post(print)
    background.later(lambda: asyncio.sleep(0))
    assert threading.active_count() == before
