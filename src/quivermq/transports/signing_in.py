"""The caller of the present task: for doors whose requests carry a token in their headers.

Everything that a task and its children ask of the service is asked by the caller that signed in
there, without being passed along by each function between the two.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from quivermq.errors import QuiverError
from quivermq.node import AccessControl, Caller, bearer_token

_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """The caller that this task works for; None: nobody signed in."""
    return _caller.get()


@asynccontextmanager
async def signed_in(
    access: AccessControl, authorization: str, address: str, door: str
) -> AsyncIterator[None]:
    """Do the work of a request, or of a stream, for the user whose token is in its header.

    Raises `Unauthenticated`. The work ends, and raises why, when the user is removed, gets another
    token or may do less.
    """
    task = asyncio.current_task()
    ended: QuiverError | None = None

    def end(error: QuiverError) -> None:
        nonlocal ended
        ended = error
        if task is not None:
            task.cancel()

    caller = await access.sign_in(bearer_token(authorization), address, door, end)
    before = _caller.set(caller)
    try:
        yield
    except asyncio.CancelledError:
        if ended is None or task is None:
            raise
        task.uncancel()
        raise ended from None
    finally:
        _caller.reset(before)
        access.sign_out(caller)
