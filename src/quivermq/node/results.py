"""Results of requests to a replica, for coroutines that wait for them."""

import asyncio
from collections.abc import Callable

from quivermq.errors import QuiverError
from quivermq.replica import Result

Done = Callable[[Result], None]
"""Called once, with the answer to a request."""


def result_future() -> tuple[asyncio.Future[Result], Done]:
    """A future, and the callback that sets it, unless the request was cancelled."""
    future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def done(result: Result) -> None:
        if not future.done():
            future.set_result(result)

    return future, done


def raise_refusal(result: Result) -> Result:
    """The result, unless it is a refusal."""
    if isinstance(result, QuiverError):
        raise result
    return result
