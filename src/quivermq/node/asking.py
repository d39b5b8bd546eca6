"""Asking a replica on the event loop, and waiting for its word."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from quivermq.errors import QuiverError
from quivermq.node.hosted_replica import Done, HostedReplica
from quivermq.queue import LeaseManager
from quivermq.replica import Replica, Result

T = TypeVar("T")


async def ask(hosted: HostedReplica, question: Callable[[Replica, int], None]) -> Result:
    """A request of a replica, awaited; raises the refusal."""
    future, done = _word()
    token = hosted.ask(done, question)
    try:
        return _taken(await future)
    finally:
        hosted.forget(token)


async def commit_lease_ops(hosted: HostedReplica, act: Callable[[LeaseManager], T]) -> T:
    """What `act` returns at the lease manager of a replica, once all that was said there is
    committed."""
    future, done = _word()
    answer = hosted.with_leases(act, done)
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
