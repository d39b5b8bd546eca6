"""Interval sets, against sets of numbers."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from quivermq.intervals import Interval, IntervalSet, intervals_of, join, overlap, without

interval = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda it: (it[0], it[0] + it[1]))
some_offsets = st.lists(st.integers(0, 60), min_size=1, max_size=40)
changes = st.lists(st.tuples(st.booleans(), interval), max_size=30)


def numbers(intervals: list[Interval]) -> set[int]:
    return {number for start, end in intervals for number in range(start, end)}


def built(steps: list[tuple[bool, Interval]]) -> tuple[IntervalSet, set[int]]:
    found, naive = IntervalSet(), set()
    for adds, (start, end) in steps:
        if adds:
            found.add(start, end)
            naive |= set(range(start, end))
        else:
            found.remove(start, end)
            naive -= set(range(start, end))
        found.validate()
    return found, naive


@given(changes)
def test_it_holds_what_was_added_and_not_removed(steps: list[tuple[bool, Interval]]) -> None:
    found, naive = built(steps)
    assert numbers(list(found)) == naive
    assert found.count == len(naive)
    assert [number in found for number in range(80)] == [number in naive for number in range(80)]


@given(changes, interval)
def test_a_part_is_what_is_in_it_and_gaps_are_what_is_not(
    steps: list[tuple[bool, Interval]], asked: Interval
) -> None:
    found, naive = built(steps)
    within, gaps = found.within(*asked), found.gaps(*asked)
    assert numbers(within) == naive & set(range(*asked))
    assert numbers(gaps) == set(range(*asked)) - naive
    assert within == sorted(within)
    assert gaps == sorted(gaps)


@given(changes, changes)
def test_taking_intervals_out_of_others(
    one: list[tuple[bool, Interval]], other: list[tuple[bool, Interval]]
) -> None:
    (wanted, left), (taken, gone) = built(one), built(other)
    assert numbers(without(wanted, taken)) == left - gone


def test_neighbours_are_one_interval() -> None:
    assert join([(5, 7), (1, 3), (3, 5), (9, 9)]) == [(1, 7)]
    found = IntervalSet([(1, 3), (8, 9)])
    assert found.take_up_to(0) == 0
    assert found.take_up_to(2) == 3
    assert (list(found), found.count) == ([(8, 9)], 1)


@given(some_offsets)
def test_offsets_become_the_fewest_intervals(offsets: list[int]) -> None:
    found = intervals_of(offsets)
    assert numbers(found) == set(offsets)
    assert all(end < start for (_, end), (start, _) in pairwise(found))


@given(some_offsets, some_offsets)
def test_intervals_are_joined_and_compared_as_sets_are(some: list[int], others: list[int]) -> None:
    one, two = intervals_of(some), intervals_of(others)
    assert join([*one, *two]) == intervals_of(sorted({*some, *others}))
    assert numbers(overlap(one, two)) == {*some} & {*others}


@given(st.lists(interval, max_size=20))
def test_joining_is_what_a_set_of_intervals_does(intervals: list[Interval]) -> None:
    assert join(intervals) == list(IntervalSet(intervals))
