"""What is left of a lease, against a set of offsets."""

from hypothesis import given
from hypothesis import strategies as st

from quivermq.client.shared.held_leases import Remainder
from quivermq.client.shared.leases import intervals_of

offsets = st.sets(st.integers(0, 40), min_size=1)
spans = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda it: (it[0], it[0] + it[1]))


def offsets_of(intervals: list[tuple[int, int]]) -> list[int]:
    return [offset for start, end in intervals for offset in range(start, end)]


@given(offsets, st.lists(spans, max_size=12))
def test_a_remainder_is_a_set_of_offsets(held: set[int], removed: list[tuple[int, int]]) -> None:
    remainder = Remainder(intervals_of(sorted(held)))
    for start, end in removed:
        remainder.remove(start, end)
        held.difference_update(range(start, end))
        assert remainder.count == len(held)
        assert offsets_of(remainder.within(0, 60)) == sorted(held)
        assert set(offsets_of(remainder.within(removed[0][0], 30))) == {
            at for at in held if removed[0][0] <= at < 30
        }


def test_offsets_of_neighbours_stay() -> None:
    remainder = Remainder([(0, 2), (5, 9)])
    remainder.remove(2, 5)
    assert remainder.count == 6
    remainder.remove(1, 6)
    assert remainder.within(0, 10) == [(0, 1), (6, 9)]
    assert remainder.within(1, 6) == []
