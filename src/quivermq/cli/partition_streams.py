"""The messages of several partitions as one stream."""

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quivermq.client import Message


async def in_order_of_time(
    streams: Sequence[AsyncIterator["Message"]],
) -> AsyncGenerator["Message", None]:
    """Streams that end, merged: each keeps its order, and the older message comes first."""
    heads: list[tuple[int, int, Message]] = []
    for number, stream in enumerate(streams):
        if (message := await anext(stream, None)) is not None:
            heads.append((message.timestamp, number, message))
    heapq.heapify(heads)
    while heads:
        _, number, message = heads[0]
        yield message
        following = await anext(streams[number], None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following.timestamp, number, following))


async def as_they_come(
    streams: Sequence[AsyncIterator["Message"]], handle: Callable[["Message"], None]
) -> None:
    """Hand over the messages of streams that never end; returns only by what `handle` or a stream
    raises."""

    async def follow(stream: AsyncIterator["Message"]) -> None:
        async for message in stream:
            handle(message)

    try:
        async with asyncio.TaskGroup() as tasks:
            for stream in streams:
                tasks.create_task(follow(stream))
    except BaseExceptionGroup as group:
        # Whatever else failed meanwhile, one reason is enough to end.
        raise group.exceptions[0] from None
