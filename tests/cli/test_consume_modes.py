"""`quiver consume`: merging and following several partitions."""

import asyncio
from collections.abc import AsyncIterator
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.cli.consume_modes import follow_all, merge_by_time
from quivermq.client.models import Message


def message(partition: int, offset: int, timestamp: int) -> Message:
    return Message("orders", partition, offset, None, b"", {}, timestamp, 0)


async def stream(messages: list[Message]) -> AsyncIterator[Message]:
    for one in messages:
        await asyncio.sleep(0)
        yield one


@given(st.lists(st.lists(st.integers(0, 50), max_size=8), max_size=5))
def test_partitions_are_merged_by_time_and_keep_their_own_order(times: list[list[int]]) -> None:
    partitions = [
        [message(number, offset, time) for offset, time in enumerate(stamps)]
        for number, stamps in enumerate(times)
    ]

    async def merged() -> list[Message]:
        return [one async for one in merge_by_time([stream(each) for each in partitions])]

    found = asyncio.run(merged())
    for number, expected in enumerate(partitions):
        assert [one for one in found if one.partition == number] == expected
    if all(stamps == sorted(stamps) for stamps in times):
        assert [one.timestamp for one in found] == sorted(chain.from_iterable(times))


def test_endless_streams_are_followed_together_until_one_fails() -> None:
    async def endless() -> AsyncIterator[Message]:
        offset = 0
        while True:
            await asyncio.sleep(0)
            yield message(0, offset, 0)
            offset += 1

    async def failing() -> AsyncIterator[Message]:
        async for one in stream([message(1, offset, 0) for offset in range(3)]):
            yield one
        raise OSError("the line is cut")

    found: list[Message] = []
    with pytest.raises(OSError, match="the line is cut"):
        asyncio.run(follow_all([endless(), failing()], found.append))
    assert [one.offset for one in found if one.partition == 1] == [0, 1, 2]
    assert any(one.partition == 0 for one in found)
