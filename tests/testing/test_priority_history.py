"""The checker of priorities finds levels that starve or get too much, and messages out of order."""

from collections.abc import Iterator

import pytest

from quivermq.testing import Violation
from quivermq.testing.trials.history import TopicPartition
from quivermq.testing.trials.priority_history import PriorityHistory

PLACE = TopicPartition("orders", 0)
EACH = 400
LEVELS = {8 * number + level: level for number in range(EACH) for level in range(8)}
"""The level of each offset."""


def check(polls: list[list[int]], delayed: set[int] = frozenset()) -> int:  # type: ignore[assignment]
    """Judge polls that are told as levels: each gets the next message of its level."""
    following: dict[int, Iterator[int]] = {
        level: iter([offset for offset, own in LEVELS.items() if own == level])
        for level in range(8)
    }
    history = PriorityHistory()
    for levels in polls:
        history.record_poll(PLACE, [next(following[level]) for level in levels])
    return history.check({PLACE: LEVELS}, {PLACE: set(delayed)})


def one_by_one(levels: list[int]) -> list[list[int]]:
    return [[level] for level in levels]


def test_a_quarter_in_turns_is_allowed_at_any_size_of_polls() -> None:
    turns = [level for low in (0, 1, 2, 3, 4, 5, 6) * 10 for level in (7, 7, 7, low)]
    assert check(one_by_one(turns)) == 280
    assert check([turns[n : n + 28] for n in range(0, 280, 28)]) == 280


def test_levels_that_get_nothing_are_found() -> None:
    with pytest.raises(Violation, match="I8: orders/0: only 0 of 12 messages were below"):
        check(one_by_one([7] * 30))


def test_one_level_of_many_that_starves_is_found() -> None:
    turns = [level for low in (1, 2, 3, 4, 5, 6) * 10 for level in (7, 7, 7, low)]
    with pytest.raises(Violation, match="I8: orders/0: priority 0 waited, and got 0 of 100"):
        check(one_by_one(turns))


def test_too_much_for_low_levels_is_found() -> None:
    with pytest.raises(Violation, match=r"I8: orders/0: .* were below priority 7, which waited"):
        check([[7, 7, 0, 1]] * 10)
    with pytest.raises(Violation, match="were below priority 7"):
        check([[0, 1, 2, 3, 4, 5, 6]])


def test_a_message_before_an_older_one_of_its_level_is_found() -> None:
    history = PriorityHistory()
    history.record_poll(PLACE, [7, 23])
    with pytest.raises(Violation, match="I8: orders/0@23 of priority 7 was given out before 15"):
        history.check({PLACE: LEVELS}, {})
    # One that was delayed may come later.
    assert history.check({PLACE: LEVELS}, {PLACE: {15}}) == 2


def test_a_level_that_is_used_up_leaves_the_rest_to_the_next() -> None:
    history = PriorityHistory()
    few = {0: 0, 1: 0, 2: 7, 3: 0, 4: 0}
    history.record_poll(PLACE, [2, 0, 1, 3])
    assert history.check({PLACE: few}, {}) == 4
