"""Room for answers: bounded, fair, and given back."""

import asyncio

from quivermq.transports.backlog import Backlog
from tests.transports.stage import on_loop


class Reader:
    """A client that takes its answers when the test says so."""

    def __init__(self) -> None:
        self.unread = 0


def backlog(bytes_max: int = 100) -> tuple[Backlog, Reader]:
    reader = Reader()
    return Backlog(bytes_max, lambda: reader.unread), reader


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@on_loop
async def test_promises_count_until_they_are_settled() -> None:
    room, _ = backlog()
    await room.room(1, 50)
    await room.room(2, 50)
    third = asyncio.create_task(room.room(3, 10))
    await turns()
    assert not third.done()
    room.settle(1)
    await third


@on_loop
async def test_unread_answers_count_until_they_are_taken() -> None:
    room, reader = backlog()
    reader.unread = 80
    waiting = asyncio.create_task(room.room(1, 30))
    await turns()
    assert not waiting.done()
    reader.unread = 20
    room.look_again()
    await waiting


@on_loop
async def test_waiting_polls_are_served_in_order() -> None:
    room, reader = backlog()
    reader.unread = 90
    large = asyncio.create_task(room.room(1, 40))
    await turns()
    small = asyncio.create_task(room.room(2, 5))
    await turns()
    # It would fit, but then the large one might wait for ever.
    assert not small.done()
    reader.unread = 0
    room.look_again()
    await asyncio.gather(large, small)


@on_loop
async def test_more_than_there_ever_is_counts_as_half_of_it() -> None:
    room, reader = backlog()
    await room.room(1, 1_000_000)
    await room.room(2, 50)
    assert not room.is_full
    reader.unread = 101
    assert room.is_full


@on_loop
async def test_asking_again_for_the_same_request_takes_no_more() -> None:
    room, _ = backlog()
    await room.room(1, 50)
    await room.room(1, 50)
    await room.room(1, 30)
    await room.room(2, 50)
    room.settle(1)
    await room.room(3, 50)


@on_loop
async def test_a_cancelled_request_gives_its_room_back() -> None:
    room, _ = backlog()
    await room.room(1, 50)
    await room.room(2, 50)
    given_up = asyncio.create_task(room.room(3, 50))
    behind = asyncio.create_task(room.room(4, 50))
    await turns()
    # Given up in the very turn in which it was its turn.
    room.settle(1)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    await behind
    room.settle(2)
    await room.room(5, 50)


@on_loop
async def test_a_cancelled_wait_is_forgotten() -> None:
    room, reader = backlog()
    reader.unread = 100
    given_up = asyncio.create_task(room.room(3, 50))
    behind = asyncio.create_task(room.room(4, 10))
    await turns()
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    reader.unread = 60
    room.look_again()
    await behind


@on_loop
async def test_room_that_is_not_needed_after_all_is_there_for_others() -> None:
    found, _ = backlog()
    await found.room(1, 50)
    await found.room(2, 50)
    waiting = asyncio.create_task(found.room(3, 40))
    await asyncio.sleep(0)
    await found.room(1, 20)
    await asyncio.sleep(0)
    assert not waiting.done()
    await found.room(1, 0)
    await waiting
    # It may ask again, and waits like everybody.
    again = asyncio.create_task(found.room(1, 50))
    await asyncio.sleep(0)
    assert not again.done()
    found.settle(2)
    await again
