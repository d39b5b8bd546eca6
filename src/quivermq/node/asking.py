"""Asking a group on the event loop, and waiting for its word."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from quivermq.errors import QuiverError
from quivermq.node.group import Done, Group
from quivermq.queue import Desk
from quivermq.replica import Replica, Result

T = TypeVar("T")


async def ask(group: Group, question: Callable[[Replica, int], None]) -> Result:
    """A request of a replica, awaited; raises the refusal."""
    future, done = _word()
    token = group.ask(done, question)
    try:
        return _taken(await future)
    finally:
        group.forget(token)


async def said(group: Group, act: Callable[[Desk], T]) -> T:
    """What `act` returns at the desk of a group, once all that was said there is committed."""
    future, done = _word()
    answer = group.at_desk(act, done)
    _taken(await future)
    return answer


def _word() -> tuple[asyncio.Future[Result], Done]:
    """Where the word will be, and whom to tell it. Whoever waits may have gone by then."""
    future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def done(result: Result) -> None:
        if not future.done():
            future.set_result(result)

    return future, done


def _taken(result: Result) -> Result:
    if isinstance(result, QuiverError):
        raise result
    return result
