"""The delivery buffer of a sticky consumer: messages given out, done, withdrawn."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.client.models import Message
from quivermq.client.sticky.delivery_buffer import DeliveryBuffer
from quivermq.client.sticky.owned_partition import OwnedPartition


class Known:
    """As much of a owned partition as a hand knows."""

    def __init__(self) -> None:
        self.yielded = self.past = 0
        self.is_withdrawn = self.is_free = False
        self.freed = SimpleNamespace(set=self._free)

    def _free(self) -> None:
        self.is_free = True


def owned_partition() -> Any:
    return Known()


def messages(first: int, count: int, partition: int = 0) -> list[Message]:
    return [
        Message("t", partition, offset, None, b"v", {}, 0, 0)
        for offset in range(first, first + count)
    ]


@pytest.fixture
def hand() -> DeliveryBuffer:
    def at_once(call: Callable[[], None]) -> None:
        call()

    made = DeliveryBuffer(at_once)
    made.valid_until = time.monotonic() + 60
    return made


def offsets(taken: list[Message]) -> list[int]:
    return [message.offset for message in taken]


def test_a_message_is_done_when_the_next_is_asked_for(hand: DeliveryBuffer) -> None:
    one = owned_partition()
    hand.put(cast("OwnedPartition", one), messages(5, 3))
    assert offsets(hand.take()) == [5]
    assert (one.yielded, one.past) == (6, 0)
    assert offsets(hand.take()) == [6]
    assert (one.yielded, one.past) == (7, 6)


def test_messages_taken_together_are_done_together(hand: DeliveryBuffer) -> None:
    one, other = owned_partition(), owned_partition()
    hand.put(cast("OwnedPartition", one), messages(0, 2))
    hand.put(cast("OwnedPartition", other), messages(7, 2, 1))
    assert offsets(hand.take(3)) == [0, 1, 7]
    assert (one.past, other.past) == (0, 0)
    assert offsets(hand.take(3)) == [8]
    assert (one.past, other.past) == (2, 8)
    hand.finish()
    assert (one.past, other.past) == (2, 9)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(1, 9)), max_size=12),
    st.integers(0, 2),
)
def test_messages_are_given_out_in_the_order_in_which_they_came(
    steps: list[tuple[int, int, int]], recalled: int
) -> None:
    """However they are put in and taken; what is recalled is all that is left of a partition."""
    hand, owners = DeliveryBuffer(print), [owned_partition() for _ in range(3)]
    hand.valid_until = time.monotonic() + 60
    ready: list[Message] = []
    ends = [0, 0, 0]
    for number, count, most in steps:
        some = messages(ends[number], count, number)
        ends[number] += count
        ready += some
        hand.put(cast("OwnedPartition", owners[number]), some)
        taken = hand.take(most)
        assert taken == ready[:most]
        del ready[:most]
        for message in taken:
            assert owners[message.partition].yielded > message.offset
        assert all(owner.past <= owner.yielded for owner in owners)
    left = [message for message in ready if message.partition == recalled]
    assert hand.recall(cast("OwnedPartition", owners[recalled])) == left
    assert hand.take(999) == [message for message in ready if message.partition != recalled]


def test_what_is_withdrawn_is_not_given_out(hand: DeliveryBuffer) -> None:
    one, other = owned_partition(), owned_partition()
    hand.put(cast("OwnedPartition", one), messages(0, 2))
    hand.put(cast("OwnedPartition", other), messages(7, 1, 1))
    hand.withdraw(cast("OwnedPartition", one))
    assert one.is_free, "nothing of it was given out"
    assert offsets(hand.take(9)) == [7]
    assert one.yielded == 0


def test_what_is_worked_on_is_free_only_when_it_is_done(hand: DeliveryBuffer) -> None:
    one = owned_partition()
    hand.put(cast("OwnedPartition", one), messages(0, 2))
    hand.take()
    hand.withdraw(cast("OwnedPartition", one))
    assert not one.is_free
    assert hand.take() == []
    assert one.is_free
    assert one.past == 1


def test_nothing_is_given_out_when_no_beat_was_answered_for_a_session(hand: DeliveryBuffer) -> None:
    one = owned_partition()
    hand.put(cast("OwnedPartition", one), messages(0, 1))
    hand.valid_until = time.monotonic() - 1
    assert hand.take() == []
    hand.valid_until = time.monotonic() + 60
    assert offsets(hand.take()) == [0]
