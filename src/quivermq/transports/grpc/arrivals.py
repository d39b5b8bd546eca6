"""Reads the requests of calls, each within its time; and bounds the calls that need no token.

gRPC counts a call as open from its headers on, and waits for its request for ever: a client that
sends headers only would keep others out. So requests are read here, after the token was checked.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import grpc.aio

from quivermq.errors import InvalidRequest, Overloaded, QuiverError, Timeout
from quivermq.settings import BrokerSettings
from quivermq.transports.grpc.statuses import status_of

Context: TypeAlias = Any
_SHARE: Final = 10
"""One in so many calls may be one without a token."""


async def read_request(context: Context, limit_s: float) -> bytes | None:
    """The next request of a call; None if there is none. Raises `Timeout`."""
    try:
        async with asyncio.timeout(limit_s):
            found = await context.read()
    except TimeoutError:
        raise Timeout(f"the call brought no request within {limit_s:g} s") from None
    return None if found is grpc.aio.EOF else found


async def read_only_request(context: Context, limit_s: float) -> bytes:
    """The request of a call that has one."""
    found = await read_request(context, limit_s)
    if found is None:
        raise InvalidRequest("the call brought no request")
    return found


class TokenlessCalls:
    """Calls that need no token, for health and reflection: a few at a time, so that strangers
    leave room for users."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._most = max(1, settings.grpc_calls_max // _SHARE)
        self.limit_s = settings.request_timeout_ms / 1000
        self._open = 0

    @asynccontextmanager
    async def place(self, context: Context) -> AsyncIterator[None]:
        """Take part in a call; errors within end it with their status."""
        try:
            if self._open >= self._most:
                raise Overloaded(f"{self._open} calls without a token are open: try again later")
            self._open += 1
            try:
                yield
            finally:
                self._open -= 1
        except QuiverError as error:
            refusal = error
        else:
            return
        await context.abort(status_of(refusal), str(refusal))
