"""The index of priorities: what it finds, and how small it stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.intervals import IntervalSet
from quivermq.queue.priority_index import CLOCK_ERROR_MS_MAX, LEVELS, PriorityIndex

batches = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 7), st.booleans()), max_size=40)


def filled(found: list[tuple[int, int, bool]]) -> tuple[PriorityIndex, dict[int, int]]:
    """The index, and the level of each message that is not delayed."""
    priority_index, levels, at = PriorityIndex(), {}, 0
    for count, priority, is_delayed in found:
        priority_index.add(at, at + count, priority, 1000 if is_delayed else 0)
        if not is_delayed:
            levels.update(dict.fromkeys(range(at, at + count), priority))
        at += count
    priority_index.validate()
    return priority_index, levels


def walked(priority_index: PriorityIndex, level: int, cursor: int, end: int) -> list[int]:
    offsets = []
    while (found := priority_index.find(level, cursor, end)) is not None:
        offsets += range(*found)
        cursor = found[1]
    return offsets


@given(batches, st.integers(0, 60), st.integers(0, 120))
def test_a_cursor_finds_every_message_of_its_level(found, cursor: int, end: int) -> None:
    priority_index, levels = filled(found)
    for level in range(LEVELS):
        expected = [at for at, one in levels.items() if one == level and cursor <= at < end]
        assert walked(priority_index, level, cursor, end) == expected
        assert priority_index.count(level, cursor, end, 3) == min(len(expected), 3)


@given(batches, st.integers(0, 60))
def test_what_was_trimmed_is_not_found(found, begin: int) -> None:
    priority_index, levels = filled(found)
    priority_index.trim(begin)
    priority_index.validate()
    again = PriorityIndex.unpack(memoryview(priority_index.pack()))
    assert again.pack() == priority_index.pack()
    for level in range(LEVELS):
        expected = [at for at, one in levels.items() if one == level and at >= begin]
        assert walked(again, level, 0, 1000) == expected
    assert all(one.start >= begin for one in priority_index.delayed)


@given(batches, st.integers(0, 120), st.booleans())
def test_what_is_flattened_is_found_in_order_of_offsets(found, end: int, is_due: bool) -> None:
    priority_index, levels = filled(found)
    over_ms = 1000 + CLOCK_ERROR_MS_MAX
    priority_index.flatten(end, over_ms if is_due else over_ms - 1, IntervalSet())
    priority_index.validate()
    assert PriorityIndex.unpack(memoryview(priority_index.pack())).pack() == priority_index.pack()
    flat_end = priority_index.flat_end
    low = range(min(flat_end, priority_index.end))
    expected = list(low) if is_due else [at for at in low if at in levels]
    assert walked(priority_index, 0, 0, flat_end) == expected
    for level in range(1, LEVELS):
        assert walked(priority_index, level, 0, flat_end) == []
        above = [at for at, one in levels.items() if one == level and at >= flat_end]
        assert walked(priority_index, level, flat_end, 1000) == above


def test_delayed_batches_that_were_cancelled_stay_apart() -> None:
    priority_index, _ = filled([(2, 0, False), (2, 3, True), (2, 0, False)])
    priority_index.flatten(6, 2 * CLOCK_ERROR_MS_MAX, IntervalSet([(3, 4)]))
    assert walked(priority_index, 0, 0, 6) == [0, 1, 4, 5]
    assert [one.start for one in priority_index.delayed] == [2]


def test_batches_of_one_priority_are_one_stretch() -> None:
    priority_index = PriorityIndex()
    for at in range(0, 1_000_000, 1000):
        priority_index.add(at, at + 1000, 5)
    assert priority_index.size == 1
    assert len(priority_index.pack()) < 200


def test_an_index_that_is_full_files_batches_where_the_last_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quivermq.queue.priority_index.STRETCHES_MAX", 4)
    priority_index, _ = filled([(1, at % 8, False) for at in range(10)])
    assert priority_index.size == 4
    assert walked(priority_index, 3, 0, 10) == [3, 4, 5, 6, 7, 8, 9]
