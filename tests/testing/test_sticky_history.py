"""The checker of sticky groups finds messages out of order, left out, and given to two."""

import pytest

from quivermq.testing import Violation
from quivermq.testing.trials.history import TopicPartition
from quivermq.testing.trials.sticky_history import StickyHistory

PLACE = TopicPartition("orders", 0)


def hold(history: StickyHistory, member: str, since_us: int, given: list[tuple[int, int]]) -> None:
    """A member gets the partition, and then messages: when, and which offset."""
    history.assign(member, PLACE, since_us)
    for at_us, offset in given:
        history.give(member, PLACE, at_us, offset)


def test_a_partition_moves_and_the_next_member_begins_a_little_before() -> None:
    history = StickyHistory()
    hold(history, "ada", 0, [(1, 0), (2, 1), (3, 2)])
    hold(history, "ben", 5, [(6, 1), (7, 2), (8, 3)])
    assert history.check({PLACE: 4}, is_drained=True) == 6


def test_a_message_out_of_order_is_found() -> None:
    history = StickyHistory()
    hold(history, "ada", 0, [(1, 0), (2, 1), (3, 1)])
    with pytest.raises(Violation, match="I7: ada was given offset 1 of orders/0 behind 1"):
        history.check({PLACE: 2}, is_drained=True)


def test_a_message_that_was_left_out_is_found() -> None:
    history = StickyHistory()
    hold(history, "ada", 0, [(1, 0), (2, 1)])
    hold(history, "ben", 5, [(6, 3)])
    with pytest.raises(Violation, match="I5: ben was given offset 3"):
        history.check({PLACE: 4}, is_drained=False)


def test_a_message_that_nobody_was_given_is_found_once_the_group_is_done() -> None:
    history = StickyHistory()
    hold(history, "ada", 0, [(1, 0), (2, 1)])
    assert history.check({PLACE: 3}, is_drained=False) == 2
    with pytest.raises(Violation, match=r"I5: .* no member was given \[2\]"):
        history.check({PLACE: 3}, is_drained=True)


def test_a_member_that_goes_on_after_its_partition_has_moved_is_found() -> None:
    history = StickyHistory()
    hold(history, "ada", 0, [(1, 0), (2, 1), (9, 2)])
    hold(history, "ben", 5, [(6, 2), (7, 3)])
    with pytest.raises(Violation, match="I7: ada was given offset 2"):
        history.check({PLACE: 4}, is_drained=False)
