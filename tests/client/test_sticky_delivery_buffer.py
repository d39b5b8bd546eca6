"""The delivery buffer of a sticky consumer: messages given out, done, withdrawn."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import DEFAULT_LIMITS, Frame, Offset, encode_batch
from quivermq.client.models import Message
from quivermq.client.sticky.delivery_buffer import READY_MESSAGES, DeliveryBuffer
from quivermq.client.sticky.owned_partition import OwnedPartition, Ownership
from quivermq.errors import Corrupt

BYTES_MAX = 1 << 20


def owned_partition(number: int = 0) -> OwnedPartition:
    """One that fetches nothing by itself."""
    router: Any = SimpleNamespace(limits=DEFAULT_LIMITS)
    owned = Ownership("t", "g", number, 1)
    fetches = asyncio.Semaphore()
    return OwnedPartition(router, owned, "earliest", BYTES_MAX, fetches, lambda *_: None)


def frame(first: int, count: int, value: bytes = b"v") -> Frame:
    encoded = encode_batch([value] * count)
    header = encoded.header.stamped(1, 1, Offset(first), 1_700_000_000_000)  # type: ignore[arg-type]
    return Frame(header, bytes(encoded.body))


def unreadable(first: int, count: int) -> Frame:
    """Arrow does not know it, whatever its checksum says."""
    made = frame(first, count)
    return Frame(made.header, b"\0" * len(made.body))


@pytest.fixture
def hand() -> DeliveryBuffer:
    def at_once(call: Callable[[], None]) -> None:
        call()

    made = DeliveryBuffer(at_once)
    made.valid_until = time.monotonic() + 60
    return made


def offsets(taken: list[Message]) -> list[int]:
    return [message.offset for message in taken]


def offset_of_one(hand: DeliveryBuffer) -> int:
    message = hand.take_one()
    assert message is not None
    return message.offset


def test_a_message_is_done_when_the_next_is_asked_for(hand: DeliveryBuffer) -> None:
    one = owned_partition()
    one.unread.restart(5)
    hand.put(one, [frame(5, 3)])
    assert offset_of_one(hand) == 5
    assert (one.yielded, one.past) == (6, 0)
    assert offset_of_one(hand) == 6
    assert (one.yielded, one.past) == (7, 6)


def test_messages_taken_together_are_done_together(hand: DeliveryBuffer) -> None:
    one, other = owned_partition(), owned_partition(1)
    hand.put(one, [frame(0, 2)])
    hand.put(other, [frame(7, 2)])
    assert offsets(hand.take(3)) == [0, 7, 1]
    assert (one.past, other.past) == (0, 0)
    assert offsets(hand.take(3)) == [8]
    assert (one.past, other.past) == (2, 8)
    assert hand.take_more(1) == []
    assert other.past == 8, "they are not done yet"
    hand.finish()
    assert (one.past, other.past) == (2, 9)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 80), st.integers(0, 90)), max_size=12),
    st.integers(0, 2),
)
def test_messages_are_given_out_in_the_order_in_which_they_came(
    steps: list[tuple[int, int, int]], sought: int
) -> None:
    """However they are put in and taken; a seek takes back all that is left of its partition, and
    nothing of the others."""
    hand, owners = DeliveryBuffer(print), [owned_partition(number) for number in range(3)]
    hand.valid_until = time.monotonic() + 60
    ends, nexts = [0, 0, 0], [0, 0, 0]

    def check(taken: list[Message]) -> None:
        for message in taken:
            assert message.offset == nexts[message.partition]
            nexts[message.partition] += 1
            assert owners[message.partition].yielded > message.offset
        assert all(owner.past <= owner.yielded for owner in owners)

    for number, count, most in steps:
        if count:
            hand.put(owners[number], [frame(ends[number], count)])
            ends[number] += count
        if most:
            left = sum(ends) - sum(nexts)
            taken = hand.take(most)
            assert len(taken) == min(most, left)
            check(taken)
        else:
            message = hand.take_one()
            check([] if message is None else [message])
    hand.rewind(owners[sought], ends[sought])
    nexts[sought] = ends[sought]
    check(hand.take(9_999))
    assert nexts == ends


def test_partitions_share_a_list_alike_and_what_one_lacks_others_fill(
    hand: DeliveryBuffer,
) -> None:
    for number, count in enumerate((500, 20, 500)):
        hand.put(owned_partition(number), [frame(0, count)])
    taken = hand.take(300)
    counts = [sum(each.partition == number for each in taken) for number in range(3)]
    assert counts == [130, 20, 150]
    assert len(hand.take(300)) == 300


def test_partitions_take_turns_in_a_loop(hand: DeliveryBuffer) -> None:
    for number in range(2):
        hand.put(owned_partition(number), [frame(0, READY_MESSAGES)])
    seen = [message.partition for message in iter(hand.take_one, None)]
    half = READY_MESSAGES // 2
    assert seen == ([0] * half + [1] * half) * 2


def test_what_is_fetched_twice_is_given_out_once(hand: DeliveryBuffer) -> None:
    one = owned_partition()
    one.unread.restart(3)
    # It begins in the middle of a batch, and another batch has some of the same.
    hand.put(one, [frame(0, 200), frame(150, 100)])
    hand.put(one, [frame(200, 50)])
    assert offsets(hand.take(100) + hand.take(500)) == list(range(3, 250))


def test_what_is_paused_waits_in_its_order(hand: DeliveryBuffer) -> None:
    one, other = owned_partition(), owned_partition(1)
    hand.put(one, [frame(0, 3)])
    assert offset_of_one(hand) == 0
    hand.pause(one)
    assert not hand.has_messages
    hand.put(one, [frame(3, 1)])
    hand.put(other, [frame(7, 1)])
    assert hand.has_messages
    assert offsets(hand.take(9)) == [7]
    one.is_paused = False
    hand.open(one)
    assert hand.has_messages
    assert offsets(hand.take(9)) == [1, 2, 3]
    assert not hand.has_messages


def test_what_is_withdrawn_is_not_given_out(hand: DeliveryBuffer) -> None:
    one, other = owned_partition(), owned_partition(1)
    hand.put(one, [frame(0, 2)])
    hand.put(other, [frame(7, 1)])
    hand.withdraw(one)
    assert one.freed.is_set(), "nothing of it was given out"
    hand.put(one, [frame(2, 2)])
    hand.open(one)
    assert offsets(hand.take(9)) == [7]
    assert one.yielded == 0


def test_what_is_worked_on_is_free_only_when_it_is_done(hand: DeliveryBuffer) -> None:
    one = owned_partition()
    hand.put(one, [frame(0, 2)])
    hand.take(1)
    hand.withdraw(one)
    assert not one.freed.is_set()
    assert hand.take(1) == []
    assert one.freed.is_set()
    assert one.past == 1


def test_nothing_is_given_out_when_no_beat_was_answered_for_a_session(hand: DeliveryBuffer) -> None:
    one = owned_partition()
    hand.put(one, [frame(0, 2)])
    hand.valid_until = time.monotonic() - 1
    assert hand.take(9) == []
    assert hand.take_one() is None
    assert not hand.has_messages
    hand.valid_until = time.monotonic() + 60
    assert offset_of_one(hand) == 0
    assert offsets(hand.take(9)) == [1]


def test_a_batch_that_cannot_be_read_is_told_of_and_not_passed(hand: DeliveryBuffer) -> None:
    one, other = owned_partition(), owned_partition(1)
    hand.put(one, [frame(0, 100), unreadable(100, 100)])
    hand.put(other, [frame(7, 100)])
    assert offsets(hand.take(1_000)) == list(range(100))
    assert offsets(hand.take(1_000)) == list(range(7, 107)), "the others go on"
    for _ in range(2):
        with pytest.raises(Corrupt):
            hand.take(1_000)
        with pytest.raises(Corrupt):
            hand.take_one()
    assert (one.yielded, one.past) == (100, 100)


def test_what_an_interrupt_takes_from_the_user_comes_again(
    hand: DeliveryBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = owned_partition(), owned_partition(1)
    hand.put(one, [frame(0, 300)])
    hand.put(other, [frame(0, 300)])
    assert offsets(hand.take(2)) == [0, 0]

    def interrupt(_: int) -> list[Message]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(other.unread, "take", interrupt)
        with pytest.raises(KeyboardInterrupt):
            hand.take(200)
    hand.finish()
    assert (one.past, other.past) == (1, 1), "what was not given out is not done"
    taken = hand.take(1_000)
    assert [offsets([each for each in taken if each.partition == n]) for n in (0, 1)] == [
        list(range(1, 300))
    ] * 2


def test_it_is_fetched_again_as_soon_as_there_is_room(hand: DeliveryBuffer) -> None:
    async def run() -> None:
        one = owned_partition()
        hand.put(one, [frame(at, 100, b"x" * 6_000) for at in (0, 100)])
        assert not one.has_room
        waiting = asyncio.create_task(one._await_room())
        await asyncio.sleep(0)
        assert len(hand.take(99)) == 99
        await asyncio.sleep(0.01)
        assert not waiting.done(), "the batch is still there"
        assert len(hand.take(2)) == 2
        await asyncio.wait_for(waiting, 10)
        assert not one.awaits_room

    asyncio.run(run())
